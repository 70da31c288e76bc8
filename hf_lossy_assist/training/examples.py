"""Labelled hidden states and their origin: in memory, and from folders of ``lossy-assist mine``."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import pairs
from ..compat.models import versions_of
from ..errors import LossyValueError
from ..heads import ModelIdentity, columns
from ..heads.identity import differing_models
from ..store.folder import command_line, without_folders
from ..version import __version__
from .labelling import Mined, load_mined


@dataclass(frozen=True, eq=False)
class Examples:
    """Hidden states of N tokens, each with a label and its prompt.

    ``states`` are ``(N, d)`` arrays by name. The head predicts the probability of a True label; ``classes`` names False
    and True in words. A split keeps the tokens of one prompt together. A token stands for ``weights`` ``(N,)`` of its
    prompt's tokens, by default for itself.
    """

    states: Mapping[str, NDArray[np.float32]]
    labels: NDArray[np.bool_]
    prompts: NDArray[np.int64]
    classes: tuple[str, str] = ("unimportant", "important")
    weights: NDArray[np.floating] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.weights is None:
            object.__setattr__(self, "weights", np.ones(len(self.labels)))

    def __len__(self) -> int:
        return len(self.labels)

    def features(self, columns: Sequence[str]) -> NDArray[np.float32]:
        """Return the chosen states ``(N, d)`` side by side."""
        if len(columns) == 1:
            return self.states[columns[0]]
        return np.concatenate([self.states[name] for name in columns], axis=1)

    def only(self, columns: Sequence[str]) -> Examples:
        return replace(self, states={name: self.states[name] for name in columns})

    def counts(self) -> dict[str, float]:
        return {
            "prompts": len(np.unique(self.prompts)),
            "tokens": len(self),
            f"{self.classes[1]}_share": float(np.average(self.labels, weights=self.weights)),
        }


def joined(parts: Sequence[Examples]) -> Examples:
    """Return the examples of several data with different prompts, and the states that all of them have."""
    starts = np.cumsum([0, *(part.prompts.max(initial=-1) + 1 for part in parts)])
    rows = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("labels", "weights")}
    return Examples(
        {x: np.concatenate([y.states[x] for y in parts]) for x in parts[0].states if all(x in y.states for y in parts)},
        prompts=np.concatenate([part.prompts + start for part, start in zip(parts, starts, strict=False)]),
        classes=parts[0].classes,
        **rows,
    )


def check_finite(examples: Examples) -> None:
    """Refuse states that no head can be trained on."""
    for name, state in examples.states.items():
        if broken := int((~np.isfinite(state)).any(axis=1).sum()):
            raise LossyValueError(
                f"`data` has to be finite, but the column {name!r} has NaN or infinite values in {broken} of "
                f"{len(examples)} tokens; mine again, in float32 if half precision overflowed"
            )


@dataclass(frozen=True, eq=False)
class Ratios:
    """Drafted tokens with their probabilities under target (p) and draft (q), which decide their labels.

    ``states`` are the draft's, by position.
    """

    states: Mapping[str, NDArray[np.float32]]
    p: NDArray[np.floating]
    q: NDArray[np.floating]
    prompts: NDArray[np.int64]

    def labelled(self, ratio: float) -> Examples:
        """Label tokens as acceptable where ``q(x) <= λ p(x)`` and ``p(x) > 0``."""
        labels = (self.q <= ratio * self.p) & (self.p > 0)
        return Examples(self.states, labels, self.prompts, ("unacceptable", "acceptable"))


RATIO_STATES = {"previous": "previous", "token": "token_state"}
"""The columns of the states that accompany SPRINTER's labels, by position."""

_COMMANDS = {"judge": "train judge", "ratio": "train verifier"}


