"""The files of a head, in a folder or on the Hub."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import errors, snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..errors import LossyValueError, brief
from ..values import from_json

CONFIG, WEIGHTS, CARD, ROC = "config.json", "model.safetensors", "README.md", "roc.png"

HUB_ID = r"\w[\w.-]*/\w[\w.-]*"
HUB_REFERENCE = re.compile(rf"(?P<id>{HUB_ID})(@(?P<revision>.+))?")

_MOST_CONFIG, _MOST_HEADER = 1 << 22, 1 << 16
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def existing_folder(source: str | Path) -> Path | None:
    """Return the folder that ``source`` names, or None."""
    if not isinstance(source, str | os.PathLike):
        raise LossyValueError(f"a head has to be named by a folder or an id on the Hub, but is {brief(source)}")
    try:
        folder = Path(source).expanduser()
        return folder if str(source) and folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # too long, of an unknown home, or with invalid characters
        return None


def local_files(source: str | Path, files: Sequence[str], *, revision: str | None = None, **download: Any) -> Path:
    """Return a folder with the files of ``source``, a folder or a repository on the Hub.

    Only the named ``files`` are downloaded, all of one commit; ``download`` goes to ``snapshot_download``.
    """
    if (folder := existing_folder(source)) is not None:
        return folder
    try:
        return Path(snapshot_download(str(source), revision=revision, allow_patterns=[*files], **download))
    except (errors.HTTPError, OSError, ValueError) as error:
        what = brief(str(source)) + (f" at revision {brief(revision)}" if revision else "")
        raise LossyValueError(f"can't use {what}: {' '.join(str(error).split()) or repr(error)}") from error


def read_config(folder: Path) -> Any:
    content = _content(folder, CONFIG, _MOST_CONFIG)
    return from_json(content, repr(str(folder / CONFIG)), "; download the head again")


def write_weights(folder: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write ``model.safetensors`` and return its SHA-256."""
    content = save({name: x.detach().to("cpu", torch.float32).contiguous() for name, x in tensors.items()})
    (folder / WEIGHTS).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def read_weights(folder: Path, shapes: Mapping[str, tuple[int, ...]], sha256: str | None) -> dict[str, Tensor]:
    """Return the tensors in ``model.safetensors``, which must be finite and have these shapes and this digest."""
    path = str(folder / WEIGHTS)
    content = _content(folder, WEIGHTS, _MOST_HEADER + 8 * sum(map(math.prod, shapes.values())))
    if sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise LossyValueError(
            f"{path!r} is not the file that {CONFIG} was saved with: its SHA-256 is {found[:12]}…, not "
            f"{str(sha256)[:12]}…. Load the head again with `from_pretrained(…, force_download=True)`"
        )
    try:
        tensors = load(content)
    except (SafetensorError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise LossyValueError(f"{path!r} is cut short or no safetensors file: {brief(error)}") from error
    if (given := {name: tuple(x.shape) for name, x in tensors.items()}) != shapes:
        raise LossyValueError(f"{path!r} has to hold {shapes}, but holds {brief(given)}")
    for name, x in tensors.items():
        if x.dtype not in _DTYPES:
            raise LossyValueError(f"`{name}` in {path!r} has to be floating-point of 16 bits or more, but is {x.dtype}")
        if not x.float().isfinite().all():
            raise LossyValueError(f"`{name}` in {path!r} has values that are not finite in float32; train it again")
    return {name: x.float() for name, x in tensors.items()}


def _content(folder: Path, name: str, most: int) -> bytes:
    path = folder / name
    if not path.is_file():
        raise LossyValueError(f"{str(folder)!r} has no {name}, so it is not a complete head; check the path or id")
    if (size := path.stat().st_size) > most:
        raise LossyValueError(f"{str(path)!r} has {size:,} bytes, but no more than {most:,} in a head like this")
    return path.read_bytes()
