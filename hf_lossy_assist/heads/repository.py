"""The files of a head, in a folder or on the Hub."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..errors import LossyValueError
from .hub import CARD, Publication, hub_errors

CONFIG, WEIGHTS, ROC = "config.json", "model.safetensors", "roc.png"


def local_files(source: str | Path, *, revision: str | None = None, **download: Any) -> Path:
    """Return a folder with the files of ``source``, a folder or a repository on the Hub.

    ``download`` goes to ``huggingface_hub.snapshot_download``: one commit, whatever is pushed meanwhile, and nothing
    but the configuration and the weights.
    """
    if Path(source).is_dir():
        return Path(source)
    with hub_errors(source, revision):
        return Path(snapshot_download(str(source), revision=revision, allow_patterns=[CONFIG, WEIGHTS], **download))


def read_config(folder: Path) -> dict[str, Any]:
    """Return what is in ``config.json``."""
    path = folder / CONFIG
    if not path.is_file():
        raise LossyValueError(f"{str(folder)!r} has no {CONFIG}, so it is not a head; is the path or id right?")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LossyValueError(f"{str(path)!r} is not JSON: {error}; save or download the head again") from error


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
    content = path.read_bytes()
    if sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise LossyValueError(
            f"{str(path)!r} is not the file that {CONFIG} was saved with: its SHA-256 is {found[:12]}…, not "
            f"{sha256[:12]}…. It was cut short or changed; load the head again with "
            "`from_pretrained(…, force_download=True)`"
        )
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise LossyValueError(f"{str(path)!r} is cut short or no safetensors file: {error}") from error
    found_shapes = {name: tuple(x.shape) for name, x in tensors.items()}
    if found_shapes != shapes:
        raise LossyValueError(f"{str(path)!r} has to hold {shapes}, but holds {found_shapes}")
    for name, x in tensors.items():
        if not x.is_floating_point():
            raise LossyValueError(f"`{name}` in {str(path)!r} has to be of a floating-point dtype, but is {x.dtype}")
        if not x.isfinite().all():
            raise LossyValueError(f"`{name}` in {str(path)!r} has values that are not finite; train the head again")
    return tensors


def publication(folder: Path, title: str) -> Publication:
    """Return the files of a head's folder that belong on the Hub: configuration, weights, card and figures."""
    names = [CONFIG, WEIGHTS, CARD, *sorted(path.name for path in folder.glob("*.png"))]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise LossyValueError(f"{str(folder)!r} lacks {missing}; save the head again with `save_pretrained`")
    return Publication(title, {name: folder / name for name in names})
