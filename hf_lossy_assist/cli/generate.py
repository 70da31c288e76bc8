"""``lossy-assist generate``: one prompt, streamed, under a rule of your choice."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from .. import enabled
from ..errors import LossyValueError
from ..tasks import Example
from .assisted import AssistedDecoding
from .conversation import encode_conversation
from .models import ModelOptions
from .options import (
    RULES,
    AssistantTokenizer,
    DraftSource,
    Dtype,
    HeadSource,
    PairInstead,
    PromptLookup,
    RuleName,
    RuleSettings,
    Sample,
    Seed,
    TargetSource,
    Temperature,
    Tokens,
    Where,
)
from .rendering import ConsoleStreamer, stats_table

COMMAND_OPTIONS = {"epilog": RULES}


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue. With --pair: its first test problem by default.")
    ] = None,
    model: TargetSource = None,
    assistant: DraftSource = None,
    assistant_tokenizer: AssistantTokenizer = None,
    prompt_lookup: PromptLookup = None,
    pair: PairInstead = None,
    mode: RuleName = None,
    config: RuleSettings = None,
    head: HeadSource = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the prompt into the chat template, as a user's message.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest continuation.")] = 160,
    num_assistant_tokens: Tokens = None,
    sample: Sample = False,
    temperature: Temperature = None,
    seed: Seed = None,
    dtype: Dtype = None,
    device: Where = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print the statistics.")] = False,
    show_acceptance: Annotated[
        bool, typer.Option("--show-acceptance", help="Mark the tokens that only a lossy rule let through.")
    ] = False,
) -> None:
    """Continue a prompt, streaming, with a drafter and a lossy (or the lossless) acceptance rule."""
    if temperature is not None and not sample:
        raise LossyValueError(f"`--temperature` counts only with `--sample`; add it, or leave out {temperature}")
    options = ModelOptions(
        pair,
        model,
        assistant,
        dtype,
        device or ("cpu" if pair is not None else "auto"),
        assistant_tokenizer=assistant_tokenizer,
    )
    optional = ("--assistant",) if prompt_lookup is not None else ()
    options.check({"PROMPT": prompt} if pair is None else None, optional)
    if pair is not None:
        disable_progress_bar()
    decoding = AssistedDecoding.of(mode, config, head, num_assistant_tokens, seed, lookup=prompt_lookup)
    decoding.check(assistant, brings_heads=pair is not None)
    loaded = options.load(assisted=prompt_lookup is None)
    target, tokenizer, screen = loaded.target, loaded.tokenizer, Console()
    if prompt is None:
        prompt = loaded.examples(1)[0].prompt
        screen.print(Text(prompt, style="dim"), soft_wrap=True)
    if chat:
        ids = encode_conversation(tokenizer, [{"role": "user", "content": prompt}])
    elif pair is None:
        ids = tokenizer(prompt)["input_ids"]
    else:  # a question to it, and no text to continue, where it is a chat model
        ids = loaded.encode([Example(prompt, "")])[0]
    with enabled(target):
        output = target.generate(
            input_ids=torch.tensor([ids], device=target.device),
            **decoding.keywords(loaded),
            max_new_tokens=max_new_tokens,
            do_sample=sample,
            **({} if temperature is None else {"temperature": temperature}),
            streamer=ConsoleStreamer(tokenizer, screen, mark=show_acceptance),
            return_dict_in_generate=True,
        )
    if stats:
        screen.print(stats_table(output.lossy_stats))
