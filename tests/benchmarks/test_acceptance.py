"""``python -m benchmarks.acceptance``, and its rows against runs by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import acceptance
from hf_lossy_assist.evaluation.modes import DecodingMode, Models
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from tests.small_pair import verifier_for
from tests.tiny_models import prompt


def run(*arguments: str, status: int = 0):
    result = CliRunner().invoke(acceptance.app, arguments, env={"COLUMNS": "100"})
    assert result.exit_code == status, result.output
    return result


def read(file):
    origin, *rows = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    assert origin["table"] == "provenance"
    return origin, rows


@pytest.fixture
def named(tiny_pair_folder):
    return ("--model", str(tiny_pair_folder / "target"), "--assistant", str(tiny_pair_folder / "draft"))


def test_every_rule_at_both_temperatures(named, tmp_path):
    out, prompts = tmp_path / "rows.jsonl", tmp_path / "prompts.txt"
    prompts.write_text("Question: How\n\nAnswer:\nthird\n", encoding="utf-8")
    printed = run(
        *named, "--prompts", str(prompts), "--count", "2", "--gamma", "3", "--max-new-tokens", "5",
        "--temperature", "1.2", "--out", str(out),
    ).stdout  # fmt: skip
    assert "2 prompts, greedy" in printed
    assert "2 prompts, temperature 1.2" in printed
    origin, rows = read(out)
    assert (origin["prompts"], origin["gamma"]) == (["Question: How", "Answer:"], 3)
    modes = {(row["mode"], row["temperature"]): row for row in rows}
    for temperature in (None, 1.2):
        for mode in ("target alone", "draft alone", "lossless", "dropmatch", "topk", "typical", "ensemble"):
            assert modes[mode, temperature]["tokens"] <= 10
    assert ("ears", None) not in modes
    assert modes["lossless", None]["acceptance_rate"] < 1
    assert len([row for row in rows if row["mode"] == "topk"]) == 4


def test_another_draft_than_the_pair_s(bundled, tiny_pair_folder, tmp_path):
    out = tmp_path / "rows.jsonl"
    run(
        "--pair", "arithmetic", "--assistant", str(tiny_pair_folder / "target"), "--count", "1",
        "--max-new-tokens", "5", "--temperature", "0", "--out", str(out),
    )  # fmt: skip
    _, rows = read(out)
    assert {row["mode"]: row["acceptance_rate"] for row in rows}["lossless"] == 1


def test_the_opening_lines_of_stories(named, tmp_path):
    out = tmp_path / "rows.jsonl"
    run(
        *named, "--count", "1",
        "--max-new-tokens", "2", "--temperature", "0", "--dtype", "bfloat16", "--out", str(out),
    )  # fmt: skip
    origin, rows = read(out)
    assert origin["dtype"] == "bfloat16"
    assert origin["prompts"] == ["Once upon a time, there was a little girl named Lily."]
    assert {row["temperature"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "`--model` and `--assistant` has to be given"),
        (("--model", "x", "--pair", "arithmetic"), "brings its own models; leave out `--model`"),
        (("--model", "x"), "`--assistant` has to be given"),
        (("--model", "/nowhere/at/all", "--assistant", "y"), "'/nowhere/at/all'"),
        (("--model", "TARGET", "--assistant", "TARGET", "--prompts", "EMPTY"), "`--prompts`"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_errors_are_one_line(tiny_pair_folder, tmp_path, arguments, message):
    empty = tmp_path / "empty"
    empty.write_text("\n")
    places = {"TARGET": tiny_pair_folder / "target", "EMPTY": empty}
    result = run(*(str(places.get(argument, argument)) for argument in arguments), status=2)
    *_, last = result.stderr.splitlines()  # models that load show a bar before
    assert last.startswith("error: ")
    assert message in last


LENGTH = 16


LOSSLESS = DecodingMode("lossless", "lossless", gamma=4)


def put(seed=0):
    (batch,) = batches_of([prompt(6, seed)[0].tolist()], seed=seed)
    return batch


def rows_of(models, *modes, prompts=3):
    return list(acceptance.measure(models, modes, [put(seed) for seed in range(prompts)], LENGTH))


def test_lossless_greedy_is_the_target_alone(models):
    alone, draft, lossless = rows_of(models, LOSSLESS)
    assert [row.mode for row in (alone, draft, lossless)] == ["target alone", "draft alone", "lossless"]
    assert (alone.mean_accepted, alone.greedy_prefix, alone.likeliest) == (None, 1.0, 1.0)
    assert (lossless.greedy_prefix, lossless.likeliest, lossless.accepted_lossy) == (1.0, 1.0, 0.0)
    assert lossless.log_likelihood == pytest.approx(alone.log_likelihood)
    assert lossless.tokens == 3 * LENGTH
    assert 0 < lossless.mean_accepted < 4
    assert draft.log_likelihood < alone.log_likelihood
    assert 0 < draft.greedy_prefix < 1


def test_a_rule_that_keeps_everything_says_what_the_draft_says(models):
    *_, everything = rows_of(models, DecodingMode("all", "topk", {"k": 64}, 4))
    assert everything.acceptance_rate == 1.0
    assert everything.accepted_lossy > 0
    assert everything.likeliest < 1
    in_one_round = run_request(models, DecodingMode("all", "topk", {"k": 64}, LENGTH), put(), LENGTH)
    alone = run_request(Models(models.draft, models.draft), DecodingMode(), put(), LENGTH)
    assert in_one_round.rows[0][:-1].tolist() == alone.rows[0][:-1].tolist()


def test_sampling_is_reproducible_and_differs_from_prompt_to_prompt(models):
    mode = DecodingMode("ears", "ears", {"beta": 0.1}, 4, 0.9)
    first, second = ([replace(row, tokens_per_second=0) for row in rows_of(models, mode)] for _ in range(2))
    assert first == second
    hot = DecodingMode(temperature=2.0)
    one, other = (run_request(models, hot, replace(put(), seed=seed)).rows[0].tolist() for seed in (0, 1))
    assert one != other


@pytest.mark.parametrize(
    ("a", "b", "shared"), [([1, 2, 3], [1, 2, 3], 3), ([1, 9, 3], [1, 2, 3], 1), ([5], [6, 7], 0), ([1, 2], [1], 1)]
)
def test_common_prefix(a, b, shared):
    assert acceptance.common_prefix(torch.tensor(a), torch.tensor(b)) == shared


def test_sprinter_rows_show_runs(models):
    able = Models(models.target, models.draft, {"sprinter": verifier_for(models, bias=1.0)})
    modes = [DecodingMode("x", "sprinter", {"threshold": threshold}, 4) for threshold in (0.3, 0.35)]
    alone, _, *rows = rows_of(able, *modes)
    assert all(row.mean_run > 0 for row in rows)
    assert alone.mean_run is None
