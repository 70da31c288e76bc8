"""The lossy fields of a vLLM engine and of its requests: no vLLM is needed."""

from __future__ import annotations

import functools
import json
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from hf_lossy_assist.acceptors import AllOf, TopK, Typical
from hf_lossy_assist.errors import LossyError, LossyUnsupportedError, LossyValueError
from hf_lossy_assist.integrations.vllm import check_version
from hf_lossy_assist.integrations.vllm.settings import Drafting, EngineSettings
from hf_lossy_assist.pairs import hub_cards
from tests.integrations.certified import save_certificate

MODEL = Drafting("draft_model", 5, keeps_probs=True)
LOOKUP = Drafting("ngram", 5, keeps_probs=False)
JUDGE = str(hub_cards() / "arithmetic-judge")


def test_requests_have_the_engine_s_rule_or_their_own():
    settings = EngineSettings.read({"mode": "typical", "config": {"epsilon": 0.2}}, MODEL)
    assert settings.of_request(None).rule == Typical(epsilon=0.2)
    assert settings.of_request({"lossy_mode": "typical"}).rule == Typical(), "the engine's settings are not its own"
    both = settings.of_request({"lossy_mode": '{"all_of": ["typical", "topk"]}', "lossy_config": {"budget": 0.5}})
    assert isinstance(both.rule, AllOf)
    assert both.limits.budget == 0.5
    assert EngineSettings.read({}, MODEL).of_request({"other": 1}) is None
    spelt = EngineSettings.read({"mode": "topk^typical:topk.k=3"}, MODEL)
    assert spelt.of_request({}).rule == AllOf((TopK(k=3), Typical()))
    assert spelt.of_request({"lossy_mode": "typical:epsilon=0.2"}).rule == Typical(epsilon=0.2)


def test_a_request_has_the_engine_s_heads():
    settings = EngineSettings.read({"head": {"judge": JUDGE}}, MODEL)
    assert settings.of_request({"lossy_mode": "judge"}).rule.name == "judge"
    assert settings.of_request({"lossy_mode": "judge", "lossy_head": JUDGE}).rule.name == "judge"
    with pytest.raises(LossyValueError, match="lossy_head"):
        settings.of_request({"lossy_mode": "judge", "lossy_head": "org/other"})


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"mod": "typical"}, "'mod'"),
        ("typical", "dict"),
        ({"config": {"epsilon": 0.1}}, "`mode`"),
        ({"mode": "typcal"}, "typical"),
        ({"mode": "sprinter", "head": str(hub_cards() / "arithmetic-verifier")}, "sprinter"),
        ({"mode": "typical", "config": {"tree": {"depth": 2}}}, "`tree`"),
        ({"mode": "typical", "config": {"stop_drafting": {"by": "entropy"}}}, "`stop_drafting`"),
        ({"mode": "dropmatch", "config": {"criterion": "naive"}}, "`dropout`"),
        ({"mode": "dropmatch", "config": {"dropout": 0.1}}, "probabilistic"),
        ({"mode": "judge"}, "lossy_head"),
        ({"certificate": "nowhere/at/all"}, "certificate"),
    ],
    ids=str,
)
def test_an_engine_with_bad_fields_does_not_start(given: Any, name: str):
    with pytest.raises(LossyError, match=name):
        EngineSettings.read(given, LOOKUP)


@pytest.mark.parametrize(
    ("mode", "config"),
    [
        ("topk", {"k": 5, "tree": None, "compile": False}),
        (["topk", "fly"], {"fly": {"window": 64}, "scope": {"start": "x" * 64, "end": [1] * 64}}),
        ("dropmatch", {"num_paths": 32, "dropout": 0.1, "criterion": "naive"}),
        ("topk", {"scope": {"start": 790, "end": 5}}),
        ("topk", {"scope": {"except": [["<tool_call>", "</tool_call>"], [790, [5, 6]]]}, "strict_on_quotes": 64}),
        ("topk", {"seed": 3, "strict_first_n": 4, "require_lossless": False}),
    ],
    ids=str,
)
def test_what_a_request_may_set(mode: Any, config: dict):
    settings = EngineSettings.read({"mode": "typical", "config": {"epsilon": 0.2}}, MODEL)
    assert settings.of_request({"lossy_mode": mode, "lossy_config": config}) is not None


