"""transformers' own server, with an assistant for the models that name one."""

from .assisting import FIELD, Settings, assist

__all__ = ["FIELD", "Settings", "assist"]
