"""An engine refuses to start with bad settings, and with models other than a certificate's."""

from __future__ import annotations

import pytest
from vllm import envs
from vllm.exceptions import VLLMValidationError

from tests.integrations.certified import save_certificate
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


def test_a_front_end_that_checks_no_request_is_refused(monkeypatch):
    monkeypatch.setattr(envs, "VLLM_USE_RUST_FRONTEND", True, raising=False)
    with pytest.raises(ValueError, match="VLLM_USE_RUST_FRONTEND"):
        start({"lossy": {}})


@pytest.fixture(scope="module")
def certificate(pair, tmp_path_factory) -> str:
    return save_certificate(pair, tmp_path_factory.mktemp("certificate"), GAMMA)


def test_a_certificate_of_other_settings_keeps_the_engine_from_starting(certificate: str):
    with pytest.raises(ValueError, match=f"drafts {GAMMA} tokens a round, not 3"):
        start({"lossy": {"certificate": certificate}}, speculative_config={**BY_MODEL, "num_speculative_tokens": 3})


def test_a_certificate_alone_runs_what_it_certifies(certificate: str, engine, pair):
    certified, prompts = start({"lossy": {"certificate": certificate}}), prompts_of(pair)
    assert texts(certified, prompts, asking()) == texts(engine, prompts, asking("typical"))
    for refused in (asking("topk"), asking(temperature=1.0)):
        with pytest.raises(VLLMValidationError, match="certificate"):
            texts(certified, prompts, refused)
