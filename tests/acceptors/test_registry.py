"""Settings are checked, described, documented and fuzzed as their rule declares them."""

from __future__ import annotations

import math
import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from docs.generator import tables
from hf_lossy_assist import LossyValueError, last_stats
from hf_lossy_assist import acceptors as package
from hf_lossy_assist.acceptors import REGISTRY, Acceptor, Setting, settings_of, summary_of
from hf_lossy_assist.generation.config import LossyConfig
from tests.acceptors.fixtures import HEADS
from tests.tiny_models import noisy_copy, prompt, tiny
from tests.trial.drawing import settings_for

parse = LossyConfig.from_fields

TARGET = tiny()
SETTINGS = [
    pytest.param(name, each, id=f"{name}-{each.name}") for name in REGISTRY for each in settings_of(REGISTRY[name])
]
EVERY_RULE = pytest.mark.parametrize("name", REGISTRY)
FILE = '''
from dataclasses import dataclass

from hf_lossy_assist.acceptors import Acceptor, register, setting


@register
@dataclass(frozen=True)
class Bold(Acceptor):
    """Keep x iff ``p(x) >= share``, and at most ``most`` tokens of a round. Correction: lossless.

    Parameters
    ----------
    share
        The smallest probability
        of a kept token.
    most, unit
        How many, and of what.
    """

    share: float = setting(0.25, 0, 0.5)
    most: int = setting(3, 1, integer=True)
    unit: str = setting("tokens", choices=("tokens", "words"))

    name = "bold"
    paper = "A paper, section 2"

    def keep(self, v):
        return (v.p_x >= self.share) & v.allowed & (v.allowed.cumsum(-1) <= self.most)
'''


def rule(name: str, **config: Any) -> Acceptor:
    return parse(name, config, HEADS[name](TARGET, TARGET) if name in HEADS else None).rule


@pytest.fixture
def bold(tmp_path: Path) -> Iterator[type[Acceptor]]:
    """A rule that is nothing but a file."""
    (tmp_path / "bold.py").write_text(FILE)
    try:
        yield runpy.run_path(str(tmp_path / "bold.py"))["Bold"]
    finally:
        REGISTRY.pop("bold", None)


def test_a_rule_is_one_file(bold: type[Acceptor]):
    draft = noisy_copy(TARGET, 0.05)
    kwargs = {"input_ids": prompt(), "assistant_model": draft, "max_new_tokens": 20, "do_sample": False}
    TARGET.generate(**kwargs, lossy_mode="bold", lossy_config={"share": 0.01, "most": 2})
    assert last_stats(TARGET).accepted_by.keys() == {"bold"}
    assert 0 < last_stats(TARGET).mean_accepted <= 2
    for config, named in (({"share": 0.6}, "`share`"), ({"shares": 0.1}, "'share'")):
        with pytest.raises(LossyValueError, match=named):
            TARGET.generate(**kwargs, lossy_mode="bold", lossy_config=config)
    assert summary_of(bold).startswith("Keep x iff p(x) >= share, and at most")
    assert [(each.name, each.bound.expected, each.help) for each in settings_of(bold)] == [
        ("share", "a number >= 0 and <= 0.5", "The smallest probability of a kept token."),
        ("most", "an int >= 1", "How many, and of what."),
        ("unit", "one of ['tokens', 'words']", "How many, and of what."),
    ]
    drawn = [settings_for(Random(seed), bold) for seed in range(60)]
    for config in drawn:
        parse("bold", config)
    assert {key for config in drawn for key in config} == {"share", "most", "unit"}
    assert {config.get("unit") for config in drawn} == {None, "tokens", "words"}
    assert max(config.get("share", 0) for config in drawn) > 0.25


def test_every_file_of_the_package_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A rule's file in the folder is enough: nothing else has to name it."""
    (tmp_path / "bold.py").write_text(FILE)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    scope = {name: getattr(package, name) for name in ("__name__", "__path__", "__package__")}
    try:
        exec(Path(package.__file__).read_text(encoding="utf-8"), scope)
        assert list(REGISTRY)[-1] == "bold"
        assert parse("bold", {"most": 2}).rule.most == 2
    finally:
        REGISTRY.pop("bold", None)
        sys.modules.pop(f"{package.__name__}.bold", None)
        vars(package).pop("bold", None)


