"""A headless Chromium; whoever asks for a page is skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

_OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
MILLISECONDS = 120_000
"""What anything may take, on a busy machine."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser, of a module: while it is open, an event loop runs in this thread, and others cannot."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no chromium")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_OPTIONS.split(), timeout=MILLISECONDS)
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page at an address, in a window of a width and a colour scheme."""
    contexts = []

    def open_page(address: str, width: int = 1280, scheme: str = "light") -> Any:
        contexts.append(chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.set_default_timeout(MILLISECONDS)
        page.goto(address, wait_until="domcontentloaded")
        return page

    yield open_page
    for context in contexts:
        context.close()
