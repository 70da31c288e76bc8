"""Lossy speculative decoding for Hugging Face Transformers.

Importing this package has no side effects; :func:`enable` makes ``generate()`` understand ``lossy_mode``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__ as __version__

if TYPE_CHECKING:
    from .core.statistics import CollectedStats as CollectedStats
    from .core.statistics import LossyStats as LossyStats
    from .decoding.outputs import GenerateLossyOutput as GenerateLossyOutput
    from .drafting.vocabulary import frequent_tokens as frequent_tokens
    from .drafting.vocabulary import trim_draft_vocabulary as trim_draft_vocabulary
    from .errors import LossyError as LossyError
    from .errors import LossyUnsupportedError as LossyUnsupportedError
    from .errors import LossyValueError as LossyValueError
    from .evaluation.advising import advise as advise
    from .evaluation.evaluation import evaluate as evaluate
    from .generation.config import LossyConfig as LossyConfig
    from .generation.drafters.dflash import DFlash as DFlash
    from .generation.drafters.eagle3 import Eagle3 as Eagle3
    from .generation.enabling import collect as collect
    from .generation.enabling import disable as disable
    from .generation.enabling import enable as enable
    from .generation.enabling import enabled as enabled
    from .generation.enabling import last_stats as last_stats
    from .heads import JudgeHead as JudgeHead
    from .heads import VerifierHead as VerifierHead
    from .integrations.transformers_loop import LossyVerification as LossyVerification
    from .models.cpu import prepare_for_cpu as prepare_for_cpu
    from .models.quantised import prepack as prepack
    from .models.quantised import quantize_draft as quantize_draft
    from .training.head_training import train_judge as train_judge
    from .training.labelling import mine as mine


_NAMES = {
    "generation.config": ("LossyConfig",),
    "core.statistics": ("CollectedStats", "LossyStats"),
    "decoding.outputs": ("GenerateLossyOutput",),
    "drafting.vocabulary": ("frequent_tokens", "trim_draft_vocabulary"),
    "generation.drafters.dflash": ("DFlash",),
    "generation.drafters.eagle3": ("Eagle3",),
    "generation.enabling": ("collect", "disable", "enable", "enabled", "last_stats"),
    "errors": ("LossyError", "LossyUnsupportedError", "LossyValueError"),
    "evaluation.advising": ("advise",),
    "evaluation.evaluation": ("evaluate",),
    "heads": ("JudgeHead", "VerifierHead"),
    "integrations.transformers_loop": ("LossyVerification",),
    "models.cpu": ("prepare_for_cpu",),
    "models.quantised": ("prepack", "quantize_draft"),
    "training.head_training": ("train_judge",),
    "training.labelling": ("mine",),
}
_PLACES = {name: place for place, names in _NAMES.items() for name in names}
_SUBMODULES = ("acceptors", "calibration", "pairs", "tasks", "theory")

__all__ = [*sorted(_PLACES), *_SUBMODULES]


def __getattr__(name: str) -> Any:
    # Lazy, so that `--help` and users of one part do not wait for torch and everything else.
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _PLACES:
        value = getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
