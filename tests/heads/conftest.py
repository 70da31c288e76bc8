"""Heads for the tests."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from hf_lossy_assist.heads import (
    JudgeConfig,
    JudgeHead,
    ModelIdentity,
    ThresholdRow,
    VerifierConfig,
    VerifierHead,
    VerifierRow,
)
from tests.tiny_models import noisy_copy, tiny


@pytest.fixture(scope="session")
def target() -> PreTrainedModel:
    return tiny("llama")


@pytest.fixture(scope="session")
def draft(target: PreTrainedModel) -> PreTrainedModel:
    return noisy_copy(target, noise=0.2)


@pytest.fixture
def judge(target: PreTrainedModel, draft: PreTrainedModel) -> JudgeHead:
    config = JudgeConfig(
        target=ModelIdentity.of(target),
        draft=ModelIdentity.of(draft),
        task="arithmetic",
        threshold=0.125,
        thresholds=(ThresholdRow(0.5, 0.8, 0.9), ThresholdRow(0.125, 0.9, 0.7), ThresholdRow(0.01, 0.99, 0.2)),
        metrics={"auc": 0.9375},
        provenance={"argv": "lossy-assist train judge --data D --out H".split(), "versions": {"torch": "2.13.0"}},
    )
    generator = torch.Generator().manual_seed(0)
    return JudgeHead(config, torch.randn(32, generator=generator), torch.randn((), generator=generator))


@pytest.fixture
def verifier(target: PreTrainedModel, draft: PreTrainedModel) -> VerifierHead:
    config = VerifierConfig(
        target=ModelIdentity.of(target),
        draft=ModelIdentity.of(draft),
        task="arithmetic",
        position="previous",
        ratio=1.2,
        thresholds=(VerifierRow(0.5, 0.9, 0.2),),
        metrics={"auc": 0.8, "tpr": 0.9, "fpr": 0.2},
    )
    return VerifierHead(config, torch.linspace(-1, 1, 32), 0.25)
