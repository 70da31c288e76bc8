"""An engine refuses to start with bad settings, and with models other than a certificate's."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError

from hf_lossy_assist.acceptors import Typical
from hf_lossy_assist.generation.certificate import Certificate, TestedSetting
from hf_lossy_assist.generation.config import LossyConfig
from hf_lossy_assist.heads import ModelIdentity
from tests.vllm.asking import asking, prompts_of, texts
from tests.vllm.conftest import BY_MODEL, GAMMA, start


@pytest.mark.parametrize(
    ("lossy", "changes", "name"),
    [
        ({"mode": "typical", "config": {"epsilon": 3}}, {}, "epsilon"),  # others: the tests of settings
        ({"mode": "typical"}, {"speculative_config": None}, "speculative-config"),
        ({"mode": "typical"}, {"speculative_config": {**BY_MODEL, "rejection_sample_method": "block"}}, "block"),
    ],
    ids=str,
)
def test_an_engine_with_bad_settings_does_not_start(lossy: dict, changes: dict, name: str):
    with pytest.raises(ValueError, match=name):
        start({"lossy": lossy}, **changes)


@pytest.fixture(scope="module")
def certificate(pair, tmp_path_factory) -> str:
    tested = TestedSetting(
        "typical",
        "typical",
        {"lossy_mode": "typical", "lossy_config": None, "num_assistant_tokens": GAMMA},
        "certified",
    )
    folder = tmp_path_factory.mktemp("certificate")
    identities: dict[str, Any] = {role: asdict(ModelIdentity.of(getattr(pair, role))) for role in ("target", "draft")}
    Certificate(
        task="arithmetic", split="test", problems=9, digest="0", max_loss=1, confidence=95, reference="lossless",
        chosen="typical", tested=[tested], rule=LossyConfig(Typical()).in_full(), temperature=None, heads={},
        **identities,
    ).save(folder)  # fmt: skip
    return str(folder)


def test_a_certificate_of_other_settings_keeps_the_engine_from_starting(certificate: str):
    with pytest.raises(ValueError, match=f"drafts {GAMMA} tokens a round, not 3"):
        start({"lossy": {"certificate": certificate}}, speculative_config={**BY_MODEL, "num_speculative_tokens": 3})


def test_a_certificate_alone_runs_what_it_certifies(certificate: str, engine, pair):
    certified, prompts = start({"lossy": {"certificate": certificate}}), prompts_of(pair)
    assert texts(certified, prompts, asking()) == texts(engine, prompts, asking("typical"))
    for refused in (asking("topk"), asking(temperature=1.0)):
        with pytest.raises(VLLMValidationError, match="certificate"):
            texts(certified, prompts, refused)
