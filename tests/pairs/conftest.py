"""Tiny pairs, made the way the bundled one is."""

from tests.tiny_pair import tiny_pair_folder  # noqa: F401
