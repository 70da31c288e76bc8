"""``lossy-assist bench``, end to end on pairs that are done in a moment."""

from __future__ import annotations

import functools
import json
import shlex
import warnings
from pathlib import Path

import pytest
from transformers import CompileConfig
from typer.testing import CliRunner

from hf_lossy_assist import pairs, tasks
from hf_lossy_assist.cli import app
from hf_lossy_assist.cli.bench import BenchOptions
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation import comparison
from hf_lossy_assist.evaluation.costs import Costs
from hf_lossy_assist.models.static import forwards
from hf_lossy_assist.tasks import Arithmetic
from tests.eagle3_heads import layer, random_head

MODES = "plain,stock,lossless,topk@4:k=9999,topk+dropmatch:topk.k=2:dropmatch.dropout=0.2"
LABELS = MODES.replace("plain", "target alone").replace("stock", "stock assisted").split(",")


def run(*arguments: str, status: int = 0):
    result = CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "160"})
    assert result.exit_code == status, result.output
    return result


def read(folder):
    origin, *rows = (json.loads(line) for line in (folder / "bench.jsonl").read_text(encoding="utf-8").splitlines())
    assert origin["table"] == "provenance"
    tables = {}
    for row in rows:
        tables.setdefault(row["table"], []).append(row)
    return origin, tables


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(Arithmetic, "max_new_tokens", 8)


@pytest.fixture
def tiny(tiny_pair_folder):
    return ("--folder", str(tiny_pair_folder))


def test_everything_is_measured_and_written(tiny, tmp_path):
    out = tmp_path / "deep" / "results"
    printed = run(
        *tiny, "--modes", MODES, "--prompts", "2", "--repeats", "2", "--gamma", "3", "--threads", "1",
        "--out", str(out),
    ).stdout  # fmt: skip
    origin, tables = read(out)
    assert {"torch", "transformers", "cpu", "threads", "date", "argv", "models"} <= set(origin)
    assert (origin["gamma"], origin["prompts"], origin["dtype"], origin["temperature"]) == ("3", 2, "float32", None)

    requests = tables["RequestRecord"]
    groups = [requests[i : i + 5] for i in range(0, len(requests), 5)]
    assert [r["place"] for r in requests] == list(range(5 * 2 * 3))
    for i, group in enumerate(groups):
        assert {(r["repeat"], r["batch"]) for r in group} == {divmod(i, 2)}
        assert [r["label"] for r in group] == [LABELS[(sum(divmod(i, 2)) + j) % 5] for j in range(5)]
    assert all(r["tokens"] == 8 for r in requests)
    assert [r["repeat"] for r in requests if r["split"]] == [2] * 10

    rows = {row["label"]: row for row in tables["ModeSummary"]}
    assert list(rows) == LABELS
    for label in ("target alone", "stock assisted", "lossless"):
        assert rows[label]["same_text"] == 1.0
        assert f"{label}: 2 of 2 texts are the target's own" in printed or label == "target alone"
    for label, row in rows.items():
        speed = row["tokens_per_second"]
        assert speed["low"] <= speed["median"] <= speed["high"]
        assert set(row["ratios"]) == set(LABELS)
        assert row["ratios"][label] == [1, 1, 1]
        assert len(row["latencies"]) == 3
        assert row["peak_memory"] > 2**20
        assert row["joules_per_token"] is None
        assert sum(row["per_round"][k] or 0 for k in ("drafting", "verifying", "deciding", "rest")) > 0
    assert rows["target alone"]["mean_accepted"] is None
    assert rows["topk@4:k=9999"]["mean_accepted"] == pytest.approx((4 + 2) / 2)  # of eight tokens two are the target's
    assert rows["topk@4:k=9999"]["config"] == {
        "lossy_mode": "topk", "lossy_config": {"k": 9999}, "num_assistant_tokens": 4,
    }  # fmt: skip
    assert rows[LABELS[4]]["config"]["lossy_mode"] == ["topk", "dropmatch"]

    assert [(q["label"], q["n"]) for q in tables["ModeScore"]] == [(label, 2) for label in LABELS]
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert "outside both models' forwards, per round: stock" in printed
    assert "energy is counted on NVIDIA GPUs only" in printed
    for label in LABELS[:4]:
        assert label in printed


