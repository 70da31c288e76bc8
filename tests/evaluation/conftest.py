"""Tiny models for measurements."""

from tests.small_pair import models, pair, tokenizer  # noqa: F401
