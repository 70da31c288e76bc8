"""The loopback Hub as a fixture: inside a test, ``huggingface_hub`` talks to it and to nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from .server import TOKEN, LoopbackHub


@pytest.fixture
def loopback_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    """A Hub with nothing in it, an empty cache, and nobody signed in."""
    with LoopbackHub() as hub:
        # The client read its environment when it was imported, perhaps one that forbids all traffic.
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        # Xet is a protocol of its own; without it, big files go through git LFS.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, "127.0.0.1")
        huggingface_hub.close_session()
        yield hub
    huggingface_hub.close_session()


@pytest.fixture
def signed_in(loopback_hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> LoopbackHub:
    """The loopback Hub, with a token that may do everything."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return loopback_hub
