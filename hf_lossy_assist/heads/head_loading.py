"""Loading of heads by name, each once per process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import torch

from ..errors import LossyValueError
from .checks import brief
from .head import Head
from .hub import HUB_REFERENCE
from .judge_head import JudgeHead
from .repository import CONFIG, WEIGHTS, existing_folder, finite, read_config
from .verifier_head import VerifierHead

HEADS: Mapping[str, type[Head]] = {"judge": JudgeHead, "verifier": VerifierHead}
"""The heads by the ``type`` in their configuration."""

_H = TypeVar("_H", bound=Head)


def load_head(
    cls: type[_H],
    source: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> _H:
    """Load a head, or return the one that was loaded before.

    Parameters
    ----------
    cls
        :class:`JudgeHead` or :class:`VerifierHead`.
    source
        ``"org/name"``, ``"org/name@revision"`` or a folder. A repository is asked for once per process; a folder
        whose files have changed since is read again.
    device, dtype
        Where the weights are wanted, and how. Folding in a standardisation leaves weights that want float32,
        whatever the models have.

    Raises
    ------
    LossyValueError
        When there is no such head, or it is damaged.

    Examples
    --------
    >>> from hf_lossy_assist import JudgeHead
    >>> load_head(JudgeHead, "./no/such/folder")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hf_lossy_assist.errors.LossyValueError: `lossy_head` is './no/such/folder', which is neither a folder nor ...
    """
    folder = existing_folder(source)
    if folder is not None:
        # The time of the files stands for the revision.
        stamps = tuple(path.stat().st_mtime_ns for name in (CONFIG, WEIGHTS) if (path := folder / name).exists())
        return _load(cls, str(folder.resolve()), None, stamps, torch.device(device), dtype)
    match = HUB_REFERENCE.fullmatch(str(source))
    if match is None:
        raise LossyValueError(
            f"`lossy_head` is {brief(str(source))}, which is neither a folder nor an id on the Hub, 'org/name' or "
            "'org/name@revision'"
        )
    return _load(cls, match["id"], match["revision"], (), torch.device(device), dtype)


@lru_cache(maxsize=64)
def _load(
    cls: type[_H],
    source: str,
    revision: str | None,
    stamps: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype,
) -> _H:
    head = cls.from_pretrained(source, revision=revision)
    for name, parameter in head.named_parameters():
        finite(parameter, dtype, f"`{name}` of {source!r}")
    return head.to(device, dtype).eval()


def load_folder(folder: Path) -> Head:
    """Load the head in a folder, of whichever kind it is."""
    found = existing_folder(folder)
    if found is None:
        raise LossyValueError(f"{brief(str(folder))} is not a folder")
    values = read_config(found)
    kind = values.get("type") if isinstance(values, dict) else None
    # A configuration of something else is refused by any head, with what it is.
    return HEADS.get(kind if isinstance(kind, str) else None, JudgeHead).from_pretrained(found)
