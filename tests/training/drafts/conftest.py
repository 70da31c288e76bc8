"""Texts that the tests of drafts share."""

from tests.training.drafts.fixtures import texts  # noqa: F401
