"""From fields to rules; and the types of keywords, which name the same fields."""

from __future__ import annotations

import json
from random import Random
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_lossy_assist import acceptors
from hf_lossy_assist.acceptors import REGISTRY, AllOf, AnyOf, DropMatch, Judge, Lossless, TopK, head_type, register
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.generation.config import FIELDS, RUN_KEYS, LossyConfig
from hf_lossy_assist.generation.drafter_choice import DRAFTING
from hf_lossy_assist.generation.enabling import LossyKeywords, enable, enabled
from hf_lossy_assist.generation.spelling import LossyMode, Spelling, spelt, split
from hf_lossy_assist.heads import JudgeHead
from tests.acceptors.fixtures import HEADS as HEADS_FOR
from tests.tiny_models import tiny
from tests.trial.drawing import settings_for

parse = LossyConfig.from_fields
HEADS = {rule: head(tiny(), tiny()) for rule, head in HEADS_FOR.items()}


def test_every_rule_can_be_named_without_settings():
    for name, rule in REGISTRY.items():
        if head_type(rule) is None:
            assert parse(name) == LossyConfig(rule())
        else:
            with pytest.raises(LossyValueError, match=f"`lossy_head` has to be given for the rule '{name}'"):
                parse(name)


def test_lists_and_all_of():
    config = {"topk": {"k": 4}, "seed": 3}
    assert parse(["topk", "dropmatch"], config) == LossyConfig(AnyOf((TopK(k=4), DropMatch())), seed=3)
    assert parse({"all_of": ["dropmatch", "topk"]}, config) == LossyConfig(AllOf((DropMatch(), TopK(k=4))), seed=3)
    assert parse(["topk", "dropmatch"]).rule.name == "topk or dropmatch"


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
        assert parse("mine").rule == Mine()
        with pytest.raises(LossyValueError, match="'mine' is Mine"):
            register(Other)
    finally:
        REGISTRY.pop("mine", None)


def test_a_list_never_claims_to_sample_losslessly():
    nothing = {"typical": {"epsilon": 1.0, "delta": 1e9}}
    rule = parse(["lossless", "typical"], nothing).rule
    assert rule.is_lossless(do_sample=False)
    assert not rule.is_lossless(do_sample=True), "p/q acceptance with a correction from p is not p"


RUN_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**63 - 1),
        "require_lossless": st.booleans(),
        "compile": st.booleans(),
        "inspect": st.booleans(),
        "strict_first_n": st.integers(0, 9),
        "budget": st.floats(0, 1),
        "scope": st.sampled_from(["thinking", {"start": "<a, b", "end": [1, 2]}, {"except": [["<a", 3]]}]),
        "strict_on_quotes": st.integers(1, 9),
        "tree": st.sampled_from([{"depth": 3}, {"nodes": "auto"}]),
        "stop_drafting": st.sampled_from([{"by": "confidence", "threshold": 0.5}, {"by": "acceptance"}]),
    },
)


@st.composite
def all_fields(draw: st.DrawFn) -> dict[str, Any]:
    """Draw fields: one rule, a list or all of several, with settings of the rules and of the run."""
    chosen = st.lists(st.sampled_from([*REGISTRY]), min_size=1, max_size=3, unique=True)
    names = draw(chosen.filter(lambda names: len(names) == 1 or "block" not in names))
    random = Random(draw(st.integers(0, 2**32)))
    own = {name: settings_for(random, REGISTRY[name]) for name in names}
    if len(names) > 1:
        own.get("lossless", {}).pop("verification", None)  # lists decide no drafts as wholes
    every = len(names) > 1 and "sprinter" not in names and draw(st.booleans())
    mode = names[0] if len(names) == 1 else {"all_of": names} if every else names
    config = {**(own[names[0]] if len(names) == 1 else own), **draw(RUN_SETTINGS)}
    heads = {name: HEADS[name] for name in names if name in HEADS}
    return {"lossy_mode": mode, "lossy_config": config, "lossy_head": heads or None}


@given(all_fields())
def test_fields_and_configurations_say_the_same(given_fields: dict[str, Any]):
    """From fields to a configuration, to fields as JSON keeps them, and from rules in the place of names."""
    config = parse(*given_fields.values())
    fields = config.to_fields()
    heads = fields.pop("lossy_head")
    kept = json.loads(json.dumps(fields))
    assert parse(*kept.values(), heads) == config
    mode, run = kept["lossy_mode"], {key: x for key, x in (kept["lossy_config"] or {}).items() if key in RUN_KEYS}
    assert parse(config.rule, run) == config
    rules = getattr(config.rule, "rules", None)
    if rules is not None:
        assert parse({"all_of": [*rules]} if isinstance(mode, dict) else rules, run) == config


