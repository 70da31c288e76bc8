"""Shared fixtures."""

from __future__ import annotations

import pytest
import torch

import hf_lossy_assist


@pytest.fixture(autouse=True)
def _enabled_and_undone():
    """Every test runs with the package enabled, and has to leave transformers as it was."""
    torch.set_num_threads(1)  # tiny models: a second thread only waits
    with hf_lossy_assist.enabled():
        yield
