"""Tiny pairs, made the way the bundled one is."""

from tests.small_pair import models  # noqa: F401
from tests.tiny_pair import bundled, tiny_pair_folder  # noqa: F401
