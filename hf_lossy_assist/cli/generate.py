"""``lossy-assist generate``: one prompt, streamed, under a rule of your choice."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TextStreamer,
    set_seed,
)
from transformers.utils.logging import disable_progress_bar

from .. import enabled, pairs
from ..acceptors import REGISTRY
from ..config import head_type, parse
from ..errors import LossyValueError
from ..heads import Head
from .console import console
from .rendering import stats_table, traced_text


@dataclass(frozen=True, eq=False)
class Cast:
    """Who generates, and from what."""

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    prompt: str
    heads: Mapping[str, Head] = field(default_factory=dict)


class ConsoleStreamer(TextStreamer):
    """Prints text as rounds produce it; into a live view where it is to be replaced at the end."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, screen: Console, live: Live | None) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.screen = screen
        self.live = live
        self.text = ""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.text += text
        if self.live is not None:
            self.live.update(Text(self.text))
        else:
            self.screen.print(Text(text), end="\n" if stream_end else "", soft_wrap=True)


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue. With --pair: its first test problem by default.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The target: a Hub id or a folder.")] = None,
    assistant: Annotated[str | None, typer.Option(help="The draft model: a Hub id or a folder.")] = None,
    pair: Annotated[str | None, typer.Option(help="A bundled pair instead of --model and --assistant.")] = None,
    mode: Annotated[str, typer.Option(help="The rule; of several, with commas between, any may keep.")] = "lossless",
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="A setting, e.g. beta=0.2; of one rule among several: topk.k=2. Repeatable."),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="The trained head of judge or sprinter: a Hub id or a folder; a pair's own by default."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest continuation.")] = 160,
    num_assistant_tokens: Annotated[int, typer.Option(min=1, help="Drafted tokens per round.")] = 8,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens instead of taking the likeliest.")] = False,
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
    lossy_mode, lossy_config = parse_mode(mode), parse_config(config or ())
    if seed is not None:
        lossy_config.setdefault("seed", seed)
        set_seed(seed)
    names = lossy_mode if isinstance(lossy_mode, list) else [lossy_mode]
    users = [name for name in names if name in REGISTRY and head_type(REGISTRY[name]) is not None]
    if head is not None or pair is None or not users:
        parse(lossy_mode, lossy_config, head)  # before any weights are read
    cast = _cast(model, assistant, pair, prompt)
    heads = {name: cast.heads[name] for name in users} if head is None and users else head
    screen = console()
    if prompt is None:
        screen.print(Text(cast.prompt, style="dim"), soft_wrap=True)

    # Marks are known once all is done: till then a terminal shows a preview, anything else nothing.
    live = Live(console=screen, transient=True) if show_acceptance and screen.is_terminal else None
    streamer = ConsoleStreamer(cast.tokenizer, screen, live) if live is not None or not show_acceptance else None
    inputs = cast.tokenizer(cast.prompt, return_tensors="pt").to(cast.target.device)
    with enabled(cast.target), live or contextlib.nullcontext():
        output = cast.target.generate(
            **inputs,
            assistant_model=cast.draft,
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
        screen.print(traced_text(cast.tokenizer, tokens, output.lossy_stats.trace, colour=colour), soft_wrap=True)
    if stats:
        screen.print(stats_table(output.lossy_stats))


def parse_mode(value: str) -> str | list[str]:
    """Turn ``"a"`` into a rule's name, and ``"a,b"`` into a list of them."""
    names = [name.strip() for name in value.split(",")]
    return names[0] if len(names) == 1 else names


def parse_config(items: Iterable[str], option: str = "--config") -> dict[str, Any]:
    """Turn ``KEY=VALUE`` items into a ``lossy_config``; a value is JSON where it can be, else a string.

    Examples
    --------
    >>> parse_config(["beta=0.2", "criterion=naive", "topk.k=2"])
    {'beta': 0.2, 'criterion': 'naive', 'topk': {'k': 2}}
    """
    parsed: dict[str, Any] = {}
    for item in items:
        path, equals, value = item.partition("=")
        *rule, key = path.split(".")
        if not equals or not key or len(rule) > 1:
            raise LossyValueError(f"`{option}` has to be KEY=VALUE or RULE.KEY=VALUE, but is {item!r}")
        settings = parsed.setdefault(rule[0], {}) if rule else parsed
        try:
            settings[key] = json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
    return parsed


def _cast(model: str | None, assistant: str | None, pair: str | None, prompt: str | None) -> Cast:
    if pair is not None:
        if model is not None or assistant is not None:
            raise LossyValueError(
                f"`--pair` {pair!r} brings its own models; leave out `--model` {model!r} `--assistant` {assistant!r}"
            )
        disable_progress_bar()
        bundled = pairs.load(pair)
        question = bundled.task.examples("test", 1)[0].prompt if prompt is None else prompt
        return Cast(bundled.target, bundled.draft, bundled.tokenizer, question, bundled.rule_heads)
    given = {"--model": model, "--assistant": assistant, "PROMPT": prompt}
    missing = [f"`{name}`" for name, value in given.items() if value is None]
    if missing:
        raise LossyValueError(f"{' and '.join(missing)} has to be given; or use `--pair arithmetic`")
    return Cast(
        _load("--model", model, AutoModelForCausalLM),
        _load("--assistant", assistant, AutoModelForCausalLM),
        _load("--model", model, AutoTokenizer),
        prompt,
    )


def _load(option: str, source: str, loader: Any) -> Any:
    placement = {"dtype": "auto", "device_map": "auto"} if loader is AutoModelForCausalLM else {}
    try:
        return loader.from_pretrained(source, **placement)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise LossyValueError(
            f"`{option}` has to be a causal language model on the Hub or in a folder, but is {source!r}: {reason}"
        ) from error
