"""``lossy-assist acceptance``: how much of a draft every rule keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..evaluation import records
from ..evaluation.acceptance import Acceptance, measure
from ..evaluation.modes import Models, usual_modes
from ..evaluation.requests import batches_of
from ..heads import VerifierHead
from .console import console, limit_threads, progress
from .models import ModelOptions, load_model
from .options import Device, DraftSource, FirstSeed, Gamma, PairInstead, RowsFile, TargetSource, Threads
from .rendering import Column, number, percent, table

_LEGEND = (
    "kept: drafted tokens kept per round; lossy: share of those that the lossless rule would have "
    "rejected. The text that came out, judged by the target: log p per token in nats; top 1: share of tokens that "
    "are its likeliest; same: share of its own greedy text up to the first difference; ROUGE-L against it. Calls "
    "of the target per 100 tokens; run: tokens that SPRINTER commits before it asks."
)


def acceptance(
    model: TargetSource = None,
    assistant: DraftSource = None,
    pair: PairInstead = None,
    prompts: Annotated[
        Path | None, typer.Option(help="One prompt a line; openings of stories, or the pair's problems, by default.")
    ] = None,
    verifier_head: Annotated[
        str | None, typer.Option(help="A verifier head, a folder or a Hub id: SPRINTER at several thresholds too.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many prompts at most.")] = 20,
    gamma: Gamma = 5,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length of each response.")] = 100,
    temperature: Annotated[float, typer.Option(help="Of the sampled runs, beside the greedy ones; 0 for none.")] = 0.9,
    seed: FirstSeed = 0,
    threads: Threads = None,
    device: Device = "cpu",
    out: RowsFile = None,
) -> None:
    """Run every rule, greedily and sampling, and show what it keeps and how likely the target finds the result.

    Models run in float32. With both --pair and --assistant, the draft is not the pair's.
    """
    limit_threads(threads)
    options = ModelOptions(pair, model, assistant if pair is None else None, "float32", device)
    options.check()
    loaded = options.load().asked("--prompts", prompts)
    draft = loaded.draft
    if pair is not None and assistant is not None:
        draft = load_model("--assistant", assistant, "float32", device)
    heads = {}
    if verifier_head is not None:
        heads["sprinter"] = VerifierHead.from_pretrained(verifier_head).to(device)
    temperatures = [None] if temperature == 0 else [None, temperature]
    modes = [mode for one in temperatures for mode in usual_modes(heads, gamma, one, every_setting=True)]
    examples, screen = loaded.examples(count), console()
    texts = [example.prompt for example in examples]
    origin = records.provenance(device, gamma=gamma, max_new_tokens=max_new_tokens, seed=seed, prompts=texts)
    rows = measure(
        Models(loaded.target, draft, heads), modes, batches_of(loaded.encode(examples), device=device, seed=seed),
        max_new_tokens, decode=lambda tokens: loaded.tokenizer.decode(tokens, skip_special_tokens=True),
    )  # fmt: skip
    measured = []
    with progress(screen) as bar, records.written(out, origin) as write:
        for row in bar.track(rows, total=len(modes) + 2 * len(temperatures), description="rules"):
            write(row)
            measured.append(row)
    for one in temperatures:
        screen.print(acceptance_table(measured, one))
    screen.print(_LEGEND, style="dim")


def acceptance_table(rows: Sequence[Acceptance], temperature: float | None) -> Table:
    """Lay out the rows of one temperature."""
    columns: dict[str, Column] = {
        "rule": lambda row: f"{row.mode} {', '.join(f'{key}={value}' for key, value in row.config.items())}".strip(),
        "mean\nkept": lambda row: number(row.mean_accepted),
        "lossy\n(%)": lambda row: percent(row.accepted_lossy),
        "log p": lambda row: f"{row.log_likelihood:.3f}",
        "top 1\n(%)": lambda row: percent(row.likeliest),
        "same\n(%)": lambda row: percent(row.greedy_prefix),
        "ROUGE\nL": lambda row: number(row.rouge),
        "calls/\n100": lambda row: number(row.target_calls_per_100_tokens),
        "run": lambda row: number(row.mean_run),
    }
    title = "greedy" if temperature is None else f"temperature {temperature:g}"
    shown = [row for row in rows if row.temperature == temperature]
    return table(shown, columns, f"{rows[0].prompts} prompts, {title}")
