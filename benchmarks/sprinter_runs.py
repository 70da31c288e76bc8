"""``python -m benchmarks.sprinter_runs FOLDER``: how long SPRINTER's runs are, beside theorem 2, and what they cost.

A run is what a verifier commits before the target is asked. The theorem takes the shares of the acceptable and of the
other tokens that the head commits, out of fold, and how many acceptable tokens come first: here a geometric number.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from hf_lossy_assist.acceptors.sprinter import Sprinter
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation.answers import Answer, by_mode, load_answers
from hf_lossy_assist.evaluation.quality import interval
from hf_lossy_assist.heads import VerifierConfig, VerifierHead
from hf_lossy_assist.tasks.plain_prompts import rouge_l
from hf_lossy_assist.theory import sprinter_expected_run_length

from . import command
from .kept_answers import whole_text

_LEAST = 1e-9
_NEAR = 1e-4
_SIGNED, _PLAIN = "{:+.3f} ({:+.3f} … {:+.3f})", "{:.3f} ({:.3f} … {:.3f})"
_RUN = "{:.2f} ({:.2f} … {:.2f})"


def expected_run(tpr: float, fpr: float, acceptable: float, most: int) -> float:
    """Return theorem 2's mean over r, with ``P(r) = (1 - acceptable) acceptable^r`` and at most ``most`` tokens.

    Examples
    --------
    >>> round(expected_run(1.0, 0.0, 0.75, 63), 6)  # a perfect verifier commits what is acceptable: 0.75 / 0.25
    3.0
    >>> round(expected_run(0.5, 0.5, 0.9, 63), 6)  # a coin does not look
    1.0
    """
    mean, r, share = 0.0, 0, 1 - acceptable
    while share > _LEAST:
        mean += share * sprinter_expected_run_length(tpr, fpr, r, most)
        r, share = r + 1, share * acceptable
    return mean


def table(folder: Path, config: VerifierConfig) -> str:
    """Return the table of a folder of ``evaluate``, whose modes ask the head at thresholds of its own table.

    Differences are from the reference, and ROUGE-L is of a mode's text against the reference's.
    """
    plan, answers = load_answers(folder)
    modes = by_mode(answers)
    reference, measured = modes[plan["reference"]], plan["measure"]
    headings = (
        "rule", "n", "TPR, %", "FPR, %", "tokens a run, predicted", "seen", "calls per 100 tokens", measured,
        "difference", "ROUGE-L",
    )  # fmt: skip
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    for label, own in modes.items():
        mode = plan["modes"][label]
        tokens, rounds = (sum(getattr(one, name) for one in own.values()) for name in ("tokens", "rounds"))
        run = [""] * 4
        if mode.get("lossy_mode") == "sprinter":
            settings = {"threshold": config.threshold, "max_draft": Sprinter.max_draft, **mode["lossy_config"]}
            row = min(config.thresholds, key=lambda row: abs(row.threshold - settings["threshold"]))
            if abs(row.threshold - settings["threshold"]) > _NEAR:
                raise LossyValueError(f"`head` says nothing of the threshold of {label!r}; it has {config.thresholds}")
            # The target adds a token to every run.
            most = settings["max_draft"] - 1
            counts = [(one.tokens, one.rounds) for one in own.values()]
            seen = interval(counts, lambda sums: sums[..., 0] / sums[..., 1] - 1, log=True)
            expected = expected_run(row.tpr, row.fpr, config.metrics["acceptable_share"], most)
            run = [f"{100 * row.tpr:.0f}", f"{100 * row.fpr:.1f}", f"{expected:.2f}", _RUN.format(*seen)]
        cells = [
            f"`{label}`", f"{len(own)}", *run, f"{100 * rounds / tokens:.1f}" if rounds else "",
            f"{fmean(one.score for one in own.values()):.3f}",
            *(("", "") if own is reference else _beside(own, reference)),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _beside(own: Mapping[int, Answer], reference: Mapping[int, Answer]) -> tuple[str, str]:
    scores = [one.score - reference[i].score for i, one in own.items()]
    apart = (fmean(scores), *interval([1.0, -1.0, *scores])[1:])
    rouge = interval([rouge_l(whole_text(one), whole_text(reference[i])) for i, one in own.items()])
    return _SIGNED.format(*apart), _PLAIN.format(*rouge)


def main(
    folder: Annotated[Path, typer.Argument(help="A folder of `evaluate`, with drawn texts.")],
    head: Annotated[Path, typer.Argument(help="The folder of the verifier that it used.")],
) -> None:
    """Print the length of the runs of a verifier, what theorem 2 says, and what the texts are worth."""
    typer.echo(table(folder, VerifierHead.from_pretrained(head).config))


app = command(main)

if __name__ == "__main__":
    app()