def test_more_answers_are_judged_than_timed(tiny, tmp_path):
    run(
        *tiny, "--modes", "plain,lossless", "--prompts", "1", "--repeats", "1", "--gamma", "2",
        "--accuracy-problems", "3", "--batch", "2", "--out", str(tmp_path),
    )  # fmt: skip
    _, tables = read(tmp_path)
    plain, lossless = tables["ModeScore"]
    assert (plain["n"], lossless["n"]) == (3, 3)
    assert plain["low"] < 0 < plain["high"]
    assert lossless["low"] == lossless["high"] == 0


def test_sampling_draws(tiny, tmp_path):
    run(
        *tiny, "--modes", "plain,lossless,ears:beta=0.2", "--prompts", "2", "--repeats", "1", "--gamma", "2",
        "--sample", "--temperature", "1.1", "--out", str(tmp_path),
    )  # fmt: skip
    origin, tables = read(tmp_path)
    assert origin["temperature"] == 1.1
    assert [row["same_text"] for row in tables["ModeSummary"]] == [None] * 3


def test_models_and_prompts_of_one_s_own(tiny_pair_folder, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Question: How\n\nAnswer:\nthird\n", encoding="utf-8")
    models = ("--model", str(tiny_pair_folder / "target"), "--assistant", str(tiny_pair_folder / "draft"))
    run(
        *models, "--prompt-file", str(prompts), "--prompts", "2", "--max-new-tokens", "5", "--repeats", "1",
        "--prompt-length", "9", "--clock", "cpu", "--threads", "1", "--dtype", "bfloat16",
        "--out", str(tmp_path),
    )  # fmt: skip
    origin, tables = read(tmp_path)
    assert (origin["prompt_length"], origin["max_new_tokens"], origin["dtype"]) == (9, 5, "bfloat16")
    assert origin["clock"] == "cpu"
    labels = [row["label"] for row in tables["ModeSummary"]]
    assert labels == ["target alone", "stock assisted", "lossless", "dropmatch", "typical", "regret", "min_p"]
    assert "ModeScore" not in tables
    assert (tmp_path / "bench.png").exists()
    quick = (*models, "--prompts", "1", "--max-new-tokens", "2", "--repeats", "1")
    run(*quick, "--modes", "plain,stock")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        everything = run(*quick, "--modes", "all", "--engines", "hf,stock").stdout
    assert all(f" {rule} " in everything for rule in ("lossless", "topk", "near_top", "margin"))
    assert " fly " not in everything  # it changes nothing in drafts of five tokens, and would say so


def test_all_rules_are_not_of_vllm():
    with pytest.raises(LossyValueError, match="`--modes` all has no modes for vllm"):
        BenchOptions(modes="all", engines="hf,vllm").chosen()


def test_a_batch_of_the_modes_that_can(tiny, tmp_path):
    printed = run(
        *tiny, "--modes", "plain,lossless", "--prompts", "3", "--batch", "2", "--repeats", "1", "--out", str(tmp_path)
    ).stdout
    _, tables = read(tmp_path)
    assert [r["tokens"] for r in tables["RequestRecord"]] == [16, 16, 8, 8, 16, 16, 8, 8]
    assert [len(r["counts"]["rates"]) for r in tables["RequestRecord"] if r["counts"]] == [2, 1, 2, 1]
    assert [row["same_text"] for row in tables["ModeSummary"]] == [1.0, 1.0]
    assert "batch 2" in printed
    result = run(*tiny, "--modes", "plain,stock", "--prompts", "2", "--batch", "2", status=2)
    assert "stock assisted: assisted generate is only supported for batch_size = 1" in result.stderr


def documented():
    text = (Path(__file__).parents[2] / "benchmarks" / "README.md").read_text(encoding="utf-8")
    return [shlex.split(line)[2:] for line in text.splitlines() if line.startswith("lossy-assist bench ")]


@pytest.mark.parametrize("command", documented(), ids=lambda command: command[-1])
def test_documented_commands(tiny, tmp_path, command, monkeypatch):
    """As they stand, but on a device that every machine has, and where no head is needed on tiny models.

    Forwards that are compiled run the traced graphs as they are.
    """
    monkeypatch.setattr(forwards, "CompileConfig", functools.partial(CompileConfig, backend="eager"))
    if "judge" in str(command) or "verifier" in str(command):
        tiny = ()
    small = {"--device": "cpu", "--accuracy-problems": "1"}
    for option in small.keys() & set(command):
        command[command.index(option) + 1] = small[option]
    run(*tiny, *command, "--prompts", "1", "--repeats", "1", "--max-new-tokens", "3", "--out", str(tmp_path))
    assert (tmp_path / "bench.png").exists()


def test_an_eagle3_head_is_timed_like_a_draft_model(tiny_pair_folder, tmp_path):
    config = pairs.load("arithmetic", folder=tiny_pair_folder).target.config
    sizes = {"target_hidden_size": config.hidden_size, "target_layers": (0, 1)}
    random_head(layer(vocab_size=config.vocab_size), **sizes).save_pretrained(tmp_path / "head")
    modes = "plain,lossless@3,lossless:tree.depth=2:tree.top_k=2:tree.nodes=4"
    models = ["--pair", "arithmetic", "--folder", str(tiny_pair_folder), "--assistant", str(tmp_path / "head")]
    run(*models, "--modes", modes, "--prompts", "2", "--repeats", "1", "--out", str(tmp_path))
    origin, tables = read(tmp_path)
    assert origin["models"]["draft"]["num_hidden_layers"] == 1
    drafted = [row for row in tables["RequestRecord"] if row["split"] is not None and row["label"] != "target alone"]
    assert all(row["split"]["drafting"] > 0 for row in drafted if row["counts"]["draft_calls"])


def test_a_task_s_answers_go_on_where_they_were_stopped(tiny, tmp_path, monkeypatch):
    """Whole answers to a task's own file: what is on disk isn't made again, and a prompt and a mode may be added."""
    data = tmp_path / "test.jsonl"
    rows = [{"question": f"What are {n} dozen?", "answer": f"#### {12 * n}"} for n in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = (
        *tiny,
        "--task",
        "gsm8k",
        "--data",
        str(data),
        "--max-new-tokens",
        "6",
        "--repeats",
        "1",
        "--out",
        str(tmp_path),
    )
    run(*task, "--modes", "lossless@2,topk@3:k=2", "--prompts", "2")
    _, whole = read(tmp_path)
    pair = pairs.load("arithmetic", folder=tiny[1])
    task_itself = tasks.load("gsm8k", str(data))
    prompts = [task_itself.encode(one, pair.tokenizer) for one in task_itself.examples("test", 2)]
    assert [r["prompt"] for r in whole["RequestRecord"]] == [len(ids) for ids in prompts for _ in range(2)] * 2

    lines = (tmp_path / "bench.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "bench.jsonl").write_text("".join(lines[:4]) + lines[4][:20], encoding="utf-8")  # killed in a line
    made = []
    monkeypatch.setattr(comparison, "run_request", spied(comparison.run_request, made))
    run(*task, "--modes", "lossless@2,topk@3:k=2,min_p@3", "--prompts", "3")
    _, more = read(tmp_path)
    known, records = whole["RequestRecord"][:3], more["RequestRecord"]
    assert records[:3] == known
    assert len({(r["repeat"], r["batch"], r["label"]) for r in records}) == len(records) == 3 * 3 * 2
    assert len(made) == 3 * 3 * 2 - 3 + 3, "three modes are warmed up"
    for row in more["ModeSummary"]:
        own = [r for r in records if r["label"] == row["label"] and r["repeat"] == 0]
        costs, gamma = Costs.of(row["costs"]), row["config"]["num_assistant_tokens"]
        seconds = [costs.answer(r["prompt"], r["tokens"], r["work"][0][0], r["work"][0][0] * gamma) for r in own]
        assert row["requests"] == len(own) == 3
        assert row["seconds"][0] == pytest.approx(sum(r["seconds"] for r in own) / 3)
        assert row["predicted"][0] == pytest.approx(sum(seconds) / 3)
        for other in ("lossless@2", row["label"]):
            assert row["over_seen"][other][0] == pytest.approx(
                row["predicted_ratios"][other][0] / row["ratios"][other][0]
            )
    changed = run(*task, "--modes", "lossless@2", "--prompts", "3", "--seed", "1", status=2)
    assert "`seed` was 0 and is 1" in changed.stderr


def spied(function, made):
    def counting(*args, **kwargs):
        made.append(args)
        return function(*args, **kwargs)

    return counting
