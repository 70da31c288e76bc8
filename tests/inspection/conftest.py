"""A browser for the pages."""

from tests.browser import chromium, tab  # noqa: F401
