"""``lossy-assist generate``: one prompt, streamed, under a rule of your choice."""

from __future__ import annotations

import contextlib
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text
from transformers import PreTrainedTokenizerBase, TextStreamer, set_seed
from transformers.utils.logging import disable_progress_bar

from .. import enabled
from ..acceptors import REGISTRY
from ..config import head_type, parse
from ..errors import LossyValueError
from ..evaluation.modes import parse_config
from ..tasks import Example
from .models import ModelOptions
from .options import RULES, DraftSource, PairInstead, RuleSettings, Sample, TargetSource, certified, parse_mode
from .rendering import stats_table, traced_text

COMMAND_OPTIONS = {"epilog": RULES}


class ConsoleStreamer(TextStreamer):
    """Prints text as rounds produce it; into a live view where it is to be replaced at the end."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, screen: Console, live: Live | None) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.screen = screen
        self.live = live
        self.text = ""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Print some more text."""
        self.text += text
        if self.live is not None:
            self.live.update(Text(self.text))
        else:
            self.screen.print(Text(text), end="\n" if stream_end else "", soft_wrap=True)


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue. With --pair: its first test problem by default.")
    ] = None,
    model: TargetSource = None,
    assistant: DraftSource = None,
    pair: PairInstead = None,
    mode: Annotated[
        str | None, typer.Option(help="The rule, lossless by default; of several, with commas between, any may keep.")
    ] = None,
    config: RuleSettings = None,
    head: Annotated[
        str | None,
        typer.Option(help="The trained head of judge or sprinter: a Hub id or a folder; a pair's own by default."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest continuation.")] = 160,
    num_assistant_tokens: Annotated[
        int | None, typer.Option(min=1, help="Drafted tokens per round; 8 by default.")
    ] = None,
    sample: Sample = False,
    temperature: Annotated[float | None, typer.Option(help="Temperature; needs --sample.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of every random number.")] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print the statistics.")] = False,
    show_acceptance: Annotated[
        bool, typer.Option("--show-acceptance", help="Mark the tokens that only a lossy rule let through.")
    ] = False,
) -> None:
    """Continue a prompt, streaming, with a draft model and a lossy (or the lossless) acceptance rule."""
    if temperature is not None and not sample:
        raise LossyValueError(f"`--temperature` counts only with `--sample`; add it, or leave out {temperature}")
    options = ModelOptions(pair, model, assistant, device="cpu" if pair is not None else "auto")
    options.check({"PROMPT": prompt} if pair is None else None)
    if pair is not None:
        disable_progress_bar()
    lossy_mode, lossy_config, head, num_assistant_tokens = certified(mode, config, head, num_assistant_tokens) or (
        parse_mode(mode or "lossless"), parse_config(config or ()), head, num_assistant_tokens or 8
    )  # fmt: skip
    if seed is not None:
        lossy_config.setdefault("seed", seed)
        set_seed(seed)
    names = lossy_mode if isinstance(lossy_mode, list) else [lossy_mode]
    users = [name for name in names if name in REGISTRY and head_type(REGISTRY[name]) is not None]
    if head is not None or pair is None or not users:
        parse(lossy_mode, lossy_config, head)  # before any weights are read
    loaded = options.load()
    heads = {name: loaded.heads[name] for name in users} if head is None and users else head
    target, tokenizer, screen = loaded.target, loaded.tokenizer, Console()
    if prompt is None:
        prompt = loaded.examples(1)[0].prompt
        screen.print(Text(prompt, style="dim"), soft_wrap=True)

    # Marks are known once all is done: till then a terminal shows a preview, anything else nothing.
    live = Live(console=screen, transient=True) if show_acceptance and screen.is_terminal else None
    streamer = ConsoleStreamer(tokenizer, screen, live) if live is not None or not show_acceptance else None
    if pair is None:
        inputs = tokenizer(prompt, return_tensors="pt").to(target.device)
    else:  # a question to it, and no text to continue, where it is a chat model
        inputs = {"input_ids": torch.tensor(loaded.encode([Example(prompt, "")]), device=target.device)}
    with enabled(target), live or contextlib.nullcontext():
        output = target.generate(
            **inputs,
            assistant_model=loaded.draft,
            lossy_mode=lossy_mode,
            lossy_config=lossy_config,
            lossy_head=heads,
            num_assistant_tokens=num_assistant_tokens,
            max_new_tokens=max_new_tokens,
            do_sample=sample,
            **({} if temperature is None else {"temperature": temperature}),
            streamer=streamer,
            return_dict_in_generate=True,
        )
    if show_acceptance:
        tokens = output.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        colour = screen.color_system is not None
        screen.print(traced_text(tokenizer, tokens, output.lossy_stats.trace, colour=colour), soft_wrap=True)
    if stats:
        screen.print(stats_table(output.lossy_stats))
