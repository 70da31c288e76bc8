"""``lossy-assist acceptance``: how much of a draft every rule keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from .. import pairs
from ..bench import records
from ..bench.acceptance import Acceptance, measure, settings, sprinter_settings
from ..bench.made_drafts import drop_layers, round_weights
from ..bench.prompts import STORY_OPENINGS
from ..bench.runs import tokenize
from ..errors import LossyValueError
from ..heads import VerifierHead
from .console import console, limit_threads, progress
from .options import numbers, pretrained

_LEGEND = (
    "kept: drafted tokens kept per round; lossy: share of those that the lossless rule would have "
    "rejected. The text that came out, judged by the target: log p per token in nats; top 1: share of tokens that "
    "are its likeliest; same: share of its own greedy text up to the first difference; ROUGE-L against it. Calls "
    "of the target per 100 tokens; run: tokens that SPRINTER commits before it asks; foretold: by its theorem 2."
)


def acceptance(
    model: Annotated[str | None, typer.Option(help="The target: a folder or a Hub id.")] = None,
    assistant: Annotated[str | None, typer.Option(help="The draft: a folder or a Hub id.")] = None,
    draft_layers: Annotated[
        str | None, typer.Option(help="Make the draft of these layers of the target, e.g. 0,2,4.")
    ] = None,
    draft_bits: Annotated[
        int | None, typer.Option(help="Make the draft of the target with linear weights of so many bits.")
    ] = None,
    pair: Annotated[str | None, typer.Option(help="A bundled pair instead of --model.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="One prompt a line; openings of stories, or the pair's problems, by default.")
    ] = None,
    verifier_head: Annotated[
        str | None, typer.Option(help="A verifier head, a folder or a Hub id: SPRINTER at several thresholds too.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many prompts at most.")] = 20,
    gamma: Annotated[int, typer.Option(min=1, help="Drafted tokens per round.")] = 5,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length of each response.")] = 100,
    temperature: Annotated[float, typer.Option(help="Of the sampled runs, beside the greedy ones; 0 for none.")] = 0.9,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first prompt; the next has the next one.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's choice by default.")] = None,
    device: Annotated[str, typer.Option(help="Where both models run.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Write all rows to this file, as JSON lines.")] = None,
) -> None:
    """Run every rule, greedily and sampling, and show what it keeps and how likely the target finds the result.

    Models run in float32. The draft is --assistant, or made from the target: some of its layers, or rounded weights.
    """
    limit_threads(threads)
    target, draft, tokenizer, texts = _load(model, assistant, draft_layers, draft_bits, pair, device, count)
    if prompts is not None:
        texts = [line for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not texts:
            raise LossyValueError(f"`--prompts` has to hold one prompt a line, but {str(prompts)!r} has none")
    texts = texts[:count]
    temperatures = [None] if temperature == 0 else [None, temperature]
    wanted = settings(temperatures)
    if verifier_head is not None:
        wanted += sprinter_settings(VerifierHead.from_pretrained(verifier_head).to(device), temperatures)
    plain = 2 * len({setting.temperature for setting in wanted})
    screen = console()
    origin = records.provenance(device, gamma=gamma, max_new_tokens=max_new_tokens, seed=seed, prompts=texts)
    ids = tokenize(tokenizer, texts, target.device)
    rows = measure(
        target, draft, ids, wanted, gamma=gamma, max_new_tokens=max_new_tokens, seed=seed,
        decode=lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True),
    )  # fmt: skip
    measured = []
    with progress(screen) as bar, records.written(out, origin) as write:
        for row in bar.track(rows, total=len(wanted) + plain, description="rules"):
            write(row)
            measured.append(row)
    for one in dict.fromkeys(row.temperature for row in measured):
        screen.print(acceptance_table(measured, one))
    screen.print(_LEGEND, style="dim")


def _load(
    model: str | None,
    assistant: str | None,
    draft_layers: str | None,
    draft_bits: int | None,
    pair: str | None,
    device: str,
    count: int,
) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase, Sequence[str]]:
    drafts = {"--assistant": assistant, "--draft-layers": draft_layers, "--draft-bits": draft_bits}
    given = [name for name, value in drafts.items() if value is not None]
    if (model is None) == (pair is None):
        raise LossyValueError("either `--model` or `--pair` has to be given, and not both")
    if len(given) > 1 or (model is not None and not given):
        raise LossyValueError(f"one of {list(drafts)} has to be given with `--model`, but got {given or 'none'}")
    layers = None if draft_layers is None else numbers("--draft-layers", draft_layers, int)
    if pair is not None:
        loaded = pairs.load(pair, device=device)
        target, draft, tokenizer = loaded.target, loaded.draft, loaded.tokenizer
        texts = [example.prompt for example in loaded.task.examples("test", count)]
    else:
        target = draft = _model("--model", model, device)
        tokenizer, texts = pretrained("--model", model, AutoTokenizer), STORY_OPENINGS
    if assistant is not None:
        draft = _model("--assistant", assistant, device)
    if layers is not None:
        draft = drop_layers(target, layers)
    if draft_bits is not None:
        draft = round_weights(target, draft_bits)
    return target, draft, tokenizer, texts


def _model(option: str, source: str, device: str) -> PreTrainedModel:
    return pretrained(option, source, AutoModelForCausalLM, dtype=torch.float32).to(device).eval()


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _label(row: Acceptance) -> str:
    config = ", ".join(f"{key}={value}" for key, value in row.config.items())
    return f"{row.mode} {config}".strip()


def acceptance_table(rows: Sequence[Acceptance], temperature: float | None) -> Table:
    """Lay out the rows of one temperature."""
    columns: dict[str, Callable[[Acceptance], str]] = {
        "rule": _label,
        "mean\nkept": lambda row: _number(row.mean_accepted),
        "lossy\n(%)": lambda row: _percent(row.accepted_lossy),
        "log p": lambda row: f"{row.log_likelihood:.3f}",
        "top 1\n(%)": lambda row: _percent(row.likeliest),
        "same\n(%)": lambda row: _percent(row.greedy_prefix),
        "ROUGE\nL": lambda row: _number(row.rouge),
        "calls/\n100": lambda row: _number(row.target_calls_per_100_tokens),
        "run": lambda row: _number(row.mean_run),
        "fore-\ntold": lambda row: _number(row.foretold_run),
    }
    title = "greedy" if temperature is None else f"temperature {temperature:g}"
    table = Table(title=f"{rows[0].prompts} prompts, {title}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        is_rule = name == "rule"
        table.add_column(
            name, justify="left" if is_rule else "right", no_wrap=not is_rule, overflow="fold",
            min_width=14 if is_rule else None,
        )  # fmt: skip
    for row in rows:
        if row.temperature == temperature:
            table.add_row(*(column(row) for column in columns.values()))
    return table
