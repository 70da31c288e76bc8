"""Decoding on static caches, in forwards of fixed shape that can be compiled."""

from .decoding import StaticDecoding
from .plan import Plan, plan_of

__all__ = ["Plan", "StaticDecoding", "plan_of"]
