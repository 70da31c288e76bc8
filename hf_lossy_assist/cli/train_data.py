"""What the options of ``lossy-assist train`` name: labelled states, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from .. import pairs
from ..errors import LossyValueError
from ..heads.judge_head import MODELS
from .console import progress
from .models import ModelOptions, identity_of

if TYPE_CHECKING:
    from ..training.mined import Judged
    from ..training.provenance import Origin


@dataclass(frozen=True)
class Labels:
    """Where labels of mismatches come from; see the command's help."""

    data: Path | None
    annotations: Path | None
    model: str | None
    assistant: str | None
    task: str | None
    device: str | None
    pair: str | None

    def check(self) -> None:
        """Refuse what does not go together, before anything is loaded."""
        if (self.data is None) == (self.annotations is None):
            raise LossyValueError("either `--data` or `--annotations` has to be given, and not both")
        models = {"--model": self.model, "--assistant": self.assistant}
        named = [name for name, value in models.items() if value is not None]
        if self.data is not None:
            others = {"--assistant": self.assistant, "--task": self.task, "--device": self.device}
            if given := [name for name, value in others.items() if value is not None]:
                raise LossyValueError(f"{', '.join(given)} can't be given with `--data`, which knows all that itself")
        elif (self.pair is None) == (not named) or len(named) == 1:
            raise LossyValueError(
                "with `--annotations`, `--model` and `--assistant` have to be given, or `--pair` instead, but got "
                f"{named + ['--pair'] * (self.pair is not None) or 'none of them'}"
            )

    def read_mined(self, columns: Sequence[str] | None) -> Judged:
        """Read what was mined; of a target that was behind an API, its configuration has to do."""
        from ..training.mined import read_judged

        return read_judged(self.data, columns, self.model and identity_of("--model", self.model))


def from_annotations(labels: Labels, columns: Sequence[str] | None, screen: Console) -> Judged:
    """Read annotated responses with the models that the options name, and keep the states that are wanted."""
    from ..training.annotations import annotated_examples, origin_of, read_annotations
    from ..training.mined import Judged

    annotations = read_annotations(labels.annotations)
    loaded = ModelOptions(labels.pair, labels.model, labels.assistant, device=labels.device).load()
    models, tokenizer = loaded.by_role, loaded.tokenizer
    origin = origin_of(labels.annotations, annotations, models, labels.task or labels.annotations.stem)
    read = {role: models[role] for role in MODELS if columns is None or any(c.startswith(f"{role}_") for c in columns)}
    with progress(screen) as bar:
        task = bar.add_task("responses", total=len(annotations))
        show = {"on_annotation": lambda done: bar.update(task, completed=done)}
        return Judged(annotated_examples(annotations, tokenizer, read, **show), None, origin)


def carded(origin: Origin, pair: str | None, license: str | None) -> Origin:
    """Return an origin with what a model card is to say besides.

    Raises
    ------
    LossyValueError
        When the bundled pair is not what the data come from.
    """
    card: dict[str, Any] = {} if license is None else {"license": license}
    if pair is not None:
        loaded = pairs.load(pair)
        for role, identity, model in (("target", origin.target, loaded.target), ("draft", origin.draft, loaded.draft)):
            if found := identity.differences(model):
                raise LossyValueError(
                    f"`--pair` has to be the pair that the data come from, but of the {role} of {pair!r}, "
                    f"{'; '.join(found)}"
                )
        card["pair"] = pair
    return replace(origin, card=card)
