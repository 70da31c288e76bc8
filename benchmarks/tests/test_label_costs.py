"""What labels cost, with the same prompts mined in several ways."""

from __future__ import annotations

from benchmarks import label_costs
from benchmarks.tests.running import run


def test_all_ways_find_the_same_labels():
    output = run(label_costs.app, "--limit", 3, "--batch-size", 2, "--repeats", 1).output
    lines = [line for line in output.splitlines() if "of 3 prompts" in line]
    assert len(lines) == 4
    assert all(line.split()[-4:] == ["3", "of", "3", "prompts"] for line in lines)
    assert len({line.split()[-7] for line in lines}) == 1
    assert int(lines[0].split()[-7]) > 0
