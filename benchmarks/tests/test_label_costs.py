"""What labels cost, with the same prompts mined in several ways."""

from __future__ import annotations

from benchmarks import label_costs
from benchmarks.tests.running import run


def test_labels_and_costs_are_counted_side_by_side():
    output = run(label_costs.app, "--pair", "arithmetic", "--num-prompts", 3, "--batch-size", 3, "--threads", 1).output
    rows = {line.split("  ")[0].strip(): line.split() for line in output.splitlines() if line.strip().startswith("--")}
    assert [*rows] == [*label_costs.WAYS]
    counts = {name: row[len(name.split()) :] for name, row in rows.items()}
    labels, tokens = ({name: float(row[i]) for name, row in counts.items()} for i in (0, 1))
    assert labels["--look-up 0"] == labels["--look-up 4"] > 5
    assert tokens["--look-up 4 --stop-equal 8"] < tokens["--look-up 0"]
    n = f"{labels['--look-up 0']:.0f}"
    assert counts["--look-up 4"][-3:] == [n, "of", n]


def test_a_cost_is_by_label():
    first = label_costs.Cost({(0, 1, 5, 6): True, (0, 2, 5, 6): False}, 30, 7, 4.0)
    other = label_costs.Cost({(0, 1, 5, 6): False, (1, 2, 5, 6): False}, 10, 8, 1.0)
    assert first.row("a", first) == ("a", "2", "15.0", "3.5", "2.00", "1800", "")
    assert other.row("b", first) == ("b", "2", "5.0", "4.0", "0.50", "7200", "0 of 1")
