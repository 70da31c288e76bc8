"""Lossy speculative decoding for Hugging Face Transformers.

Importing this package changes nothing; :func:`enable` makes ``generate()`` understand ``lossy_mode``.
"""

from .enabling import disable, enable, enabled, last_stats
from .errors import LossyError, LossyUnsupportedError, LossyValueError
from .output import GenerateLossyOutput
from .stats import LossyStats

__version__ = "0.1.0"

__all__ = [
    "GenerateLossyOutput",
    "LossyError",
    "LossyStats",
    "LossyUnsupportedError",
    "LossyValueError",
    "disable",
    "enable",
    "enabled",
    "last_stats",
]
