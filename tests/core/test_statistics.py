"""Statistics are read, added up and collected."""

from __future__ import annotations

import copy
import json
import threading
from dataclasses import replace

import pytest
import torch

import hf_lossy_assist
from hf_lossy_assist.cli.console import figures_table
from hf_lossy_assist.core.statistics import LossyStats, TokenRecord
from tests.acceptors.fixtures import HEADS
from tests.tiny_models import noisy_copy, prompt, tiny

ROW = LossyStats(
    rounds=4,
    drafted=20,
    accepted=10,
    accepted_lossy=3,
    corrected=3,
    bonus=1,
    target_calls=4,
    draft_calls=20,
    accepted_histogram=(1, 0, 2, 1),
    accepted_by={"topk": 10},
    seconds={"total": 2.0, "drafting": 1.0},
    lossless=False,
)
"""Of a run, from which tests work out what follows."""
OTHER = replace(ROW, rounds=1, seconds={"total": 1.0, "deciding": 0.5}, accepted_by={"typical": 2})


def test_what_follows_from_the_counts():
    assert (ROW.tokens, ROW.tokens_per_round, ROW.mean_accepted, ROW.acceptance_rate) == (14, 3.5, 2.5, 0.5)
    assert (ROW.tokens_per_second, ROW.lossy_share) == (7.0, 3 / 14)
    nothing = LossyStats()
    assert (nothing.tokens, nothing.tokens_per_second, nothing.lossy_share) == (0, 0.0, 0.0)
    assert nothing.mean_accepted == nothing.tokens_per_round == nothing.acceptance_rate == 0
    assert nothing.runs == nothing.mean_run == nothing.target_calls_per_100_tokens == 0


def test_a_summary_and_a_page_have_the_same_figures():
    fates = ["accepted"] * 7 + ["accepted_lossy"] * 3 + ["corrected"] * 3 + ["bonus"]
    records = [TokenRecord(7, fate, 0, "<rule>") for fate in fates]
    stats = replace(ROW, records=tuple(records), accepted_by={"<rule>": 10})
    lines, page = stats.summary().splitlines(), stats._repr_html_()
    assert lines[0] == "Statistics (lossy)"
    for name, value in stats.figures().items():
        assert any(line.split("  ")[1] == name and line.endswith(f"  {value}") for line in lines[1:])
        assert f">{name}</th>" in page
    assert "&lt;rule&gt; 3" in page
    assert "<rule>" not in page


def test_the_table_says_what_the_statistics_say():
    table = figures_table(ROW.figures(), ROW.title)
    shown = dict(zip(*(list(column.cells) for column in table.columns), strict=True))
    assert shown["mean accepted"] == "2.50"
    assert shown["tokens per round"] == "3.50"
    assert shown["accepted"] == "10 (50.0 % of drafted)"
    assert shown["accepted by the lossless rule too"] == "7"
    assert shown["accepted only by the lossy rule"] == "3 (21.4 % of the text)"
    assert shown["rounds by tokens accepted"] == "0:1 1:0 2:2 3:1"
    assert shown["tokens per second"] == "7.0"
    assert "lossy" in table.title


