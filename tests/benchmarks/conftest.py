"""Tiny models for measurements."""

from tests.small_pair import models, pair, tokenizer  # noqa: F401
from tests.tiny_pair import bundled, tiny_pair_folder  # noqa: F401
