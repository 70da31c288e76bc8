"""The files of a head, in a folder or on the Hub."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..errors import LossyValueError
from .checks import brief
from .hub import CARD, Publication, hub_errors

CONFIG, WEIGHTS, ROC = "config.json", "model.safetensors", "roc.png"

_MOST_CONFIG = 1 << 22
_MOST_HEADER = 1 << 16
# JSON nests as deep as a file says, and whoever walks through it with it.
_MOST_LEVELS = 32
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def existing_folder(source: str | Path) -> Path | None:
    """Return the folder that ``source`` names, None where there is none; refuse what is neither a string nor a path."""
    if not isinstance(source, str | os.PathLike):
        raise LossyValueError(f"a head has to be named by a folder or an id on the Hub, but is {brief(source)}")
    try:
        folder = Path(source).expanduser()
        return folder if str(source) and folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # over-long, of nobody's home, or with characters that no path has
        return None


def local_files(source: str | Path, *, revision: str | None = None, **download: Any) -> Path:
    """Return a folder with the files of ``source``, a folder or a repository on the Hub.

    ``download`` goes to ``huggingface_hub.snapshot_download``: one commit, whatever is pushed meanwhile, and nothing
    but the configuration and the weights.
    """
    if (folder := existing_folder(source)) is not None:
        return folder
    with hub_errors(source, revision):
        return Path(snapshot_download(str(source), revision=revision, allow_patterns=[CONFIG, WEIGHTS], **download))


def read_config(folder: Path) -> dict[str, Any]:
    """Return what is in ``config.json``."""
    path = folder / CONFIG
    if not path.is_file():
        raise LossyValueError(f"{str(folder)!r} has no {CONFIG}, so it is not a head; is the path or id right?")
    _check_file_size(path, _MOST_CONFIG)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LossyValueError(f"{str(path)!r} is not JSON: {error}; save or download the head again") from error
    if _levels(values) > _MOST_LEVELS:
        raise LossyValueError(f"{str(path)!r} is nested in more than {_MOST_LEVELS} levels; a head's is not")
    return values


def _levels(values: Any) -> int:
    count, level = 0, [values]
    while level := [part for part in level if isinstance(part, dict | list)]:
        count += 1
        level = [x for part in level for x in (part.values() if isinstance(part, dict) else part)]
    return count


def _check_file_size(path: Path, most: int) -> None:
    if (size := path.stat().st_size) > most:
        raise LossyValueError(f"{str(path)!r} has {size:,} bytes, but no more than {most:,} in a head like this")


def write_weights(folder: Path, tensors: dict[str, Tensor]) -> str:
    """Write ``model.safetensors`` and return its SHA-256."""
    content = save({name: x.detach().to("cpu", torch.float32).contiguous() for name, x in tensors.items()})
    (folder / WEIGHTS).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def read_weights(folder: Path, shapes: dict[str, tuple[int, ...]], sha256: str | None) -> dict[str, Tensor]:
    """Return the tensors in ``model.safetensors``, which have to have these shapes and be finite.

    ``sha256`` is the digest that the configuration gives, None where it gives none.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        raise LossyValueError(f"{str(folder)!r} has no {WEIGHTS}; save or download the head again")
    _check_file_size(path, _MOST_HEADER + 8 * sum(map(math.prod, shapes.values())))
    content = path.read_bytes()
    if sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise LossyValueError(
            f"{str(path)!r} is not the file that {CONFIG} was saved with: its SHA-256 is {found[:12]}…, not "
            f"{str(sha256)[:12]}…. It was cut short or changed; load the head again with "
            "`from_pretrained(…, force_download=True)`"
        )
    try:
        tensors = load(content)
    except (SafetensorError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise LossyValueError(f"{str(path)!r} is cut short or no safetensors file: {error!r}") from error
    found_shapes = {name: tuple(x.shape) for name, x in tensors.items()}
    if found_shapes != shapes:
        raise LossyValueError(f"{str(path)!r} has to hold {shapes}, but holds {brief(found_shapes)}")
    for name, x in tensors.items():
        if x.dtype not in _DTYPES:
            raise LossyValueError(
                f"`{name}` in {str(path)!r} has to be of a floating-point dtype of 16 bits or more, but is {x.dtype}"
            )
    return {name: finite(x, torch.float32, f"`{name}` in {str(path)!r}") for name, x in tensors.items()}


def finite(x: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """Return a tensor in another dtype, in which it has to be finite; ``what`` names it in the error."""
    converted = x.to(dtype)
    if not converted.isfinite().all():
        raise LossyValueError(
            f"{what} has values that are not finite in {str(dtype).removeprefix('torch.')}; use float32, or train the "
            "head again"
        )
    return converted


def publication(folder: Path, title: str, more: Sequence[str] = ()) -> Publication:
    """Return the files of a folder that belong on the Hub: configuration, weights, card and figures.

    Of ``more``, those that are there belong to them too.
    """
    besides = [name for name in more if (folder / name).is_file()]
    names = [CONFIG, WEIGHTS, CARD, *besides, *sorted(path.name for path in folder.glob("*.png"))]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise LossyValueError(f"{str(folder)!r} lacks {missing}; save the head again with `save_pretrained`")
    return Publication(title, {name: folder / name for name in names})
