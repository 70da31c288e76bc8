"""Heads that read hidden states: judges of mismatches and verifiers of drafted tokens."""

from __future__ import annotations

from .folding import fold
from .head import Head
from .head_config import HeadConfig
from .head_loading import load_head
from .identity import ModelIdentity
from .judge_head import JudgeConfig, JudgeHead, ThresholdRow, columns
from .verifier_head import VerifierConfig, VerifierHead, VerifierRow

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
