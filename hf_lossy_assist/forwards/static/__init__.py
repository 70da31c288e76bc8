"""Decoding on static caches, in forwards of fixed shape that can be compiled."""

from ...call.static_plan import Plan, plan_of
from .decoding import StaticDecoding

__all__ = ["Plan", "StaticDecoding", "plan_of"]
