"""From fields to rules."""

from __future__ import annotations

import json

import pytest

from hf_lossy_assist.acceptors import REGISTRY, AllOf, AnyOf, DropMatch, Judge, Lossless, TopK, head_type, register
from hf_lossy_assist.call.config import RunConfig, lossy_fields, parse
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


@pytest.mark.parametrize("name", [name for name, rule in REGISTRY.items() if head_type(rule) is None])
def test_a_rule_in_the_place_of_its_name_is_that_rule(name: str):
    """Alone, in a list, among all of several, and composed; as plain fields, which JSON can hold."""
    rule = REGISTRY[name](**REGISTRY[name].usual)
    assert parse(rule) == parse(name, dict(rule.usual))
    assert parse(rule, {"seed": 3}) == parse(name, {**rule.usual, "seed": 3})
    other = Lossless() if name != "lossless" else TopK()
    for mode in ([rule, other], (rule, other.name), AnyOf((rule, other))):
        assert parse(mode) == parse([name, other.name], {name: dict(rule.usual)})
    for mode in ({"all_of": [rule, other]}, AllOf((rule, other))):
        assert parse(mode) == parse({"all_of": [name, other.name]}, {name: dict(rule.usual)})
    fields = json.loads(json.dumps(lossy_fields([rule, other], {"seed": 1})))
    assert parse(*fields.values()) == parse([rule, other], {"seed": 1})


def test_a_rule_with_a_head_brings_its_head(pair):
    head, verifier = pair.heads["judge"], pair.heads["verifier"]
    assert parse(Judge(head)).acceptor == parse("judge", head=head).acceptor
    assert parse(Judge(head, threshold=0.1)).acceptor == parse("judge", {"threshold": 0.1}, head).acceptor
    assert parse(Judge(head, recall=0.95)).acceptor == parse("judge", {"recall": 0.95}, head).acceptor
    several = parse([Judge(head), "sprinter", TopK(k=3)], head={"sprinter": verifier})
    expected = parse(["judge", "sprinter", "topk"], {"topk": {"k": 3}}, {"judge": head, "sprinter": verifier})
    assert several.acceptor.rules[0].threshold == expected.acceptor.rules[0].threshold
    assert several.acceptor.name == expected.acceptor.name


@pytest.mark.parametrize(
    ("mode", "config", "head", "message"),
    [
        (TopK(k=3), {"k": 2}, None, "`lossy_config` has \\['k'\\]"),
        ([TopK(k=3), "ears"], {"topk": {"k": 2}}, None, "`lossy_config` has {'k': 2}"),
        (TopK(k=3), None, "org/name", "`lossy_head` is not used"),
        ([TopK(), TopK(k=3)], None, None, "every rule once"),
        ("topk,dropmatch", None, None, "pass a list, \\['topk', 'dropmatch'\\]"),
        ("topk", {"sead": 1}, None, "did you mean 'seed'"),
        ("topk", {"K": 1}, None, "did you mean 'k'"),
        (["topk", "ears"], {"requirelossless": True}, None, "did you mean 'require_lossless'"),
        ("TopK", None, None, "did you mean 'topk'"),
    ],
)
def test_what_is_given_twice_or_misspelt_is_refused_with_a_remedy(mode, config, head, message):
    with pytest.raises(LossyValueError, match=message):
        parse(mode, config, head)
