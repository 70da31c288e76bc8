"""The texts of a run on disk: a shard for each batch, and a manifest that says where they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from transformers import PreTrainedModel

from ...errors import LossyValueError
from ...heads.identity import ModelIdentity
from ...mining.files import checksum, write_whole
from .text_writing import Text

MANIFEST = "texts.json"
_DAMAGED = ".damaged"


@dataclass(frozen=True)
class TextStore:
    """A folder of texts.

    A batch is there once its shard is; a process may be killed at any moment, and the next one writes what is missing.

    Attributes
    ----------
    folder
        The folder.
    """

    folder: Path

    def open(self, target: PreTrainedModel, settings: Mapping[str, Any]) -> None:
        """Make the folder, or check that what it holds was written by this target with these settings.

        Raises
        ------
        LossyValueError
            When the folder belongs to another run.
        """
        path = self.folder / MANIFEST
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            content = {"target": asdict(ModelIdentity.of(target)), "settings": dict(settings)}
            write_whole(path, (json.dumps(content, indent=2) + "\n").encode())
            return
        manifest = self.manifest()
        before, now = manifest["settings"], json.loads(json.dumps(dict(settings)))
        found = [f"of the target, {x}" for x in ModelIdentity.from_dict(manifest["target"]).differences(target)]
        changed = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
        found += [f"`{name}` was {before.get(name)!r} and is {now.get(name)!r}" for name in changed]
        if found:
            raise LossyValueError(
                f"`--out` has to be a new folder or one of the same run, but in {str(self.folder)!r} "
                f"{'; '.join(found)}; choose another folder"
            )

    def manifest(self) -> dict[str, Any]:
        """Return what the folder says about its texts."""
        path = self.folder / MANIFEST
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            if not (isinstance(manifest["settings"], dict) and isinstance(manifest["target"], dict)):
                raise TypeError("it describes no target")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LossyValueError(
                f"`--out` has to be a folder of a run, but {str(path)!r} can't be read: {error}"
            ) from error
        return manifest

    def batches(self) -> list[int]:
        """Return the numbers of the batches that are there."""
        return sorted(int(path.stem.removeprefix("texts-")) for path in self.folder.glob("texts-*.safetensors"))

    def answer_tokens(self) -> int:
        """Return how many tokens of answers there are."""
        return sum(self._said(batch, "answer_tokens") for batch in self.batches())

    def _said(self, batch: int, name: str) -> int:
        with safe_open(self._path(batch), "pt") as file:
            return int(file.metadata()[name])

    def add(self, batch: int, texts: Sequence[Text]) -> None:
        """Write the texts of a batch."""
        tensors = {
            "ids": torch.tensor([token for text in texts for token in text.ids], dtype=torch.int32),
            "lengths": torch.tensor([len(text.ids) for text in texts], dtype=torch.int32),
            "answers": torch.tensor([text.answer for text in texts], dtype=torch.int32),
        }
        said = {
            "answer_tokens": str(sum(len(text.ids) - text.answer for text in texts)),
            "sha256": checksum(tensors["ids"].numpy().tobytes()),
        }
        write_whole(self._path(batch), save(tensors, said))

    def read(self, batch: int) -> list[Text]:
        """Return the texts of a batch."""
        tensors = load_file(self._path(batch))
        pieces, starts = tensors["ids"].split(tensors["lengths"].tolist()), tensors["answers"].tolist()
        return [Text(tuple(ids.tolist()), start) for ids, start in zip(pieces, starts, strict=True)]

    def set_damaged_aside(self) -> list[int]:
        """Rename the shards that are not as they were written, and return their batches, which are missing then."""
        damaged = [batch for batch in self.batches() if not self._sound(batch)]
        for batch in damaged:
            path = self._path(batch)
            path.replace(path.with_name(path.name + _DAMAGED))
        return damaged

    def _sound(self, batch: int) -> bool:
        try:
            with safe_open(self._path(batch), "pt") as file:
                return checksum(file.get_tensor("ids").numpy().tobytes()) == file.metadata()["sha256"]
        except (SafetensorError, OSError, KeyError, TypeError):
            return False

    def _path(self, batch: int) -> Path:
        return self.folder / f"texts-{batch:06d}.safetensors"
