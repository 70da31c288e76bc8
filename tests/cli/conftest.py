"""Tiny pairs, made the way the bundled one is."""

from tests.tiny_pair import bundled, tiny_pair_folder  # noqa: F401
