"""``python -m benchmarks.acceptance``: how much of a draft every rule keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks import command
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.cli.options import (
    Device,
    DraftSource,
    Dtype,
    FirstSeed,
    Gamma,
    PairInstead,
    PromptFile,
    RowsFile,
    TargetSource,
    Threads,
)
from hf_lossy_assist.core.statistics import joined
from hf_lossy_assist.evaluation import records
from hf_lossy_assist.evaluation.measures import score_text
from hf_lossy_assist.evaluation.modes import DRAFT_ALONE, DecodingMode, Models, usual_modes
from hf_lossy_assist.evaluation.requests import PromptBatch, batches_of, run_request
from hf_lossy_assist.evaluation.tables import Column, number, percent, table
from hf_lossy_assist.heads import VerifierHead
from hf_lossy_assist.tasks.plain_prompts import rouge_l

VARIANTS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "dropmatch": ({"criterion": "naive"},),
    "topk": ({"k": 5, "tolerance": 1.0},),
    "thresholds": ({"threshold_single": 0.3, "threshold_acc": 0.8},),
    "sprinter": tuple({"threshold": threshold} for threshold in (0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.9)),
}
"""Published or usual settings besides each rule's ``usual`` one."""

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
    prompts: PromptFile = None,
    verifier_head: Annotated[
        str | None, typer.Option(help="A verifier head, a folder or a Hub id: adds SPRINTER at several thresholds.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many prompts at most.")] = 20,
    gamma: Gamma = 5,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length of each response.")] = 100,
    temperature: Annotated[float, typer.Option(help="Temperature of the sampled runs; 0 for greedy ones only.")] = 0.9,
    seed: FirstSeed = 0,
    threads: Threads = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    out: RowsFile = None,
) -> None:
    """Run every rule, greedily and sampling, and show what it keeps and how likely the target finds the result.

    With both --pair and --assistant, the draft is not the pair's.
    """
    limit_threads(threads)
    options = ModelOptions(pair, model, assistant, dtype, device)
    options.check()
    loaded = options.load().asked("--prompts", prompts)
    heads = {}
    if verifier_head is not None:
        heads["sprinter"] = VerifierHead.from_pretrained(verifier_head).to(device)
    temperatures = [None] if temperature == 0 else [None, temperature]
    modes = [mode for one in temperatures for mode in usual_modes(heads, gamma, one, VARIANTS)]
    examples, screen = loaded.examples(count), Console()
    texts = [example.prompt for example in examples]
    origin = records.provenance(
        device,
        dtype=str(loaded.target.dtype).removeprefix("torch."),
        gamma=gamma,
        max_new_tokens=max_new_tokens,
        seed=seed,
        prompts=texts,
    )
    put = batches_of(loaded.encode(examples), device=device, seed=seed)
    rows = measure(
        Models(loaded.target, loaded.draft, heads), modes, put, max_new_tokens,
        decode=lambda tokens: loaded.tokenizer.decode(tokens, skip_special_tokens=True),
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


@dataclass(frozen=True)
class Acceptance:
    """The results of one mode over all prompts."""

    # The rule and its settings; ``"target alone"`` and ``"draft alone"`` are plain generation.
    mode: Any
    config: Mapping[str, Any]
    temperature: float | None  # None for greedy decoding
    # Number of responses, and of tokens in all of them.
    prompts: int
    tokens: int
    # Drafted tokens kept, and tokens emitted, per round. These and the next two are None for plain generation.
    mean_accepted: float | None
    tokens_per_round: float | None
    acceptance_rate: float | None  # share of the drafted tokens that were kept
    accepted_lossy: float | None  # share of the kept tokens that the lossless rule would have rejected
    log_likelihood: float  # mean log p per generated token, in nats, under the target without any warper
    likeliest: float  # share of the generated tokens that are the target's likeliest one after the text before them
    # Tokens before the first difference from the target's own greedy response, as a share of
    # its length; mean over the prompts.
    greedy_prefix: float
    # ROUGE-L (F) of the response against the target's own greedy one, mean over the prompts; None without a tokenizer.
    rouge: float | None
    target_calls_per_100_tokens: float | None
    tokens_per_second: float
    mean_run: float | None  # tokens per run ahead of the target, for SPRINTER


def measure(
    models: Models,
    modes: Sequence[DecodingMode],
    prompts: Sequence[PromptBatch],
    max_new_tokens: int = 100,
    *,
    decode: Callable[[Tensor], str] | None = None,
) -> Iterator[Acceptance]:
    """Answer every prompt in every mode; at each temperature, target and draft alone come first.

    ``decode`` turns tokens ``(n,)`` into text, for ROUGE. A batch of ``prompts`` has one prompt.
    """
    target = models.target
    greedy = [run_request(models, DecodingMode(), prompt, max_new_tokens).rows[0] for prompt in prompts]

    def row(mode: DecodingMode) -> Acceptance:
        responses = [run_request(models, mode, prompt, max_new_tokens) for prompt in prompts]
        texts = [(response.rows[0], own) for response, own in zip(responses, greedy, strict=True)]
        scored = [score_text(target, prompt.ids[0], text) for prompt, (text, _) in zip(prompts, texts, strict=True)]
        log_p = torch.cat([log_p for log_p, _ in scored])
        stats = joined([response.stats for response in responses]) if mode.rule is not None else None
        return Acceptance(
            mode=mode.rule or mode.label,
            config=dict(mode.settings),
            temperature=mode.temperature,
            prompts=len(responses),
            tokens=len(log_p),
            mean_accepted=stats and stats.mean_accepted,
            tokens_per_round=stats and stats.tokens_per_round,
            acceptance_rate=stats and stats.acceptance_rate,
            accepted_lossy=stats and stats.accepted_lossy / max(1, stats.accepted),
            log_likelihood=log_p.double().mean().item(),
            likeliest=torch.cat([likeliest for _, likeliest in scored]).double().mean().item(),
            greedy_prefix=sum(common_prefix(text.to(own.device), own) / len(own) for text, own in texts) / len(texts),
            rouge=decode and sum(rouge_l(decode(text), decode(own)) for text, own in texts) / len(texts),
            target_calls_per_100_tokens=stats and stats.target_calls_per_100_tokens,
            tokens_per_second=len(log_p) / sum(response.seconds for response in responses),
            mean_run=stats.mean_run if stats and stats.runs else None,
        )

    for temperature in dict.fromkeys(mode.temperature for mode in modes):
        yield row(DecodingMode(temperature=temperature))
        yield row(DecodingMode(DRAFT_ALONE, temperature=temperature, answers="draft"))
        yield from (row(mode) for mode in modes if mode.temperature == temperature)


def common_prefix(a: Tensor, b: Tensor) -> int:
    """Return how many tokens two texts share from the beginning."""
    n = min(len(a), len(b))
    return int((a[:n] == b[:n]).long().cumprod(0).sum())


app = command(acceptance)

if __name__ == "__main__":
    app()
