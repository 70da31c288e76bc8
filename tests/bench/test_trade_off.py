"""Accuracy against tokens kept."""

from __future__ import annotations

import json

import pytest
import torch

from hf_lossy_assist import JudgeHead, LossyValueError, pairs
from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.bench import maths_tokens
from hf_lossy_assist.bench.maths_tokens import MathsTokens
from hf_lossy_assist.bench.trade_off import SWEEPS, Point, measure, plot
from hf_lossy_assist.heads import JudgeConfig, ModelIdentity
from hf_lossy_assist.messages import Verification


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
        Point("lossless", "", "lossless"),
        Point("maths", "", "maths"),
        Point("maths and top-K", "K=2", {"all_of": ["maths", "topk"]}, {"topk": {"k": 2}}),
        Point("judge", "τ=0.5", "judge", {"threshold": 0.5}, {"judge": "judge"}),
    ]
    examples, seen = pair.task.examples("test", 4), []
    with maths_tokens.registered():
        rows = list(measure(pair, points, examples, gamma=8, heads={"judge": lenient}, on_batch=seen.append))
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
    plot(rows, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    json.dumps([row.config for row in rows])


def test_maths_tokens_of_a_tokenizer(pair):
    ids = maths_tokens.maths_tokens(pair.tokenizer)
    words = {pair.tokenizer.decode([i]).strip() for i in ids}
    assert set("0123456789+-=") <= words
    assert "apples" not in words
    assert pair.tokenizer.eos_token_id in ids


def test_a_mismatch_matters_where_either_token_is_of_mathematics():
    logits = torch.eye(6)[[1, 1, 4, 4, 0]][None]
    v = Verification(tokens=torch.tensor([[1, 2, 5, 1]]), logits=logits)
    kept = MathsTokens(important=frozenset({1, 3})).keep(v)
    assert kept.tolist() == [[True, False, True, False]]


def test_sweeps_hold_what_is_compared():
    families = {point.family for point in SWEEPS["judge"]()}
    assert families == {"lossless", "judge", "judge + dropmatch", "dropmatch", "top-K", "maths", "maths and top-K"}
    assert sum(point.family == "judge" for point in SWEEPS["judge"]()) >= 6
    assert sum(point.family == "sprinter" for point in SWEEPS["sprinter"]()) >= 5


def test_the_command_refuses_an_unknown_sweep_and_a_missing_head(tmp_path):
    from hf_lossy_assist.cli.trade_off import trade_off

    with pytest.raises(LossyValueError, match="did you mean 'judge'"):
        trade_off("juge")
    with pytest.raises(LossyValueError, match="nowhere"):
        trade_off("judge", head=str(tmp_path / "nowhere"), problems=1)
