"""Labelled states from folders of ``lossy-assist mine``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import LossyValueError
from ..heads import ModelIdentity
from ..heads.judge_head import MODELS
from ..mining.mining_run import Mined, load_mined
from ..mining.reading import POSITIONS
from .examples import Examples, Ratios
from .provenance import Origin, digest

if TYPE_CHECKING:
    import datasets

JUDGE_STATES = tuple(f"{model}_{token}" for model in MODELS for token in POSITIONS)
"""The states that may accompany AutoJudge's labels."""

RATIO_STATES = {"previous": "previous", "token": "token_state"}
"""The columns of the states that accompany SPRINTER's labels, by position."""

_COMMANDS = {"judge": "train judge", "ratio": "train verifier"}


@dataclass(frozen=True, eq=False)
class LabelledMismatch:
    """AutoJudge's labels and their origin, with the fold of each token's prompt (None without folds)."""

    examples: Examples
    folds: NDArray[np.int64] | None
    origin: Origin


def read_judged(
    folder: str | Path, columns: Sequence[str] | None = None, target: ModelIdentity | None = None
) -> LabelledMismatch:
    """Read AutoJudge's labels with the states in ``columns``, by default all.

    ``target`` completes data whose target was behind an API.
    """
    mined = _load(folder, "judge")
    available = [name for name in JUDGE_STATES if name in mined.tokens.column_names]
    missing = sorted(set(columns or ()) - set(available))
    if missing:
        raise LossyValueError(
            f"`data` has to have the states {missing}, but {str(folder)!r} was mined with {available} only; choose "
            "other `--features` and `--models`, or mine again"
        )
    chosen = available if columns is None else columns
    table = _arrays(mined.tokens, ["prompt_id", "important", *chosen])
    prompts = table["prompt_id"].astype(np.int64)
    examples = Examples({name: table[name] for name in chosen}, table["important"].astype(bool), prompts)
    return LabelledMismatch(examples, _folds(mined, prompts), _origin(mined, folder, target))


def read_ratios(folder: str | Path, positions: Sequence[str] = tuple(RATIO_STATES)) -> tuple[Ratios, Origin]:
    """Read SPRINTER's probabilities with the states at these positions."""
    mined = _load(folder, "ratio")
    columns = {position: RATIO_STATES[position] for position in positions}
    table = _arrays(mined.tokens, ["prompt_id", "kind", "p", "q", *columns.values()])
    for name in ("p", "q"):
        if broken := int((~np.isfinite(table[name])).sum()):
            raise LossyValueError(
                f"`data` has to hold probabilities, but the column {name!r} has NaN or infinite values in {broken} of "
                f"{len(table[name])} tokens; mine again"
            )
    ratios = Ratios(
        states={position: table[column] for position, column in columns.items()},
        p=table["p"],
        q=table["q"],
        prompts=table["prompt_id"].astype(np.int64),
        kinds=table["kind"].astype(str),
    )
    return ratios, _origin(mined, folder, None)


def _load(folder: str | Path, kind: str) -> Mined:
    if not Path(folder).is_dir():
        raise LossyValueError(
            f"`data` has to be a folder that `lossy-assist mine` wrote, but there is no folder {str(folder)!r}"
        )
    mined = load_mined(folder)
    found = mined.manifest["kind"]
    if found != kind:
        remedy = f"; use `lossy-assist {_COMMANDS[found]}`" if found in _COMMANDS else ""
        raise LossyValueError(
            f"`data` has to hold labels of the kind {kind!r}, but {str(folder)!r} has {found!r}{remedy}"
        )
    if mined.tokens.num_rows == 0:
        raise LossyValueError(
            f"`data` has to hold labelled tokens, but none of the {mined.prompts.num_rows} prompts in {str(folder)!r} "
            "gave any; mine more prompts, or check that the task finds answers in the target's responses"
        )
    return mined


def _arrays(tokens: datasets.Dataset, columns: Sequence[str]) -> Mapping[str, NDArray[Any]]:
    if missing := [name for name in columns if name not in tokens.column_names]:
        raise LossyValueError(f"`data` has to have the columns {missing}, but has {tokens.column_names}; mine again")
    table = tokens.select_columns(list(dict.fromkeys(columns))).with_format("numpy")[:]
    for name in columns:
        if table[name].dtype == object and not isinstance(table[name][0], str):
            raise LossyValueError(f"`data` has to have as many values in every row, but {name!r} has not; mine again")
    return table


def _folds(mined: Mined, prompts: NDArray[np.int64]) -> NDArray[np.int64] | None:
    if "fold" not in mined.prompts.column_names:
        return None
    by_prompt = dict(zip(mined.prompts["prompt_id"], mined.prompts["fold"], strict=True))
    folds = [by_prompt[prompt] for prompt in prompts.tolist()]
    return None if None in folds else np.array(folds)


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
        "sha256": digest(manifest),
        "settings": manifest.get("settings", {}),
        "runs": manifest.get("runs", []),
        "prompts": mined.prompts.num_rows,
        "tokens": mined.tokens.num_rows,
    }
    draft = ModelIdentity.from_dict(manifest["draft"])
    return Origin(target or ModelIdentity.from_dict(named), draft, manifest["task"], data)
