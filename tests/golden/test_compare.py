"""The comparison sees every difference, and lets pass only those that are listed."""

from __future__ import annotations

import json

import pytest

from tests.nightly import nightly

from .cases import all_cases
from .compare import Change, differences, read_changes, report
from .record import RECORD, decisions, draws, is_drawn

OLD = {
    "a/1": {"sequences": [[1, 2, 3], [4, 5, 6]], "stats": {"rounds": 2, "rows": [{"rounds": 1}, {"rounds": 1}]}},
    "b/1": {"scores": {"sum": [0.5, 2.0]}},
}


def found(**new):
    return [(x.case, x.field) for x in differences(list(OLD), OLD, OLD | {f"{name}/1": x for name, x in new.items()})]


def test_equal_outcomes():
    assert found() == []
    assert found(b={"scores": {"sum": [0.50001, 2.0]}}) == [], "sums may differ in their last digits"


@pytest.mark.parametrize(
    ("new", "field"),
    [
        ({"sequences": [[1, 2, 3], [4, 5, 7]], "stats": OLD["a/1"]["stats"]}, "sequences.1"),
        ({"sequences": [[1, 2, 3]], "stats": OLD["a/1"]["stats"]}, "sequences.1"),
        ({**OLD["a/1"], "stats": {"rounds": 2, "rows": [{"rounds": 1}, {"rounds": 2}]}}, "stats.rows.1.rounds"),
        ({**OLD["a/1"], "stats": {**OLD["a/1"]["stats"], "runs": 0}}, "stats.runs"),
        ({**OLD["a/1"], "error": "ValueError"}, "error"),
    ],
)
def test_any_field_counts(new, field):
    assert found(a=new) == [("a/1", field)]


def test_a_case_that_did_not_run_is_a_difference():
    assert [(x.case, x.field) for x in differences(list(OLD), {}, {})] == [("a/1", "ran"), ("b/1", "ran")]


def test_listed_changes_have_to_occur():
    bad = list(differences(["b/1"], OLD, {"b/1": {"scores": {"sum": [0.5, 3.0]}}}))
    listed, other = Change(("b/*",), ("scores.*",), "better"), Change(("a/*",), ("*",), "gone")
    assert not report(bad, [], 1, whole=True)[1]
    assert report(bad, [listed], 1, whole=True)[1]
    text, well = report(bad, [listed, other], 1, whole=True)
    assert not well
    assert "gone" in text
    assert report(bad, [listed, other], 1, whole=False)[1], "a part of the cases can't show that one is gone"


def test_a_list_of_changes(tmp_path):
    path = tmp_path / "changes.toml"
    path.write_text('[[change]]\ncases = "a/*"\nfields = ["stats.x", "trace"]\nreason = "why"\n')
    assert read_changes(path) == [Change(("a/*",), ("stats.x", "trace"), "why")]


KEPT = json.loads(RECORD.read_text(encoding="utf-8"))
CASES = all_cases()


# The command compares all of them, and many more.
@pytest.mark.parametrize("name", nightly(KEPT["cases"], but=[*KEPT["cases"]][::2]))
def test_decisions(name: str):
    case = CASES[name]
    if is_drawn(case) and draws() != KEPT["draws"]:
        pytest.skip("random numbers differ on this platform")
    assert decisions(case) == KEPT["cases"][name]
