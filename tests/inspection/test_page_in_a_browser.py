"""A page in a browser: by pointer and by keyboard, on a phone, in the dark, and with hostile text."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_lossy_assist.core.statistics import TokenRecord, TokenScores
from hf_lossy_assist.inspection import FATES, InspectedText, InspectionPage
from tests.inspection.texts import HOSTILE, WORDS, Words

SAID = TokenScores(0.25, 0.5, ((3, 0.75), (1, 0.25)), {"rank": 2}, (4, 0.125, None))
RULES = ("topk", "typical", "judge")


@pytest.fixture
def address(tmp_path: Path) -> str:
    """A page of two long texts with every fate and several rounds."""
    fates = [fate for fate in FATES if fate != "accepted_lossy"]
    words = random.Random(0)
    text = [TokenRecord(words.randint(1, 5), fates[i % 5], i // 6, None, SAID) for i in range(60)]
    text += [TokenRecord(1 + i, "accepted_lossy", 10, rule, SAID) for i, rule in enumerate(RULES)]
    other = [*text[:30], TokenRecord(WORDS.index(HOSTILE), "corrected", 5, None, SAID), *text[30:]]
    page = InspectionPage([InspectedText("one", text), InspectedText("two", other)], Words(), HOSTILE)
    page.save(tmp_path / "page.html")
    return (tmp_path / "page.html").as_uri()


def style(locator: Any, name: str) -> str:
    return locator.evaluate(f"x => getComputedStyle(x).getPropertyValue('{name}')")


def test_pointing_and_the_keyboard_show_what_was_said(tab: Callable[..., Any], address: str):
    page = tab(address)
    tokens = page.locator(".token")
    cards = page.locator(".card:visible")
    assert cards.count() == 0
    tokens.nth(7).hover()
    assert cards.count() == 1
    shown = cards.inner_text()
    for words in ("p, by the target", "25.0 %", "q, by the draft", "50.0 %", "rank", "2", " of”", "75.0 %", "round 2"):
        assert words in shown
    page.mouse.move(0, 0)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert tokens.nth(1).evaluate("x => x === document.activeElement")
    assert "in place of" in cards.inner_text()
    tokens.nth(9).hover()
    assert cards.count() == 1  # the pointer's, and no longer the keyboard's


def test_fates_differ_in_colour_and_in_line(tab: Callable[..., Any], address: str):
    page = tab(address)
    classes = ["accepted", "unverified", "corrected", "bonus", "target", "lossy0", "lossy1", "lossy2"]
    marks = [page.locator(f".legend .{name}") for name in classes]
    assert len({style(mark, "background-color") for mark in marks}) == len(classes)
    lines = [style(mark, "text-decoration-line") + style(mark, "text-decoration-style") for mark in marks]
    shapes = {(line, style(mark, "font-style")) for line, mark in zip(lines, marks, strict=True)}
    assert len(shapes) == len(classes) - 1  # the target alone has a text of its own
    assert page.locator(".token.differs").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window_shows_all_and_scrolls_down_only(tab: Callable[..., Any], address: str, scheme: str):
    page = tab(address, 360, scheme)
    one, two = page.locator("section").all()
    assert two.bounding_box()["y"] > one.bounding_box()["y"] + one.bounding_box()["height"]
    for i in (0, 10, 62, 100):
        page.locator(".token").nth(i).focus()
        card = page.locator(".card:visible").bounding_box()
        assert card["x"] >= 0
        assert card["x"] + card["width"] <= 360
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    ink, paper = (_lightness(style(one, name)) for name in ("color", "background-color"))
    assert (paper < ink) == (scheme == "dark")
    assert abs(paper - ink) > 0.6


def _lightness(colour: str) -> float:
    return sum(float(x) for x in colour[4:-1].split(",")) / 3 / 255


def test_hostile_text_does_nothing_and_nothing_is_asked_for(tab: Callable[..., Any], address: str):
    page = tab("about:blank")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.locator(".token").nth(93).hover()
    assert HOSTILE in page.locator(".card:visible").inner_text()
    assert HOSTILE in page.locator(".prompt").inner_text()
    assert page.title() == "What became of every token"
    assert asked == [address]
