"""The Space: what its components say reaches the rules, and a person can use it in a browser."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hf_lossy_assist import LossyValueError, pairs
from hf_lossy_assist.acceptors import REGISTRY, settings_of
from hf_lossy_assist.generation.config import LossyConfig
from tests.acceptors.fixtures import HEADS
from tests.tiny_models import tiny

parse = LossyConfig.from_fields

APP = pairs.hub_cards() / "lossy-assist-space" / "app.py"
TARGET = tiny()
_SPEC = importlib.util.spec_from_file_location("space_app", APP)
space = importlib.util.module_from_spec(_SPEC)
sys.modules["space_app"] = space  # dataclasses look their module up
_SPEC.loader.exec_module(space)
TARGET_ALONE = space.TARGET_ALONE


@pytest.fixture
def gradio(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    return pytest.importorskip("gradio", reason="gradio is not installed")


@pytest.fixture
def address(gradio: Any, pair: pairs.Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The app of the Space, as its file makes it, on the bundled pair."""
    monkeypatch.setattr(space, "_loaded", lambda name: pair)
    monkeypatch.setattr(space, "_TOKENS", 24)
    blocks = space.app()
    try:
        yield blocks.launch(prevent_thread_lock=True, server_name="127.0.0.1", quiet=True)[1]
    finally:
        blocks.close()


def untouched(knob: space.Knob) -> list[Any]:
    """Return what the components of a knob say where nobody has moved them."""
    if knob.setting.choices:
        return [knob.setting.default]
    return [knob.start] if knob.start is not None else [False, knob.bounds[0]]


def choices(rule: str, **moved: list[Any]) -> list[Any]:
    values = [moved.get(k.setting.name, untouched(k)) if k.rule == rule else untouched(k) for k in space.KNOBS]
    return [rule, 4, *(x for each in values for x in each)]


def test_every_setting_of_every_rule_has_a_knob_whose_ends_are_allowed():
    assert {(k.rule, k.setting.name) for k in space.KNOBS} == {
        (name, each.name) for name, rule in REGISTRY.items() for each in settings_of(rule)
    }
    for knob in space.KNOBS:
        values = (True, False) if knob.setting.switch else knob.setting.choices or knob.bounds
        for value in values:
            value = int(value) if knob.setting.integer else value
            head = HEADS[knob.rule](TARGET, TARGET) if knob.rule in HEADS else None
            parse(knob.rule, {knob.setting.name: value}, head)
        if not (knob.setting.choices or knob.setting.switch):
            low, high = knob.bounds
            assert low <= (low if knob.start is None else knob.start) <= high


def test_what_is_chosen_reaches_the_rules(pair: pairs.Pair, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(space, "_loaded", lambda name: pair)
    left = choices("topk", k=[5.0], tolerance=[True, 1.5])
    html = space.answer("arithmetic", "Question: Ada has 5 pens.", 8, 0, 1, *left, *choices(TARGET_ALONE))
    assert "<h2>topk, k 5, tolerance 1.5</h2>" in html
    assert "<h2>target alone</h2>" in html


@pytest.mark.parametrize(
    ("prompt", "rule", "moved", "message"),
    [
        (" \n", "topk", {}, "the prompt is empty"),
        ("pens " * 2000, "topk", {}, "beside the answer there is room for"),
        ("Ada has", "margin", {"theta": [True, 0.5], "gap": [True, 0.5]}, "exclude each other"),
    ],
)
def test_bad_input_is_refused(pair: pairs.Pair, monkeypatch, prompt: str, rule: str, moved: dict, message: str):
    monkeypatch.setattr(space, "_loaded", lambda name: pair)
    with pytest.raises(LossyValueError, match=message):
        space.answer("arithmetic", prompt, 8, 0, 0, *choices(rule, **moved), *choices(TARGET_ALONE))


def test_a_rule_without_its_head_is_refused(pair: pairs.Pair, monkeypatch: pytest.MonkeyPatch):
    bare = pairs.Pair(pair.target, pair.draft, pair.tokenizer, None)
    monkeypatch.setattr(space, "_loaded", lambda name: bare)
    with pytest.raises(LossyValueError, match="'judge' needs a trained head, and there is none for 'qwen-coder'"):
        space.answer("qwen-coder", "Ada", 8, 0, 0, *choices("judge"), *choices(TARGET_ALONE))


def test_a_pair_that_would_have_to_be_downloaded_cannot_be_chosen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pairs, "at_hand", lambda name: True)
    assert space.installed_pairs() == ["qwen-coder", "arithmetic"]
    monkeypatch.setattr(pairs, "at_hand", lambda name: name == "arithmetic")
    assert space.installed_pairs() == ["arithmetic"]


def test_a_person_compares_two_rules(address: str, tab: Callable[..., Any]):
    page = tab(address)
    generate = page.get_by_role("button", name="Generate")
    page.get_by_label("Prompt").fill("Question: Ada has 5 pens and buys 4 more. How many pens does Ada have?\nAnswer:")
    generate.click()
    titles = page.locator("section h2")
    titles.nth(1).wait_for()
    assert titles.all_inner_texts() == ["lossless", "min_p"]
    assert "tokens per round" in page.locator("section").nth(1).inner_text()
    page.locator(".token").nth(2).focus()
    assert "p, by the target" in page.locator(".card:visible").inner_text()

    page.get_by_role("spinbutton", name="number input for tau").fill("0.3")
    generate.click()
    page.get_by_role("heading", name="min_p, tau 0.3").wait_for()

    page.get_by_label("Prompt").fill("  ")
    generate.click()
    message = page.get_by_text("the prompt is empty")
    message.wait_for()
    assert "Traceback" not in page.locator("body").inner_text()
