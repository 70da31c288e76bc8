"""The bundled draft/target pairs: small models whose answers can be judged right or wrong."""

from .pair import NAMES, ROLES, Pair, load

__all__ = ["NAMES", "ROLES", "Pair", "load"]
