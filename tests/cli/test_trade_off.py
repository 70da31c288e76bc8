"""``lossy-assist trade-off``."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from hf_lossy_assist import JudgeHead, LossyValueError, pairs
from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.cli.trade_off import (
    SWEEPS,
    MathsTokens,
    SweepPoint,
    maths_tokens,
    measure,
    plot_trade_off,
    trade_off,
)
from hf_lossy_assist.evaluation.modes import Models
from hf_lossy_assist.heads import JudgeConfig, ModelIdentity
from hf_lossy_assist.messages import Verification


def test_the_command_refuses_an_unknown_sweep_and_a_missing_head(tmp_path):
    with pytest.raises(LossyValueError, match="did you mean 'judge'"):
        trade_off("juge")
    with pytest.raises(LossyValueError, match="nowhere"):
        trade_off("judge", head=str(tmp_path / "nowhere"), problems=1)


@pytest.fixture(scope="module")
def pair() -> pairs.Pair:
    return pairs.load("arithmetic")


@pytest.fixture(scope="module")
def lenient(pair) -> JudgeHead:
    identities = {"target": ModelIdentity.of(pair.target), "draft": ModelIdentity.of(pair.draft)}
    config = JudgeConfig(**identities, task="arithmetic", threshold=0.5)
    return JudgeHead(config, torch.zeros(config.width), -1.0)


def test_rows_count_what_was_done(pair, lenient, tmp_path):
    points = [
        SweepPoint("lossless", "", "lossless", {}),
        SweepPoint("maths", "", "maths", {}),
        SweepPoint("maths and top-K", "K=2", {"all_of": ["maths", "topk"]}, {"topk": {"k": 2}}),
        SweepPoint("judge", "τ=0.5", "judge", {"threshold": 0.5}),
    ]
    examples, seen = pair.task.examples("test", 4), []
    rows = list(
        measure(
            Models(pair.target, pair.draft, {"judge": lenient}), pair.tokenizer, pair.task, points, examples,
            gamma=8, on_batch=seen.append,
        )
    )  # fmt: skip
    lossless, maths, narrow, judge = rows
    assert sum(seen) == 16
    assert all(row.problems == 4 and 0 <= row.low <= row.accuracy <= row.high <= 1 for row in rows)
    assert lossless.mean_accepted < maths.mean_accepted
    assert narrow.mean_accepted <= maths.mean_accepted
    # Everything is kept, in rounds of eight drafted tokens and one of the target's.
    assert judge.tokens_per_call == pytest.approx(judge.mean_accepted + 1, abs=0.3)
    assert set(judge.accepted_by) == {"judge", "lossless"}
    assert judge.accepted_by["judge"] > 0
    assert "maths" not in REGISTRY
    plot_trade_off(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    json.dumps([row.config for row in rows])


def test_sweeps_hold_what_is_compared():
    families = {point.family for point in SWEEPS["judge"]()}
    assert families == {"lossless", "judge", "judge + dropmatch", "dropmatch", "top-K", "maths", "maths and top-K"}
    assert sum(point.family == "judge" for point in SWEEPS["judge"]()) >= 6
    assert sum(point.family == "sprinter" for point in SWEEPS["sprinter"]()) >= 5


def test_rows_of_a_batch_count_as_they_do_alone(pair):
    models, examples = Models(pair.target, pair.draft), pair.task.examples("test", 3)
    points = [SweepPoint("top-K", "K=2", "topk", {"k": 2})]
    (alone,), (together,) = (
        measure(models, pair.tokenizer, pair.task, points, examples, gamma=8, batch_size=size) for size in (1, 3)
    )
    assert replace(together, seconds=alone.seconds) == alone


def test_maths_tokens_of_a_tokenizer():
    pair = pairs.load("arithmetic")
    ids = maths_tokens(pair.tokenizer)
    words = {pair.tokenizer.decode([i]).strip() for i in ids}
    assert set("0123456789+-=") <= words
    assert "apples" not in words
    assert pair.tokenizer.eos_token_id in ids


def test_a_mismatch_matters_where_either_token_is_of_mathematics():
    logits = torch.eye(6)[[1, 1, 4, 4, 0]][None]
    v = Verification(tokens=torch.tensor([[1, 2, 5, 1]]), logits=logits)
    kept = MathsTokens(important=frozenset({1, 3})).keep(v)
    assert kept.tolist() == [[True, False, True, False]]