@pytest.mark.parametrize(("name", "each"), SETTINGS, ids=lambda x: getattr(x, "name", x))
def test_bounds_are_those_declared(name: str, each: Setting):
    """Values at the bounds are taken, those beyond are refused by name, value and bounds."""
    inside, outside = boundary(each)
    for value in inside:
        assert getattr(rule(name, **{each.name: value}), each.name) == value
    for value in outside:
        with pytest.raises(LossyValueError, match=rf"`{each.name}` of the rule '{name}'") as caught:
            rule(name, **{each.name: value})
        assert repr(value) in str(caught.value)


def boundary(each: Setting) -> tuple[list[Any], list[Any]]:
    """Return values at the bounds of a setting, and others that are beyond them or of another type."""
    absent = [] if each.may_be_none else [None]
    if each.switch:
        return [True, False], [0, 1, "true", *absent]
    if each.choices:
        return list(each.choices), ["", each.choices[0].upper(), 1, *absent]
    step = 1 if each.integer else 1e-6
    beyond = [each.low - step, *([each.high + step] if math.isfinite(each.high) else [])]
    at = [each.low, *([] if each.integer and math.isinf(each.high) else [each.high])]
    at += [each.word] if each.word else []
    at += [None] if each.may_be_none and each.default is not None else []
    return at, [*beyond, True, "1", math.nan, *([1.5, 2.0] if each.integer else []), *absent]


@EVERY_RULE
def test_every_setting_is_declared_and_documented(name: str):
    for each in settings_of(REGISTRY[name]):
        assert each.choices or each.switch or each.low is not None, "a built-in rule says what its settings may be"
        assert each.help.endswith("."), f"{each.name} stands under Parameters, in a sentence"


@EVERY_RULE
def test_the_usual_and_the_lossless_settings_work(name: str):
    if name == "lossless":
        return
    usual, strict = (rule(name, **config) for config in (REGISTRY[name].usual, REGISTRY[name].lossless_at))
    lossy_where = usual.relaxes != "greedy"
    assert not usual.is_lossless(do_sample=lossy_where), "what is measured can differ from the lossless rule"
    assert strict.is_lossless(do_sample=False)
    assert strict.is_lossless(do_sample=True) == REGISTRY[name].lossless_when_sampling


@pytest.mark.parametrize(
    ("mode", "config", "greedy", "sampling"),
    [
        ("thresholds", {}, True, True),
        ("thresholds", {"threshold_acc": 0.5}, True, False),
        ("thresholds", {"threshold_single": 0.9}, False, False),
        ("near_top", {"alpha": 0}, True, False),
        ("lenience", {"factor": 1}, True, True),
        ("lenience", {}, False, False),
        ("fsd", {"threshold": 0}, True, True),
        ("fly", {"theta": 2}, True, True),
        ("fly", {}, False, False),
        ("min_p", {"tau": 1.0}, True, False),
    ],
)
def test_what_is_said_to_be_lossless(mode: str, config: dict, greedy: bool, sampling: bool):
    assert [rule(mode, **config).is_lossless(do_sample=drawn) for drawn in (False, True)] == [greedy, sampling]


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("threshold", [0.0, 1e-9, 0.3, 0.75, 1.0])
def test_a_head_brings_its_threshold(name: str, threshold: float):
    head = HEADS[name](TARGET, TARGET)
    object.__setattr__(head.config, "threshold", threshold)
    assert parse(name, {}, head).rule.threshold == threshold
    assert parse(name, {"threshold": None}, head).rule.threshold == threshold
    assert parse(name, {"threshold": 0.25}, head).rule.threshold == 0.25


def test_fields_that_are_not_declared_are_settings_without_bounds():
    @dataclass(frozen=True)
    class Plain(Acceptor):
        words: tuple[str, ...] = ("a",)
        more: list[int] = field(default_factory=list)
        name = "plain"

        def keep(self, v):
            return v.allowed

    assert settings_of(Plain) == (Setting("words", ("a",)), Setting("more", []))
    assert Plain(words=3).words == 3
    assert not any(Plain().is_lossless(do_sample) for do_sample in (True, False)), "it does not say that it ever is"


@pytest.mark.parametrize("name", tables.MADE)
def test_what_the_page_of_rules_says_is_made_from_their_classes(name: str):
    text = tables.PAGE.read_text(encoding="utf-8")
    assert tables.with_part(text, name, tables.MADE[name]()) == text, "run `make tables`"


def test_every_rule_carries_its_formula_and_has_a_row():
    for name, cls in REGISTRY.items():
        assert cls.formula is not None
        (line,) = (x for x in tables.table().splitlines() if x.startswith(f"| [`{name}`](#{name}) | "))
        assert re.sub(r"\[(arXiv:[\d.]+)\]\([^)]+\)", r"\1", line.split(" | ")[1]) == cls.paper
