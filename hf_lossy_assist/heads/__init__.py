"""Heads that read hidden states: judges of mismatches and verifiers of drafted tokens."""

from __future__ import annotations

from .base import Head
from .config import HeadConfig
from .features import columns
from .folding import fold
from .identity import ModelIdentity
from .judge import JudgeConfig, JudgeHead, ThresholdRow
from .loading import load_head
from .verifier import VerifierConfig, VerifierHead, VerifierRow

__all__ = [
    "Head",
    "HeadConfig",
    "JudgeConfig",
    "JudgeHead",
    "ModelIdentity",
    "ThresholdRow",
    "VerifierConfig",
    "VerifierHead",
    "VerifierRow",
    "columns",
    "fold",
    "load_head",
]
