"""Tiny models, and laws without models."""

from tests.small_pair import models, pair, tokenizer  # noqa: F401