@dataclass(frozen=True)
class Origin:
    """The models, the task and the data that labelled states come from.

    ``card`` has further entries of the provenance for the model card, such as ``license`` or ``pair``.
    """

    target: ModelIdentity
    draft: ModelIdentity
    task: str
    data: Mapping[str, Any] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)

    def with_card(self, license: str | None, pair: str | None) -> Origin:
        """Add a license and the name of a pair for the card, by default that of the data; refuse one of other data."""
        if pair is not None:
            loaded = pairs.load(pair)
            if found := differing_models(vars(self), {"target": loaded.target, "draft": loaded.draft}):
                raise LossyValueError(
                    f"`pair` has to be the pair that the data come from, but {pair!r} differs: {'; '.join(found)}"
                )
        mined = (run["pair"] for run in self.data.get("runs", ()) if run.get("pair"))
        card = {"license": license, "pair": pair or next(mined, None)}
        return replace(self, card={name: value for name, value in card.items() if value is not None})

    def config_fields(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a head's configuration about its models, its task and its training."""
        versions = {"hf_lossy_assist": __version__, "Python": platform.python_version()}
        record = {
            **self.card,
            "argv": command_line(),
            "versions": versions | versions_of("torch", "transformers", "scikit-learn", "numpy"),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "data": self.data,
            "training": settings,
        }
        # As JSON reads it, so that a loaded head equals the saved one.
        provenance = without_folders(json.loads(json.dumps(record)))
        return {"target": self.target, "draft": self.draft, "task": self.task, "provenance": provenance}


@dataclass(frozen=True, eq=False)
class LabelledMismatch:
    """AutoJudge's labels and their origin; ``texts`` are the labelled prompts, as far as they are known."""

    examples: Examples
    origin: Origin
    texts: frozenset[str] = frozenset()


def read_together(folders: Sequence[str | Path], target: ModelIdentity | None = None) -> LabelledMismatch:
    """Read AutoJudge's labels of several folders, with different prompts of one task and one pair of models."""
    parts = [read_judged(folder, target) for folder in folders]
    first, seen = parts[0].origin, dict[str, str | Path]()  # the folder of each prompt
    for folder, part in zip(folders, parts, strict=True):
        if both := [seen[text] for text in part.texts if text in seen]:
            raise LossyValueError(
                f"`data` has to have other prompts in each folder, or a head would be measured on prompts that it has "
                f"seen, but {str(folder)!r} and {str(both[0])!r} have {len(both)} in common"
            )
        seen |= dict.fromkeys(part.texts, folder)
        if (part.origin.target, part.origin.draft, part.origin.task) != (first.target, first.draft, first.task):
            raise LossyValueError(
                f"`data` has to be of one task and one pair of models, but {str(folder)!r} differs from "
                f"{str(folders[0])!r}; train a head for each"
            )
    if len(parts) == 1:
        return parts[0]
    data = {**first.data, "others": [part.origin.data for part in parts[1:]]}
    return LabelledMismatch(joined([part.examples for part in parts]), replace(first, data=data))


def read_judged(folder: str | Path, target: ModelIdentity | None = None) -> LabelledMismatch:
    """Read AutoJudge's labels with all states; ``target`` completes data whose target was behind an API."""
    mined = _load(folder, "judge")
    states = [name for name in columns("both", "both") if name in mined.tokens]
    table = _arrays(mined, ["prompt_id", "important", "weight", *states])
    examples = Examples(
        {name: table[name] for name in states}, table["important"].astype(bool), table["prompt_id"],
        weights=table["weight"].astype(np.float64),
    )  # fmt: skip
    return LabelledMismatch(examples, _origin(mined, folder, target), frozenset(row.prompt for row in mined.prompts))


def read_ratios(folder: str | Path) -> tuple[Ratios, Origin]:
    """Read SPRINTER's probabilities with the draft's states."""
    mined = _load(folder, "ratio")
    table = _arrays(mined, ["prompt_id", "p", "q", *RATIO_STATES.values()])
    for name in ("p", "q"):
        if broken := int((~np.isfinite(table[name])).sum()):
            raise LossyValueError(
                f"`data` has to hold probabilities, but the column {name!r} has NaN or infinite values in {broken} of "
                f"{len(table[name])} tokens; mine again"
            )
    states = {position: table[column] for position, column in RATIO_STATES.items()}
    return Ratios(states, table["p"], table["q"], table["prompt_id"]), _origin(mined, folder, None)


def _load(folder: str | Path, kind: str) -> Mined:
    mined = load_mined(folder)
    found = mined.manifest["kind"]
    if found != kind:
        remedy = f"; use `lossy-assist {_COMMANDS[found]}`" if found in _COMMANDS else ""
        raise LossyValueError(
            f"`data` has to hold labels of the kind {kind!r}, but {str(folder)!r} has {found!r}{remedy}"
        )
    return mined


def _arrays(mined: Mined, columns: Sequence[str]) -> Mapping[str, NDArray[Any]]:
    if missing := [name for name in columns if name not in mined.tokens]:
        raise LossyValueError(
            f"`data` has to have labelled tokens, but none of its {len(mined.prompts)} prompts has {missing[0]!r}; "
            "mine more prompts, or check that the task finds answers in the target's responses"
        )
    # A prompt that was mined twice is one: a head must not be judged on a prompt that it has seen.
    first: dict[Any, int] = {}
    rows = sorted(mined.prompts, key=lambda row: row.id)
    owners = {row.id: first.setdefault(row.prompt or row.id, row.id) for row in rows}
    owned = np.array([owners[id] for id in mined.tokens["prompt_id"].tolist()], dtype=np.int64)
    return {name: owned if name == "prompt_id" else mined.tokens[name] for name in columns}


def _origin(mined: Mined, folder: str | Path, target: ModelIdentity | None) -> Origin:
    manifest = mined.manifest
    named = manifest.get("target")
    if named is None and target is None:
        raise LossyValueError(
            f"`data` has to name the target, because a head belongs to its models, but that of {str(folder)!r} was "
            "behind an API; name it with `--model`"
        )
    if named is not None and target is not None:
        raise LossyValueError(f"`--model` is for data without a target, but {str(folder)!r} has {named['name']!r}")
    data = {
        "sha256": hashlib.sha256(json.dumps(manifest, sort_keys=True, ensure_ascii=False).encode()).hexdigest(),
        "settings": manifest.get("settings", {}),
        "runs": manifest.get("runs", []),
        "problems": manifest.get("problems", []),
        "prompts": len(mined.prompts),
        "tokens": len(mined),
    }
    draft = ModelIdentity.from_dict(manifest["draft"])
    return Origin(target or ModelIdentity.from_dict(named), draft, manifest["task"], data)
