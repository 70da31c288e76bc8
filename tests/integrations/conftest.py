"""Fixtures of the other systems' tests."""

from tests.tiny_pair import tiny_pair_folder  # noqa: F401
