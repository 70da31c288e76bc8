"""Lossy speculative decoding for Hugging Face Transformers.

Importing this package changes nothing; :func:`enable` makes ``generate()`` understand ``lossy_mode``.
"""

from __future__ import annotations

import importlib
from typing import Any

from .decoding.outputs import GenerateLossyOutput
from .drafting.eagle3 import Eagle3
from .enabling import disable, enable, enabled, last_stats
from .errors import LossyError, LossyUnsupportedError, LossyValueError
from .heads import JudgeHead, VerifierHead
from .hook import LossyVerification
from .stats import LossyStats

__version__ = "0.1.0"

__all__ = [
    "Eagle3",
    "GenerateLossyOutput",
    "JudgeHead",
    "LossyError",
    "LossyStats",
    "LossyUnsupportedError",
    "LossyValueError",
    "LossyVerification",
    "VerifierHead",
    "disable",
    "enable",
    "enabled",
    "evaluate",
    "last_stats",
]

_SUBMODULES = ("pairs", "tasks", "theory")


def __getattr__(name: str) -> Any:
    # `hf_lossy_assist.pairs.load(...)` works after a plain import, which need not pay for it.
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    if name == "evaluate":
        return importlib.import_module(".evaluation.evaluate", __name__).evaluate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
