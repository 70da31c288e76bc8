"""transformers' own server, with assistants for its models."""

from .assisting import assist
from .settings import FIELD, RequestLimits, Settings

__all__ = ["FIELD", "RequestLimits", "Settings", "assist"]
