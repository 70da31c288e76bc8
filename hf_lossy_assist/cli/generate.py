"""``lossy-assist generate``: continue one prompt under a rule, streaming."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from .. import enabled
from ..tasks import Example
from .assisted import AssistedOptions
from .conversation import encode_conversation
from .options import RULES
from .rendering import ConsoleStreamer, stats_table

COMMAND_OPTIONS = {"epilog": RULES}


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue. With --pair: its first test problem by default.")
    ] = None,
    *,
    assisted: AssistedOptions,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the prompt into the chat template as a user's message.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest continuation.")] = 160,
    stats: Annotated[bool, typer.Option("--stats", help="Print the statistics.")] = False,
    show_acceptance: Annotated[
        bool, typer.Option("--show-acceptance", help="Mark tokens kept only by a lossy rule.")
    ] = False,
) -> None:
    """Continue a prompt with a drafter and an acceptance rule, streaming."""
    options, decoding = assisted.checked({"PROMPT": prompt} if assisted.pair is None else None)
    if assisted.pair is not None:
        disable_progress_bar()
    loaded = options.load()
    target, tokenizer, screen = loaded.target, loaded.tokenizer, Console()
    if prompt is None:
        prompt = loaded.examples(1)[0].prompt
        screen.print(Text(prompt, style="dim"), soft_wrap=True)
    if chat:
        ids = encode_conversation(tokenizer, [{"role": "user", "content": prompt}])
    elif assisted.pair is None:
        ids = tokenizer(prompt)["input_ids"]
    else:  # a chat model gets it as a question
        ids = loaded.encode([Example(prompt, "")])[0]
    with enabled(target):
        output = target.generate(
            input_ids=torch.tensor([ids], device=target.device),
            **decoding.keywords(loaded),
            max_new_tokens=max_new_tokens,
            **assisted.sampling,
            streamer=ConsoleStreamer(tokenizer, screen, mark=show_acceptance),
            return_dict_in_generate=True,
        )
    if stats:
        screen.print(stats_table(output.lossy_stats))
