"""Lossy speculative decoding for Hugging Face Transformers.

Importing this package changes nothing and costs nothing; :func:`enable` makes ``generate()`` understand ``lossy_mode``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import lossy_fields as lossy_fields
    from .decoding.outputs import GenerateLossyOutput as GenerateLossyOutput
    from .drafting.eagle3 import Eagle3 as Eagle3
    from .enabling import collect as collect
    from .enabling import disable as disable
    from .enabling import enable as enable
    from .enabling import enabled as enabled
    from .enabling import last_stats as last_stats
    from .errors import LossyError as LossyError
    from .errors import LossyUnsupportedError as LossyUnsupportedError
    from .errors import LossyValueError as LossyValueError
    from .evaluation.evaluate import evaluate as evaluate
    from .heads import JudgeHead as JudgeHead
    from .heads import VerifierHead as VerifierHead
    from .hook import LossyVerification as LossyVerification
    from .stats import CollectedStats as CollectedStats
    from .stats import LossyStats as LossyStats

__version__ = "0.1.0"

_PLACES = {
    "CollectedStats": "stats",
    "Eagle3": "drafting.eagle3",
    "GenerateLossyOutput": "decoding.outputs",
    "JudgeHead": "heads",
    "LossyError": "errors",
    "LossyStats": "stats",
    "LossyUnsupportedError": "errors",
    "LossyValueError": "errors",
    "LossyVerification": "hook",
    "VerifierHead": "heads",
    "collect": "enabling",
    "disable": "enabling",
    "enable": "enabling",
    "enabled": "enabling",
    "evaluate": "evaluation.evaluate",
    "last_stats": "enabling",
    "lossy_fields": "config",
}
_SUBMODULES = ("acceptors", "calibration", "pairs", "tasks", "theory")

__all__ = [*_PLACES, *_SUBMODULES]


def __getattr__(name: str) -> Any:
    # Commands that only show their help, and users of one part, need not pay for torch and all the others.
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _PLACES:
        value = getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
