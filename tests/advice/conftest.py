"""Tiny models, and laws without models."""

from tests.small_pair import models, tokenizer  # noqa: F401
