"""The files of a head, in a folder or on the Hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..errors import LossyValueError

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"

# The most special ones first: a gated repository counts as one that was not found, too.
_REMEDIES: tuple[tuple[type[Exception], str], ...] = (
    (GatedRepoError, "access to it is granted on its page on the Hub; then pass `token` or run `hf auth login`"),
    (RevisionNotFoundError, "it has no such revision"),
    (RepositoryNotFoundError, "no such repository, or a private one; for that, pass `token` or run `hf auth login`"),
    (LocalEntryNotFoundError, "it is not in the cache, and the Hub can't be reached"),
    (EntryNotFoundError, "a file is missing"),
    (HFValidationError, "neither a folder nor an id of the form 'org/name' or 'org/name@revision'"),
    (OSError, "the transfer failed"),
)


def local_files(source: str | Path, *, revision: str | None = None, **download: Any) -> Path:
    """Return a folder with the files of ``source``, a folder or a repository on the Hub.

    ``download`` goes to ``huggingface_hub.snapshot_download``: one commit, whatever is pushed meanwhile, and nothing
    but the configuration and the weights.
    """
    if Path(source).is_dir():
        return Path(source)
    with hub_errors(source, revision):
        return Path(snapshot_download(str(source), revision=revision, allow_patterns=[CONFIG, WEIGHTS], **download))


@contextmanager
def hub_errors(source: str | Path, revision: str | None = None) -> Iterator[None]:
    """Let what the Hub's client raises inside the block come out as an error that names ``source`` and a remedy."""
    try:
        yield
    except tuple(cls for cls, _ in _REMEDIES) as error:
        what = f"{str(source)!r}" + (f" at revision {revision!r}" if revision else "")
        remedy = next(text for cls, text in _REMEDIES if isinstance(error, cls))
        raise LossyValueError(f"can't use {what}: {remedy} ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


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
            f"{sha256[:12]}…. It was cut short or changed; download the head again with `force_download=True`"
        )
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise LossyValueError(f"{str(path)!r} is cut short or no safetensors file: {error}") from error
    found_shapes = {name: tuple(x.shape) for name, x in tensors.items()}
    if found_shapes != shapes:
        raise LossyValueError(f"{str(path)!r} has to hold {shapes}, but holds {found_shapes}")
    for name, x in tensors.items():
        if not x.isfinite().all():
            raise LossyValueError(f"`{name}` in {str(path)!r} has values that are not finite; train the head again")
    return tensors