@given(all_fields(), st.none() | st.just("auto") | st.integers(1, 99))
def test_a_spelling_says_what_fields_say(given_fields: dict[str, Any], gamma: int | str | None):
    mode, config, heads = given_fields.values()
    spelling = Spelling(mode, config, gamma)
    again = Spelling.read(str(spelling))
    assert parse(again.mode, again.config, heads) == parse(mode, config, heads)
    assert (again.mode, again.gamma, str(again)) == (mode, gamma, str(spelling))
    assert split(f"{spelling},{spelling}", ",") == [str(spelling)] * 2
    assert parse(*spelt(str(Spelling(mode, config)), None, "mode"), heads) == parse(mode, config, heads)


@given(st.text('a,:[]{}"\\', max_size=30), st.sampled_from(",:"))
def test_a_text_is_split_outside_of_strings_lists_and_dicts(text: str, separator: str):
    parts, depth, string, escaped = [""], 0, False, False
    for character in text:
        depth += 0 if string else (character in "[{") - (character in "]}")
        if character == separator and depth == 0 and not string:
            parts.append("")
            continue
        parts[-1] += character
        string, escaped = string ^ (character == '"' and not escaped), string and character == "\\" and not escaped
    assert split(text, separator) == parts


def test_a_text_that_is_too_long_to_be_modes_is_not_read():
    with pytest.raises(LossyValueError, match=r"at most 16,384 characters, but .* has 300,000"):
        split("a:" * 150_000, ":")


@pytest.mark.parametrize("name", [name for name, rule in REGISTRY.items() if head_type(rule) is None])
def test_a_rule_in_the_place_of_its_name_is_that_rule(name: str):
    rule = REGISTRY[name](**REGISTRY[name].usual)
    assert parse(rule, {"seed": 3}) == parse(name, {**rule.usual, "seed": 3})
    other = Lossless() if name != "lossless" else TopK()
    for mode in ([rule, other], (rule, other.name), AnyOf((rule, other))):
        assert parse(mode) == parse([name, other.name], {name: dict(rule.usual)})


def test_a_rule_with_a_head_brings_its_head(pair):
    head, verifier = pair.heads["judge"], pair.heads["verifier"]
    assert parse(Judge(head)).rule == parse("judge", head=head).rule
    assert parse(Judge(head, threshold=0.1)).rule == parse("judge", {"threshold": 0.1}, head).rule
    assert parse(Judge(head, recall=0.95)).rule == parse("judge", {"recall": 0.95}, head).rule
    several = parse([Judge(head), "sprinter", TopK(k=3)], head={"sprinter": verifier})
    expected = parse(["judge", "sprinter", "topk"], {"topk": {"k": 3}}, {"judge": head, "sprinter": verifier})
    assert several.rule.rules[0].threshold == expected.rule.rules[0].threshold
    assert several.rule.name == expected.rule.name