@pytest.mark.parametrize(
    ("mode", "config", "message"),
    [
        ("topk", {"certificate": "/etc"}, "`lossy_config.certificate`"),
        ("topk", {"new": 1}, "`lossy_config.new`"),
        ("topk", {3: 1}, "`lossy_config.3`"),
        (["topk", "typical"], {"topk": {"new": 1}}, "`lossy_config.topk.new`"),
        ("topk", {"k": {"new": 1}}, "`lossy_config.k.new`"),
        ("dropmatch", {"candidates": 10**9}, "`lossy_config.candidates`"),
        ("dropmatch", {"num_paths": 33}, "`lossy_config.num_paths`"),
        ("dropmatch", {"dropmatch": {"num_paths": 10**400}}, "`lossy_config.dropmatch.num_paths`"),
        ("fly", {"window": 65}, "`lossy_config.window`"),
        ("topk", {"scope": {"start": "x" * 65, "end": "x"}}, "`lossy_config.scope.start`"),
        ("topk", {"scope": {"except": [[1, "x" * 256]]}}, "`lossy_config.scope.except`"),
        ("topk", {"strict_on_quotes": 65}, "`lossy_config.strict_on_quotes`"),
        ("topk", {"stop_drafting": {"by": "head", "head": "/etc"}}, "`stop_drafting`"),
        ("topk", {"compile": True}, "`compile`"),
        ("topk:certificate=/etc", None, "`lossy_config.certificate`"),
        ("fly:window=65:seed=1", None, "`lossy_config.window`"),
        ("topk@9", {}, "leave out the @"),
        ("topk", "k=3", "`lossy_config`"),
        ("tpok", {}, "did you mean 'topk'"),
        ("a," * 150_000, None, "at most 16,384 characters, but have 300,"),
        ("topk:k=" + "[" * 16_000, None, "`k` of the rule 'topk'"),
        ("topk:k=" + "9" * 5000, None, "`k` of the rule 'topk'"),
        ("topk@" + "9" * 5000, None, "a γ >= 0"),
        ("[" * 8000 + "]" * 8000, None, "`lossy_mode` of a request can't be read as JSON"),
        ("[" * 100_000 + "]" * 100_000, None, "at most 16,384 characters"),
        ("topk", '{"k": ' + "[" * 8000, "`lossy_config` of a request can't be read as JSON"),
        ("topk", '{"k": ' + "9" * 5000 + "}", "`lossy_config` of a request can't be read as JSON"),
        ("topk", '{"scope": {"start": "\\ud800", "end": 1}}', "`lossy_config` of a request can't be read as JSON"),
        ("topk", {"k": functools.reduce(lambda inner, _: [inner], range(5000), 1)}, "have to be plain data"),
        ("topk", {"k": 10**5000}, "have to be plain data"),
        ("topk", {"k": 1, 3: 2}, "have to be plain data"),
        ("topk", {f"k{i}": 1 for i in range(5000)}, "at most 16,384 characters"),
        ('topk:k="' + '\\"' * 4000, None, "`k` of the rule 'topk'"),
    ],
    ids=lambda value: str(value)[:60] if not isinstance(value, dict) else str([*value][:1]),
)
def test_what_a_request_may_not_set(mode: Any, config: Any, message: str):
    settings = EngineSettings.read({}, MODEL)
    with pytest.raises(LossyError, match=message):
        settings.of_request({"lossy_mode": mode, "lossy_config": config})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"lossy_mod": "typical"}, "`lossy_mod` of a request is unknown.*did you mean 'lossy_mode'"),
        ({"lossy_config": '{"epsilon": 0.1}'}, "`lossy_config` of a request needs a `lossy_mode`"),
    ],
)
def test_fields_that_are_unknown_or_alone_are_refused(asked: dict, message: str):
    with pytest.raises(LossyValueError, match=message):
        EngineSettings.read({}, MODEL).of_request(asked)


def test_a_request_may_not_ask_for_lossy_decoding_and_lossless_text():
    settings = EngineSettings.read({}, MODEL)
    asked = {"lossy_mode": "typical", "lossy_config": json.dumps({"require_lossless": True})}
    with pytest.raises(LossyValueError, match="require_lossless"):
        settings.check_request(asked, 0.0, 0, 1.0)
    settings.check_request({**asked, "lossy_mode": "lossless"}, 1.0, 0, 1.0)


def test_a_drawn_text_is_repeated_by_the_request_s_own_seed():
    settings = EngineSettings.read({"mode": "typical", "config": {"seed": 7}}, MODEL)
    with pytest.raises(LossyValueError, match="own `seed`"):
        settings.check_request(None, 1.0)
    settings.check_request(None, 0.0)
    settings.check_request(None, 1.0, seed=7)


@pytest.mark.parametrize("config", [{"scope": {"start": 1, "end": 2}}, {"strict_on_quotes": 2}], ids=str)
def test_a_limit_by_the_text_needs_texts_on_the_host(config: dict):
    ahead = Drafting("draft_model", 5, keeps_probs=False, texts_on_host=False)
    with pytest.raises(LossyError, match=f"`{next(iter(config))}` .*no-async-scheduling"):
        EngineSettings.read({"mode": "typical", "config": config}, ahead)


def test_a_certificate_is_of_drafts_by_the_drafter_s_own_head(pair, tmp_path):
    lossy = {"certificate": save_certificate(pair, tmp_path, MODEL.tokens)}
    assert EngineSettings.read(lossy, MODEL).of_request({}).certificate is not None
    with pytest.raises(LossyUnsupportedError, match="draft_lm_head_quantization"):
        EngineSettings.read(lossy, replace(MODEL, rounds_head=True))


@pytest.mark.parametrize(
    ("version", "known"), [("0.32.0+cpu", True), ("0.33.1", True), ("0.34.0", False), ("0.3", False)]
)
def test_other_versions_of_vllm_are_refused(version: str, known: bool, monkeypatch):
    vllm = ModuleType("vllm")
    vllm.__version__ = version
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    with nullcontext() if known else pytest.raises(LossyUnsupportedError, match=re.escape(version)):
        check_version()
