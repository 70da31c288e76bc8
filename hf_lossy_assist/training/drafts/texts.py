"""Texts that a target has written, in a folder: a shard for each batch, and a manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from transformers import PreTrainedModel

from ...errors import LossyValueError
from ...heads.identity import ModelIdentity
from ...store.folder import changes, refuse, write_json, write_whole

MANIFEST = "texts.json"


class Text(NamedTuple):
    """The tokens of a prompt and of the target's answer, which begins at ``answer`` and is ``greedy`` or drawn.

    ``batch`` is its shard in a store, where it begins at the token ``start``.
    """

    ids: tuple[int, ...]
    answer: int
    greedy: bool
    batch: int = -1
    start: int = 0

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.ids[: self.answer]


@dataclass(frozen=True)
class TextStore:
    """A folder of texts. A shard is written whole, so a killed run continues with the next batch."""

    folder: Path

    def open(self, target: PreTrainedModel, settings: Mapping[str, Any]) -> None:
        """Make the folder, or refuse one with texts of another target or other settings."""
        content = {"target": asdict(ModelIdentity.of(target)), "settings": dict(settings)}
        before = recorded(self.folder / MANIFEST, content)
        found = [f"of the target, {x}" for x in ModelIdentity.from_dict(before["target"]).differences(target)]
        refuse(self.folder, found + changes(before["settings"], settings))

    def batches(self) -> list[int]:
        return sorted(int(path.stem.removeprefix("texts-")) for path in self.folder.glob("texts-*.safetensors"))

    def answer_tokens(self) -> int:
        total = 0
        for batch in self.batches():
            with safe_open(self._path(batch), "pt") as file:
                total += int(file.metadata()["answer_tokens"])
        return total

    def add(self, batch: int, texts: Sequence[Text]) -> None:
        columns = {
            "ids": [token for text in texts for token in text.ids],
            "lengths": [len(text.ids) for text in texts],
            "answers": [text.answer for text in texts],
            "greedy": [text.greedy for text in texts],
        }
        tensors = {name: torch.tensor(column, dtype=torch.int32) for name, column in columns.items()}
        answer_tokens = sum(columns["lengths"]) - sum(columns["answers"])
        write_whole(self._path(batch), save(tensors, {"answer_tokens": str(answer_tokens)}))

    def read(self, batch: int) -> list[Text]:
        """Return the texts of a batch; those of older shards, which lack the column, count as greedy."""
        tensors = load_file(self._path(batch))
        ids, answers, lengths = (tensors[name].tolist() for name in ("ids", "answers", "lengths"))
        greedy = tensors["greedy"].bool().tolist() if "greedy" in tensors else [True] * len(lengths)
        ends = [*accumulate(lengths)]
        rows = zip(ends, lengths, answers, greedy, strict=True)
        return [Text(tuple(ids[end - n : end]), answer, flag, batch, end - n) for end, n, answer, flag in rows]

    def texts(self) -> list[Text]:
        return [text for batch in self.batches() for text in self.read(batch)]

    def _path(self, batch: int) -> Path:
        return self.folder / f"texts-{batch:06d}.safetensors"


def recorded(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file, which is written with ``content`` if it is missing."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LossyValueError(
            f"`--out` has to be a folder of a run, but {str(path)!r} can't be read: {error}"
        ) from error