@pytest.mark.parametrize(
    ("mode", "config"),
    [
        ("topk", {"k": 3, "strict_first_n": 6}),  # which the lossless rule decides
        (["topk", "lossless"], {"topk": {"k": 3}}),
        (["typical", "topk"], None),
        ("lossless", None),
        ("judge", {"threshold": 0.9}),
        ("sprinter", {"threshold": 0.3}),
    ],
    ids=str,
)
@pytest.mark.parametrize("do_sample", [False, True])
def test_printed_tokens_add_up(mode, config, do_sample):
    """Every accepted token is counted once: the lossless rule accepts it too, or one lossy rule alone does."""
    target, rules = tiny(), {mode} if isinstance(mode, str) else {*mode}
    torch.manual_seed(0)
    lossy = {"assistant_model": noisy_copy(target), "lossy_mode": mode, "lossy_config": config}
    if mode in ("judge", "sprinter"):
        lossy["lossy_head"] = HEADS[mode](target, lossy["assistant_model"])
    with hf_lossy_assist.enabled(target, **lossy), hf_lossy_assist.collect() as calls:
        for rows in (1, 3):
            target.generate(prompt().repeat(rows, 1), max_new_tokens=30, do_sample=do_sample, eos_token_id=None)
    for stats in (*calls, calls.total):
        figures = stats.figures()
        by_rule = dict(part.split(" ") for part in figures.pop("accepted lossily by").split(", ") if part)
        numbers = {name: int(value.split(" ")[0]) for name, value in figures.items() if name.startswith("accepted")}
        lossy = numbers["accepted only by the lossy rule"]
        assert numbers["accepted"] == numbers["accepted by the lossless rule too"] + lossy
        assert sum(map(int, by_rule.values())) == lossy
        assert by_rule.keys() <= rules - {"lossless"}
        assert numbers["accepted"] + stats.corrected + stats.bonus == int(figures["tokens"])
    assert bool(by_rule) is (mode != "lossless")


def test_a_dictionary_holds_all_but_the_tokens_and_is_json():
    stats = replace(ROW, rows=(ROW,))
    values = stats.to_dict()
    assert json.loads(json.dumps(values)) == values
    assert values["tokens_per_second"] == 7.0
    assert values["accepted_histogram"] == [1, 0, 2, 1]
    assert not {"records", "rows"} & values.keys()
    assert stats.to_dict(rows=True)["rows"] == [ROW.to_dict()]


def test_calls_add_up():
    both = ROW + OTHER
    assert (both.rounds, both.drafted, both.target_calls, both.tokens) == (5, 40, 8, 28)
    assert both.seconds == {"total": 3.0, "drafting": 1.0, "deciding": 0.5}
    assert both.accepted_by == {"topk": 10, "typical": 2}
    assert both.accepted_histogram == (2, 0, 4, 2)
    assert both.rows == (ROW, OTHER)
    assert sum([ROW, OTHER, ROW]) == ROW + OTHER + ROW
    batch = replace(both, rows=(ROW, OTHER))
    assert (batch + ROW).rows == (ROW, OTHER, ROW)


@pytest.mark.parametrize("other", [1, "a", None])
def test_only_statistics_add_up(other):
    with pytest.raises(TypeError):
        ROW + other
    with pytest.raises(TypeError):
        other + ROW


def test_calls_inside_a_block_are_collected():
    """Calls of one model or of all, from any thread, over batches; and no others."""
    target, ids = tiny(), prompt()
    draft = noisy_copy(target)
    other = copy.deepcopy(target)
    settings = {"assistant_model": draft, "lossy_mode": "topk", "max_new_tokens": 6, "do_sample": False}

    def call(model, rows: int = 1):
        return model.generate(ids[:1].repeat(rows, 1), **settings, return_dict_in_generate=True).lossy_stats

    call(target)
    with hf_lossy_assist.collect() as everything, hf_lossy_assist.collect(target) as own:
        first = call(target)
        thread = threading.Thread(target=call, args=(other,))
        thread.start()
        thread.join()
        batch = call(target, 3)
        target.generate(ids[:1], max_new_tokens=2)
    call(target)
    assert own.calls == [first, batch]
    assert own.total == first + batch
    assert (own.tokens, own.rounds) == (first.tokens + batch.tokens, first.rounds + batch.rounds)
    assert len(own.rows) == 4
    assert len(everything) == 3
    assert "2 calls" in repr(own)
    with pytest.raises(AttributeError, match="tokns"):
        own.tokns  # noqa: B018


def test_a_block_that_fails_collects_no_more():
    with pytest.raises(ZeroDivisionError), hf_lossy_assist.collect() as stats:
        1 / 0  # noqa: B018
    target = tiny()
    target.generate(prompt(), assistant_model=noisy_copy(target), lossy_mode="topk", max_new_tokens=3)
    assert len(stats) == 0
