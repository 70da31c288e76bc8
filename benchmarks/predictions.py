"""Measured acceptance beside its closed form, position by position: ``python -m benchmarks.predictions``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import PreTrainedModel

from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.cli.options import Device, DraftSource, Gamma, TargetSource, Threads
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation import records
from hf_lossy_assist.evaluation.modes import DecodingMode, Models, parse_modes
from hf_lossy_assist.evaluation.requests import PromptBatch, batches_of, run_request
from hf_lossy_assist.theory import ears_acceptance, lossless_acceptance

from . import command
from .theory_studies import acceptance, cactus_divergence

CLOSED_FORMS: Mapping[str, Callable[..., Tensor]] = {
    "lossless": lambda p, q, **settings: lossless_acceptance(p, q),
    "ears": lambda p, q, beta=0.1, **settings: ears_acceptance(p, q, beta),
    "cactus": lambda p, q, delta=0.1, **settings: acceptance("cactus", p, q, delta),
}
"""The probability that a rule keeps a drafted token, from p and q at its position."""


@dataclass(frozen=True)
class Prediction:
    """One rule over all positions at which it decided a drafted token.

    Attributes
    ----------
    label
        The mode.
    positions
        Their number.
    measured, predicted
        Share of the drafted tokens that were kept, and the mean of its closed form over the same positions.
    margin
        1.96 standard deviations of the measured share about the predicted one.
    gain, bound
        The closed form minus the lossless rule's at the same positions, and for EARS the bound on this difference,
        the mean of ``β·(1 - max p)·Q(p < q)``; 0 for others.
    divergence, largest
        For Cactus, mean and largest ``KL(h ‖ p)`` of the distributions h that verified drafted tokens; 0 for others.
    """

    label: str
    positions: int
    measured: float
    predicted: float
    margin: float
    gain: float
    bound: float
    divergence: float = 0.0
    largest: float = 0.0


def predict(
    models: Models, mode: DecodingMode, prompts: Sequence[PromptBatch], max_new_tokens: int = 100
) -> Prediction:
    """Let a rule with a closed form sample, and compare the tokens that it keeps with the closed form.

    The text before a position decides p and q there, so what the rule keeps is a draw with the closed form's
    probability at every position that it judged: all but those of bonus tokens.

    Parameters
    ----------
    models, prompts, max_new_tokens
        As in :func:`~hf_lossy_assist.evaluation.comparison.run_comparison`; batches of one prompt.
    mode
        One that samples, with a rule in :data:`CLOSED_FORMS`.
    """
    settings = mode.settings
    kept: list[bool] = []
    expected, lossless, bounds, divergences, largest = [], [], [], [torch.zeros(1)], 0.0
    for batch in prompts:
        response = run_request(models, mode, batch, max_new_tokens)
        judged = torch.tensor([kind != "bonus" for kind in response.stats.trace])
        kept += [kind.startswith("accepted") for kind in response.stats.trace if kind != "bonus"]
        p, q = (
            distributions_along(model, batch.ids[0], response.rows[0], mode.temperature)[judged]
            for model in (models.target, models.draft)
        )
        expected.append(CLOSED_FORMS[mode.rule](p, q, **settings))
        lossless.append(lossless_acceptance(p, q))
        beta = _beta(mode.rule, settings)
        bounds.append(beta * (1 - p.amax(-1)) * (q * (p < q)).sum(-1))
        if mode.rule == "cactus":
            of_each = cactus_divergence(p.clamp(max=1), settings.get("delta", 0.1))
            divergences.append((q * of_each).sum(-1))  # whichever token was drafted
            largest = max(largest, of_each.max().item())
    alpha = torch.cat(expected)
    return Prediction(
        label=mode.label,
        positions=len(kept),
        measured=sum(kept) / len(kept),
        predicted=alpha.mean().item(),
        margin=1.96 * math.sqrt((alpha * (1 - alpha)).sum().item()) / len(kept),
        gain=(alpha - torch.cat(lossless)).mean().item(),
        bound=torch.cat(bounds).mean().item(),
        divergence=torch.cat(divergences[1:] or divergences).mean().item(),
        largest=largest,
    )


@torch.inference_mode()
def distributions_along(model: PreTrainedModel, prompt: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Return ``(n, V)`` a model's distribution of each of ``tokens``, given the prompt and the tokens before it."""
    ids = torch.cat([prompt, tokens])[None, :-1].to(model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :].double().cpu()
    return (logits / temperature).softmax(-1)


def _beta(rule: str, settings: Mapping[str, Any]) -> float:
    return settings.get("beta", 0.1) if rule == "ears" else 0.0


def main(
    pair: Annotated[str | None, typer.Option(help="A bundled pair; 'arithmetic' unless there is a --model.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder with the pair's `target` and `draft` to use.")] = None,
    model: TargetSource = None,
    assistant: DraftSource = None,
    modes: Annotated[
        str, typer.Option(help="Rules with a closed form: lossless, ears[:beta=B], cactus[:delta=D].")
    ] = "lossless,ears",
    temperature: Annotated[float, typer.Option(help="Temperature of the draws.")] = 0.9,
    gamma: Gamma = 5,
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a response.")] = 160,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first prompt; each prompt's seed is one more.")] = 0,
    threads: Threads = None,
    device: Device = "cpu",
    out: Annotated[Path | None, typer.Option(help="Write all rows to this file, as JSON lines.")] = None,
) -> None:
    """Tabulate how many drafted tokens rules keep, beside their closed forms at the same positions."""
    limit_threads(threads)
    wanted = parse_modes(modes, gamma, temperature)
    if unknown := [mode.label for mode in wanted if mode.rule not in [*CLOSED_FORMS]]:
        raise LossyValueError(f"`--modes` has to name rules out of {[*CLOSED_FORMS]}, but has {unknown}")
    named = ModelOptions(pair if model or pair else "arithmetic", model, assistant, "float32", device, folder)
    named.check()
    loaded, screen = named.load(), Console()
    batches = batches_of(loaded.encode(loaded.examples(prompts)), device=device, seed=seed)
    origin = records.provenance(device, gamma=gamma, prompts=len(batches), temperature=temperature, seed=seed)
    table = Table(title="Acceptance per position (%), measured and predicted from p and q")
    for name in ("mode", "positions", "kept", "closed form", "gain over lossless", "its bound", "KL, mean", "at most"):
        table.add_column(name, justify="left" if name == "mode" else "right")
    with progress(screen) as bar, records.written(out, origin) as write:
        for mode in bar.track(wanted, description="closed forms"):
            row = predict(loaded.models, mode, batches, max_new_tokens)
            write(row)
            table.add_row(
                row.label, str(row.positions), f"{100 * row.measured:.2f}",
                f"{100 * row.predicted:.2f} ± {100 * row.margin:.2f}", f"{100 * row.gain:.3f}",
                f"{100 * row.bound:.3f}", f"{row.divergence:.4f}", f"{row.largest:.4f}",
            )  # fmt: skip
    screen.print(table)


app = command(main)

if __name__ == "__main__":
    app()