@pytest.mark.parametrize(
    ("mode", "config", "head", "message"),
    [
        ([TopK(k=3), "ears"], {"topk": {"k": 2}}, None, "`lossy_config` has {'k': 2}"),
        (Judge(HEADS["judge"]), None, "org/name", "the rule 'judge' has a head"),
        (TopK(k=3), None, "org/name", "`lossy_head` is not used"),
        ([TopK(), TopK(k=3)], None, None, "every rule once"),
        ("topk, dropmatch", None, None, "write `topk\\+dropmatch`"),
        ("topk:k=3,typical", None, None, "has to be one mode"),
        ("topk:k=3", None, None, "pass `lossy_mode='topk'` and `lossy_config={'k': 3}`$"),
        ("min_p@8", None, None, "pass `lossy_mode='min_p'` and `num_assistant_tokens=8`$"),
        ("auto", None, None, "but is 'auto'$"),
        ("min_p", {"verification": "block"}, None, "; it belongs to the rule 'lossless'$"),
        ("topk", {"delta": 1}, None, "; it belongs to the rules 'cactus', 'relaxed', 'typical'$"),
        ("topk@x", None, None, "a γ >= 0 .*'auto', but has 'x'"),
        ("topk:k", None, None, "KEY=VALUE"),
        ("topk:k=3:k.x=2", None, None, "KEY=VALUE or RULE.KEY=VALUE"),
        ("topk+dropmatch", None, None, "pass `lossy_mode=\\['topk', 'dropmatch'\\]`"),
        (["topk", "erss"], None, None, "did you mean 'ears'"),
        (3, None, None, "has to be a str, a list of str, .* but is 3"),
        ([], None, None, r"at least one rule, but is \[\]"),
        ({"any": ["topk"]}, None, None, "{'all_of': .modes.}, but is {'any'"),
        ("lossless", {"k": 1}, None, r"'k' is unknown to the rule 'lossless', which has \['verification'\]"),
        ("ears", "beta=1", None, "`lossy_config` has to be a dict, but is 'beta=1'"),
        (["topk", "typical"], {"topkk": {"k": 2}}, None, "keyed by rule, .* did you mean 'topk'"),
        (["topk", "typical"], {"k": 2}, None, "keyed by rule, .* has the key 'k'"),
        ("lossless", {"compile": "yes"}, None, "`compile` in `lossy_config` has to be a bool or None, but is 'yes'"),
        ("lossless", {"scope": "dreaming"}, None, "`scope` .*'thinking'.* 'dreaming'"),
        ("lossless", {"scope": {"except": ["<a>", "</a>"]}}, None, "`scope` .*`except` \\(a list of pairs\\)"),
        ("lossless", {"scope": {"start": "<a>", "except": []}}, None, "`scope` .*`start` and `end`"),
        ("lossless", {"strict_on_quotes": 0}, None, "`strict_on_quotes` .* >= 1 .* 0"),
        ("lossless", {"budget": 1.5}, None, "`budget` .* 1.5"),
        ("lossless", {"strict_first_n": -1}, None, "`strict_first_n` .* -1"),
        ("lossless", {"certificate": 3}, None, "`certificate` .* but is 3"),
        ("lossless", None, "org/head", r"not used by `lossy_mode` \['lossless'\]; leave it out, but got 'org/head'"),
        ("judge", None, 3, "`lossy_head` of the rule 'judge' .* JudgeHead, but is 3"),
        (["judge", "topk"], None, {"topk": "org/head"}, r"the rules that use a head, \['judge'\], .* 'topk'"),
        ("judge", {"threshold": 0.1, "recall": 0.9}, HEADS["judge"], "`threshold` and `recall` of the rule 'judge'"),
        ("judge", None, JudgeHead(HEADS["judge"].config), "`lossy_head` .* not finite"),
        ("topk", {"K": 1}, None, "did you mean 'k'"),
        (["topk", "ears"], {"requirelossless": True}, None, "did you mean 'require_lossless'"),
    ],
)
def test_what_is_given_twice_or_misspelt_is_refused_with_a_remedy(mode, config, head, message):
    with pytest.raises(LossyValueError, match=message):
        parse(mode, config, head)


def test_what_fields_can_not_say_is_an_error():
    class Own(Lossless):
        name = "own"

    assert parse(Own()).rule == Own(), "a rule itself needs no name"
    with pytest.raises(LossyValueError, match="can't name"):
        parse(Own()).to_fields()
    with pytest.raises(LossyValueError, match="can't hold all of"):
        LossyConfig(Judge(HEADS["judge"], base=TopK())).to_fields()
    for bad in ({"seed": -1}, {"seed": True}, {"inspect": None}, {"compile": 1}):
        with pytest.raises(LossyValueError, match=f"`{next(iter(bad))}` in `lossy_config`"):
            LossyConfig(Lossless(), **bad)


@pytest.mark.parametrize(
    ("text", "config", "message"), [("topk@8", None, "leave out the @"), ("topk:k=3", {"k": 2}, "both have 'k'")]
)
def test_what_a_text_can_not_say_beside_its_settings(text, config, message):
    with pytest.raises(LossyValueError, match=f"`mode` .*{message}"):
        spelt(text, config, "mode")
    assert spelt(["topk"], config, "mode") == (["topk"], config)
    assert spelt("topk:k=3", {"seed": 1}, "mode") == ("topk", {"k": 3, "seed": 1})


def test_every_rule_of_the_package_is_named():
    own = [name for name, rule in acceptors.REGISTRY.items() if rule.__module__.startswith("hf_lossy_assist.")]
    assert sorted(get_args(LossyMode)) == sorted(own)


def test_every_keyword_is_named():
    assert {*LossyKeywords.__annotations__} == {*FIELDS, *DRAFTING}
    for function in (enable, enabled):
        assert get_args(get_type_hints(function)["defaults"]) == (LossyKeywords,)
