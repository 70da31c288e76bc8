"""Draft/target pairs: small bundled models with a task, and a real target from the package index."""

from .pair import NAMES, ROLES, Pair, at_hand, hub_cards, load, task_of

__all__ = ["NAMES", "ROLES", "Pair", "at_hand", "hub_cards", "load", "task_of"]
