"""From fields to rules."""

from __future__ import annotations

import pytest

from hf_lossy_assist.acceptors import REGISTRY, AllOf, AnyOf, DropMatch, Lossless, TopK, register
from hf_lossy_assist.config import RunConfig, head_type, nearest, parse
from hf_lossy_assist.errors import LossyValueError


def test_every_rule_can_be_named_without_settings():
    for name, rule in REGISTRY.items():
        if head_type(rule) is None:
            assert parse(name) == RunConfig(rule())
        else:
            with pytest.raises(LossyValueError, match=f"`lossy_head` has to be given for the rule '{name}'"):
                parse(name)


def test_lists_and_all_of():
    config = {"topk": {"k": 4}, "seed": 3}
    assert parse(["topk", "dropmatch"], config) == RunConfig(AnyOf((TopK(k=4), DropMatch())), seed=3, break_even=False)
    assert parse({"all_of": ["dropmatch", "topk"]}, config) == RunConfig(
        AllOf((DropMatch(), TopK(k=4))), seed=3, break_even=False
    )
    assert parse(["topk", "dropmatch"]).acceptor.name == "topk or dropmatch"


def test_the_caller_s_dicts_stay_as_they_were():
    config = {"beta": 0.2, "seed": 1, "require_lossless": False}
    parse("ears", config)
    assert config == {"beta": 0.2, "seed": 1, "require_lossless": False}


def test_nearest():
    assert nearest("typicl", REGISTRY) == "; did you mean 'typical'?"
    assert nearest("zzz", REGISTRY) == ""


def test_a_rule_of_ones_own_is_registered_once():
    class Mine(Lossless):
        name = "mine"

    class Other(Lossless):
        name = "mine"

    try:
        assert register(Mine) is Mine is register(Mine)
        assert parse("mine").acceptor == Mine()
        with pytest.raises(LossyValueError, match="'mine' is Mine"):
            register(Other)
    finally:
        REGISTRY.pop("mine", None)


def test_a_list_never_claims_to_sample_losslessly():
    nothing = {"typical": {"epsilon": 1.0, "delta": 1e9}}
    rule = parse(["lossless", "typical"], nothing).acceptor
    assert rule.is_lossless(do_sample=False)
    assert not rule.is_lossless(do_sample=True), "p/q acceptance with a correction from p is not p"
