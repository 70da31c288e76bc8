"""Lossy speculative decoding for Hugging Face Transformers.

Importing this package changes nothing; :func:`enable` makes ``generate()`` understand ``lossy_mode``.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from .decoding.outputs import GenerateLossyOutput
from .drafting.eagle3 import Eagle3
from .enabling import collect, disable, enable, enabled, last_stats
from .errors import LossyError, LossyUnsupportedError, LossyValueError
from .heads import JudgeHead, VerifierHead
from .hook import LossyVerification
from .stats import CollectedStats, LossyStats

__version__ = "0.1.0"

__all__ = [
    "CollectedStats",
    "Eagle3",
    "GenerateLossyOutput",
    "JudgeHead",
    "LossyError",
    "LossyStats",
    "LossyUnsupportedError",
    "LossyValueError",
    "LossyVerification",
    "VerifierHead",
    "collect",
    "disable",
    "enable",
    "enabled",
    "last_stats",
]

_SUBMODULES = ("pairs", "tasks", "theory")


def __getattr__(name: str) -> ModuleType:
    # `hf_lossy_assist.pairs.load(...)` works after a plain import, which need not pay for it.
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
