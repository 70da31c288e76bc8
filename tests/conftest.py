"""Shared fixtures."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

import hf_lossy_assist
from hf_lossy_assist import pairs
from hf_lossy_assist.decoding import slow_drafts
from hf_lossy_assist.drafting import draft_ends
from hf_lossy_assist.errors import warn_once
from hf_lossy_assist.generation import config as call_config
from hf_lossy_assist.pairs import qwen_coder
from tests.hub.server import loopback_hub, signed_in  # noqa: F401
from tests.tiny_pair import bundled, tiny_pair_folder  # noqa: F401

# The same cases in every run, however busy the machine is.
settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")


def pytest_sessionstart():
    """Imports allocate millions of objects that stay; the collector would look through them hundreds of times."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]):
    """The longest tests lie in no room. They come first, so that no worker waits for another's last."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


def pytest_collection_finish():
    """And through all of them whenever a test asks it to collect."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def pair() -> pairs.Pair:
    """The bundled pair."""
    return pairs.load("arithmetic")


@pytest.fixture(scope="module")
def qwen_coder_pair() -> pairs.Pair:
    """The real pair, where `make qwen-coder` has made it."""
    folder = qwen_coder.cache_folder()
    if faults := list(filter(None, (qwen_coder.fault(folder / role) for role in pairs.ROLES))):
        pytest.skip(f"`make qwen-coder` makes the pair: {faults[0]}")
    return pairs.load("qwen-coder", folder=folder)


@pytest.fixture
def watch_drafts(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, Callable[..., Any]], None]:
    """Show a function what drafters of a class propose: ``(draft, drafter, ids, layout, remaining)``."""

    def watch(kind: type, see: Callable[..., Any]) -> None:
        propose = kind.propose

        def proposing(self, *asked):
            draft = propose(self, *asked)
            see(draft, self, *asked)
            return draft

        monkeypatch.setattr(kind, "propose", proposing)

    return watch


@pytest.fixture
def gguf_read_once(monkeypatch: pytest.MonkeyPatch):
    """Configuration, weights and tokenizer of a GGUF file are read with one parsing of its 50,000 words, not three."""
    if find_spec("gguf") is not None:
        import gguf

        for name in ("GGUFReader", "get_tensor_name_map"):
            monkeypatch.setattr(gguf, name, functools.cache(getattr(gguf, name)))


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch):
    """No call is said to be slow, unless a test means it to: tiny models are, on a busy machine."""
    monkeypatch.setattr(slow_drafts, "ROUNDS", float("inf"))


@pytest.fixture(autouse=True)
def _whole_drafts(monkeypatch: pytest.MonkeyPatch):
    """No draft ends early, unless a test means it to: tiny models are sure of nothing."""
    monkeypatch.setattr(call_config, "AcceptanceStop", lambda threshold: None)


@pytest.fixture
def default_ends(monkeypatch: pytest.MonkeyPatch, _whole_drafts: None) -> None:
    """Drafts end where they do by default."""
    monkeypatch.setattr(call_config, "AcceptanceStop", draft_ends.AcceptanceStop)


@pytest.fixture(autouse=True)
def _nobody_was_warned():
    """What is said once is said to every test."""
    warn_once.cache_clear()


@pytest.fixture(autouse=True)
def _enabled_and_undone():
    """Every test runs with the package enabled, and has to leave transformers as it was."""
    torch.set_num_threads(1)  # tiny models: a second thread only waits
    hf_lossy_assist.enable()
    yield
    hf_lossy_assist.disable()


@pytest.fixture
def disabled(_enabled_and_undone: None):
    """For tests of what enables for itself."""
    gc.collect()  # models of other tests that are enabled still
    hf_lossy_assist.disable()
    yield
    hf_lossy_assist.enable()
