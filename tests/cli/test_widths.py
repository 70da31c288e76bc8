"""Every command's table fits into 80 columns, and shows numbers whole, as wide as they get."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.cli.calibrate import outcome_table
from hf_lossy_assist.cli.console import figures_table
from hf_lossy_assist.cli.mine import figures_of
from hf_lossy_assist.cli.rules import rule_page, rules_tables
from hf_lossy_assist.core.statistics import LossyStats
from hf_lossy_assist.evaluation.quality import Interval
from hf_lossy_assist.evaluation.result import EvaluationResult, ModeScore, Speed
from hf_lossy_assist.evaluation.tables import as_text
from hf_lossy_assist.training.labelling import PromptLabels

LABEL = "topk@24:k=5:tolerance=1.0+dropmatch:criterion=naive"
RATIO = Interval(12.34, 11.23, 13.45)
SCORES = [
    ModeScore(
        LABEL, 1.0, 12345, -0.999, -1.0, -0.888, 13.37, 14.37, 12345.6, 100.0, 12345,
        512.3, Interval(-12.3, -45.6, 23.4), 12.34, 1.0,
        Speed(dict.fromkeys(("plain", "stock", "lossless"), RATIO), 12345), True,
    )
]  # fmt: skip
RESULT = EvaluationResult((), {row.label: row for row in SCORES}, "target alone", {"stock": [LABEL]})
TABLES = RESULT.tables
TESTED = SimpleNamespace(
    mode=LABEL, outcome="not certified", n=12345, loss=12.34, bound=23.45, confidence=99.9, tokens_per_second=12345.6,
)  # fmt: skip
COUNTS = {"mismatches": 123456, "important": 12345, "target_tokens": 10**8}
PROMPTS = [PromptLabels(0, "mined", columns=COUNTS)]
STATS = LossyStats(
    rounds=123456, drafted=1234567, accepted=1234567, accepted_histogram=(123,) * 33,
    accepted_by={"dropmatch": 123456, "thresholds": 123456, "typical": 123456}, seconds={"total": 12345.6},
)  # fmt: skip


def render(shown: Any, width: int) -> str:
    screen = Console(file=io.StringIO(), width=width)
    screen.print(shown)
    return screen.file.getvalue()


def numbers_of(shown: Any) -> set[str]:
    """Return a table's numbers, with their signs and brackets, as a screen without an edge shows them."""
    return {word for word in render(shown, 1000).split() if re.search(r"\d", word) and not re.search(r"[a-z]", word)}


@pytest.mark.parametrize(
    "shown_table",
    [
        *TABLES,
        outcome_table(SimpleNamespace(tested=[TESTED], max_loss=1.0, confidence=95.0)),
        figures_table(figures_of("judge", PROMPTS)),
        figures_table(STATS.figures(), STATS.title),
    ],
    ids=lambda shown: str(shown.title),
)
def test_tables_fit(shown_table: Any):
    shown = render(shown_table, 80)
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown, shown
    assert "e+0" not in shown, shown
    assert numbers_of(shown_table) <= {*shown.split()}, shown
    # No number or closing bracket is left over for a line of its own.
    first = [line.strip(" │┃") for line in shown.splitlines()]
    assert ")" not in first, shown


@pytest.mark.parametrize("width", [80, 100, 200])
def test_labels_and_intervals_break_before_a_digit_is_cut(width: int):
    for shown_table in TABLES:
        shown = render(shown_table, width)
        assert max(map(len, shown.splitlines())) <= width
        assert numbers_of(shown_table) <= {*shown.split()}, shown
        words = re.split(r"[\s+:]+", shown)
        assert {"topk@24", "tolerance=1.0", "dropmatch", "criterion=naive"} <= {*words}, "no label breaks inside a word"


def test_a_table_that_fits_keeps_intervals_beside_their_numbers():
    assert "-99.9 (-100.0 to -88.8)" in render(TABLES[0], 160)


@pytest.mark.parametrize("laid_out", TABLES, ids=lambda table: table.title)
def test_the_text_of_a_result_has_100_columns(laid_out: Any):
    shown = as_text(laid_out)
    assert max(map(len, shown.splitlines())) <= 100
    assert numbers_of(laid_out) <= {*shown.split()}, shown


@pytest.mark.parametrize("name", ["all", *REGISTRY])
def test_the_pages_of_rules_fit_and_break_no_word(name: str):
    page = rules_tables() if name == "all" else rule_page(REGISTRY[name])
    shown, wide = (render(page, width) for width in (80, 1000))
    assert max(map(len, shown.splitlines())) <= 80
    assert {word for word in wide.split() if "─" not in word} <= {*shown.split()}, shown
