"""``lossy-assist train judge`` and ``lossy-assist train verifier``: heads from labelled hidden states."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ..errors import LossyValueError, need
from .console import Console, figures_table, limit_threads
from .options import AT_LEAST_0, AT_LEAST_1, PairName

if TYPE_CHECKING:
    from ..heads import Head, ModelIdentity

# With fewer important tokens, the standard error of a recall of 0.9 is above 3 points.
_ENOUGH = 100

Out = Annotated[Path, Parameter(help="Folder for the head.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Training:
    """What both kinds of heads share."""

    pair: PairName | None = None
    "The pair that --data was mined with, where the data do not say."
    threads: Annotated[int | None, AT_LEAST_1] = None
    "CPU threads; torch's choice by default."
    seed: Annotated[int, AT_LEAST_0] = 0
    "Seed of every random number."
    license: str | None = None
    "License for the card, as the Hub names it."

    def start(self, out: Path) -> None:
        from transformers.utils.logging import disable_progress_bar

        if there := sorted(path.name for path in out.glob("[!.]*")):
            raise LossyValueError(
                f"`out` has to be a new or an empty folder, but {str(out)!r} has a {there[0]}; choose another folder"
            )
        limit_threads(self.threads)
        disable_progress_bar()


def judge(
    *,
    out: Out,
    data: Annotated[
        list[Path],
        Parameter(help="Folder that `lossy-assist mine` wrote. Repeatable: other prompts of the same task and models."),
    ],
    model: Annotated[
        str | None, Parameter(help="The target, a folder or a Hub id, where --data was mined through an API.")
    ] = None,
    features: Annotated[
        Literal["draft", "previous", "both"] | None,
        Parameter(
            help="The state that has read the drafted token, the one that predicted it, or both; by default the better "
            "of the two, out of fold."
        ),
    ] = None,
    recall: Annotated[float, Parameter(help="Share of important tokens that the threshold has to find.")] = 0.9,
    training: Training = Training(),
) -> None:
    """Train a judge head, which tells whether a mismatch matters for the answer (AutoJudge).

    The head is a logistic regression on standardised hidden states, fitted to
    all prompts. Its figures and thresholds are out of fold: each prompt is
    judged by a classifier that has not seen it.
    """
    need("lab", "`lossy-assist train judge`")
    from ..training import head_training
    from ..training.examples import read_together

    training.start(out)
    settings = head_training.JudgeSettings(features, recall, seed=training.seed)
    # A target behind an API has no weights here, so its configuration is enough.
    labelled = read_together(data, model and _identity_of(model))
    origin = labelled.origin.with_card(training.license, training.pair)
    trained = head_training.train_judge(labelled.examples, origin, settings)
    trained.save(out)
    _describe(trained.head, out, labelled.origin.data["settings"])
    if (few := int(labelled.examples.labels.sum())) < _ENOUGH:
        note = f"note: the threshold depends on only {few} important tokens; mine more prompts"
        Console().print(note, style="yellow")


def _identity_of(model: str) -> ModelIdentity:
    """Return a model's identity from its configuration; weights may be many gigabytes."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from ..compat.models import load_errors
    from ..heads import ModelIdentity

    with load_errors("`--model`", model):
        config = AutoConfig.from_pretrained(model)
    with torch.device("meta"):
        return ModelIdentity.of(AutoModelForCausalLM.from_config(config))


def verifier(
    *,
    out: Out,
    data: Annotated[Path, Parameter(help="Folder that `lossy-assist mine --labels ratio` wrote.")],
    ratio: Annotated[
        float, Parameter(name="--lambda", help="A token is acceptable iff q/p is at most this: 1, 1.2, 1.5, ….")
    ] = 1.0,
    recall: Annotated[
        float | None, Parameter(help="Share of acceptable tokens that the threshold has to commit; else it is 0.5.")
    ] = None,
    training: Training = Training(),
) -> None:
    """Train a verifier head, which tells whether a drafted token needs the target's check (SPRINTER).

    The head is a logistic regression on the draft's standardised hidden state,
    fitted to all prompts. Its figures and thresholds are out of fold: each
    prompt is judged by a head that has not seen it. The plot in OUT shows its
    ROC curve.
    """
    need("lab", "`lossy-assist train verifier`")
    from ..training.examples import read_ratios
    from ..training.head_training import VerifierSettings, train_verifier

    training.start(out)
    settings = VerifierSettings(ratio, recall, seed=training.seed)
    ratios, origin = read_ratios(data)
    trained = train_verifier(ratios, origin.with_card(training.license, training.pair), settings)
    trained.save(out)
    _describe(trained.head, out, origin.data["settings"])


def _describe(head: Head, out: Path, mined: Mapping[str, Any]) -> None:
    """Print a head's thresholds and their effects, with the chosen one marked, the figures of its card, and a command.

    That names the task as it was named when the labels were ``mined``, and a file where they came from one.
    """
    from ..evaluation.tables import percent, table

    config, screen = head.config, Console()
    _, *shares = (field.name for field in fields(config.thresholds[0]))
    columns = {
        "threshold": lambda row: f"{row.threshold:.6g}" + " ←" * (row.threshold == config.threshold),
        **{f"{name} (%)": lambda row, name=name: percent(getattr(row, name), 1) for name in shares},
    }
    screen.print(table(config.thresholds, columns, "Thresholds, out of fold"))
    screen.print(figures_table({name.strip("`"): value for name, value in config.figures.items()}))
    data, others = (" --data FILE", ", on other prompts in a FILE") if mined.get("data") else ("", "")
    screen.print(
        f"Reads {config.reads}; threshold {config.threshold:.6g}. Saved in {out}; this measures it{others}:",
        soft_wrap=True,
    )
    pair = config.provenance.get("pair")
    models = f"--pair {pair}" if pair else f"--model {config.target.name} --assistant {config.draft.name}"
    named = mined.get("named") or (None if pair == config.task else config.task)
    task = f" --task {named}{data}" if named else ""
    modes = f"plain,lossless,{config.rule}"
    screen.print(f"lossy-assist evaluate {models}{task} --modes {modes} --head {shlex.quote(str(out))}", soft_wrap=True)
