"""What rules pay against a count by hand, and what judges know elsewhere."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from benchmarks import rule_curves
from benchmarks.rule_curves import Curves
from benchmarks.rule_orders import ENTROPY, RATIO, TRAINED
from benchmarks.tests.running import run


def rows_of(seed: int, problems: int, knows: float) -> list[dict]:
    """Return rows whose first rule knows the labels with a given strength, and whose second knows nothing."""
    rng, free = np.random.default_rng(seed), np.random.default_rng(100 + seed)
    rows = []
    for problem in range(problems):
        for _ in range(4):
            important = bool(rng.random() < 0.3)
            order = {"knows": rng.normal() - knows * important, "guesses": rng.normal(), RATIO: 0.5}
            order |= {name: rng.normal() - important for name in TRAINED}
            rows.append({
                "prompt": problem, "solved": problem % 2 == 0, "weight": float(rng.integers(1, 3)),
                "important": important, "order": order, "dropmatch": [0, 1, int(not important)],
                "features": [knows * important + free.normal(), free.normal()],
            })  # fmt: skip
    return rows


def written(path, rows):
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def test_what_a_rule_pays_is_counted(tmp_path):
    rows = rows_of(0, 50, 1.0)
    curves = Curves.read(written(tmp_path / "rows.jsonl.gz", rows))
    total = sum(row["weight"] for row in rows)
    first = sorted(rows, key=lambda row: -row["order"]["knows"])
    for count in (40, 100, 160):
        kept = first[:count]
        share = sum(row["weight"] for row in kept) / total
        paid = sum(row["weight"] * row["important"] for row in kept) / sum(row["weight"] for row in kept)
        assert curves.paid("knows", share)[0] == pytest.approx(paid)
    matter = sum(row["weight"] * row["important"] for row in rows) / total
    assert curves.blind[0] == pytest.approx(matter)
    # DropMatch keeps nothing, what is unimportant, or everything: half way to the unimportant ones, none matters.
    assert curves.paid("dropmatch", (1 - matter) / 2)[0] == pytest.approx(0.0)
    assert curves.paid("dropmatch", 1 - matter / 2)[0] == pytest.approx(matter / 2 / (1 - matter / 2))
    assert curves.where(curves.examples.solved).blind.shape == curves.blind.shape


def test_what_a_rule_never_keeps_stays_together(tmp_path):
    """A knob keeps ties at once, also those at minus infinity: between them and all, their mean counts."""
    rows = rows_of(3, 40, 1.0)
    for row in rows[::2]:
        row["order"]["knows"] = float("-inf")
    kept, important = Curves.read(written(tmp_path / "rows.jsonl.gz", rows)).curves["knows"]
    total = sum(row["weight"] for row in rows)
    assert kept.shape[1] == len(rows) // 2 + 1
    assert kept[0, -2] == pytest.approx(sum(row["weight"] for row in rows[1::2]) / total)
    assert important[0, -2] == pytest.approx(sum(row["weight"] * row["important"] for row in rows[1::2]) / total)


def test_fly_keeps_what_a_full_window_follows(tmp_path):
    rows = rows_of(4, 20, 1.0)
    for i, row in enumerate(rows):
        row["followed"], row["order"][ENTROPY] = i % 6, [0.9, 0.1][i % 5 == 0]
    kept = Curves.read(written(tmp_path / "rows.jsonl.gz", rows)).decisions[rule_curves.WINDOW]
    full, unsure = (np.array([row["followed"] == 5 for row in rows]), np.array([i % 5 > 0 for i in range(len(rows))]))
    assert np.array_equal(kept[:, rule_curves.UNSURE <= 0.1].all(1), full)
    assert np.array_equal(kept[:, rule_curves.UNSURE <= 0.85].any(1), full)
    assert np.array_equal(kept[:, np.searchsorted(-rule_curves.UNSURE, -0.5)] > 0, full & unsure)


def test_what_is_known_is_shown_and_what_is_guessed_is_not(tmp_path):
    """With 2,000 mismatches a rule pays 0.3 ± 0.02 by chance, and one that knows the labels far less."""
    path = written(tmp_path / "rows.jsonl.gz", rows_of(1, 500, 1.0))
    lines = run(rule_curves.app, "show", path, "--plot", tmp_path / "plot.png").output.splitlines()
    (knows,), (guesses,) = ([line for line in lines if line.startswith(f"| {name}")] for name in ("knows", "guesses"))
    assert knows.count("**") == 6
    assert lines[-1].startswith("knows: the judge's AUC +0.0")
    assert "**" not in guesses
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_rules_that_guess_are_seldom_shown(tmp_path):
    """Of 40 data sets without knowledge, at most 3 in 20 comparisons may be called shown (99 % of the binomial)."""
    called = 0
    for seed in range(40):
        curves = Curves.read(written(tmp_path / "rows.jsonl.gz", rows_of(seed, 60, 0.0)))
        gap = curves.paid("guesses", 0.5) - curves.blind
        called += rule_curves._p_of(gap) < 0.05
    assert called <= 6


def test_the_rule_that_is_chosen_is_judged_on_other_problems(tmp_path):
    """The one that knows is chosen; how good it is, is counted on the second half, beside the judge, as in `paid`."""
    path = written(tmp_path / "rows.jsonl.gz", rows_of(1, 200, 2.0))
    other = written(tmp_path / "other.jsonl.gz", rows_of(2, 100, 0.0))
    lines = run(rule_curves.app, "choose", path, other).output.splitlines()
    assert lines[0] == "chosen on 100 problems: knows"
    curves = Curves.read(path)
    half = curves.where(curves.examples.prompts % 2 == 1)
    for line, share in zip(lines[4:7], rule_curves.SHARES, strict=True):
        paid = 100 * half.paid("knows", share)[0]
        assert line.startswith(f"| rows | 100 | {share} | {paid:.1f} | {paid - 100 * half.blind[0]:+.1f} (")
        assert f"| {paid - 100 * half.paid('judge', share)[0]:+.1f} (" in line
    assert [line.split(" | ")[:2] for line in lines[7:]] == [["| other", "100"]] * 3


def test_a_judge_of_features_is_trained_once_and_judges_elsewhere_unchanged(tmp_path):
    """Its AUC there is that of a normal variable at a distance d: Φ(d / √2). The second feature says nothing."""
    first = written(tmp_path / "first.jsonl.gz", rows_of(1, 300, 1.0))
    other, deaf = (written(tmp_path / f"{x}.jsonl.gz", rows_of(2, 300, x)) for x in (1.0, 0.0))
    lines = run(rule_curves.app, "transfer", first, other, deaf).output.splitlines()[2:]
    areas = [float(line.split(" | ")[2].split()[0]) for line in lines]
    assert [line.split(" | ")[:2] for line in lines] == [["| 1.0", "1,200"], ["| 0.0", "1,200"]]
    assert areas == pytest.approx([0.76, 0.5], abs=0.045)  # 2.5 standard errors of 1,200 mismatches
