"""What steps cost: the loop's own rounds on a clock that only forwards move, and what follows for an answer."""

from __future__ import annotations

import time
from dataclasses import asdict, replace

import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.evaluation.answers import AnswerStore
from hf_lossy_assist.evaluation.costs import FREE, Costs, costs_of, measure_costs, merged, repeated_costs
from hf_lossy_assist.evaluation.evaluation import Evaluation
from hf_lossy_assist.evaluation.modes import DecodingMode, Models, parse_modes
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from tests.tiny_models import prompt

TEXT = prompt(6).tolist()[0]


@pytest.fixture
def clocked(models: Models, monkeypatch: pytest.MonkeyPatch) -> Models:
    """Let a forward of the target over n tokens take 1 + n / 8 s, and one of the draft over n 0.25 n."""
    now = 0.0

    def costing(seconds):
        def hook(module, args, kwargs, output):
            nonlocal now
            now += seconds(kwargs["input_ids"].numel())

        return hook

    hooks = [
        models.target.register_forward_hook(costing(lambda n: 1 + n / 8), with_kwargs=True),
        models.draft.register_forward_hook(costing(lambda n: n / 4), with_kwargs=True),
    ]
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    yield models
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("rows", [1, 3])
def test_measured_costs_are_those_of_the_forwards(clocked, rows):
    costs = measure_costs(clocked, TEXT, lengths=(8, 24), gammas=(0, 2, 5), rows=rows)
    assert (costs.lengths, [*costs.target]) == ((8, 24), [1, 3, 6])
    assert costs.target == {n: (pytest.approx(1 + rows * n / 8),) * 2 for n in (1, 3, 6)}
    # After a round that keeps all, the draft has the round's last two tokens to read.
    each = [rows * (gamma + 1) / 4 / gamma for gamma in (2, 5)]
    assert costs.drafted == (pytest.approx(sum(each) / 2),) * 2
    # The newest token of the prompt is read with the first draft.
    assert costs.prompt_alone == tuple(pytest.approx(rows * (length - 1) / 8) for length in costs.lengths)
    assert costs.prompt == tuple(pytest.approx(rows * (length - 1) / 8 + rows * (length - 2) / 4) for length in (8, 24))


def test_each_repeat_has_costs_of_its_own(clocked):
    given = {"lengths": (8, 24), "gammas": (0, 5)}
    repeats = repeated_costs(clocked, TEXT, repeats=3, **given)
    assert len(repeats) == 3
    assert merged(repeats).target == {n: (pytest.approx(1 + n / 8),) * 2 for n in (1, 6)}


@pytest.mark.parametrize(("seen", "kept"), [
    ([[3, 1, 4]], [2, 2, 4]),
    ([[5, 4, 3]], [4, 4, 4]),
    ([[1, 2, 3]], [1, 2, 3]),
    ([[1, 2, 9], [1, 2, 3], [7, 2, 3]], [1, 2, 3]),  # medians come first
])  # fmt: skip
def test_more_tokens_never_take_less_time(seen, kept):
    repeats = [
        Costs(
            (8, 16), (0.0,) * 2, (0.0,) * 2, (0.1,) * 2, {n: (x, 2.0 * x) for n, x in zip((1, 2, 6), each, strict=True)}
        )
        for each in seen
    ]
    assert merged(repeats).target == {n: (x, 2 * x) for n, x in zip((1, 2, 6), kept, strict=True)}


def test_a_rule_s_own_rounds_are_timed(clocked):
    own = measure_costs(clocked, TEXT, lengths=(8,), gammas=(4,), mode=DecodingMode("x", "lossless", gamma=5))
    assert own.target == {5: (pytest.approx(1 + 5 / 8),)}


def test_another_clock_may_be_read(clocked):
    (own,) = costs_of(
        clocked, [DecodingMode("x", "lossless", gamma=2)], TEXT, (8,), clock=lambda: 3 * time.perf_counter()
    ).values()
    assert own.target == {3: (pytest.approx(3 * (1 + 3 / 8)),)}


COSTS = Costs((100, 300), (2.0, 4.0), (1.0, 3.0), (0.02, 0.04), {1: (0.1, 0.3), 5: (0.2, 0.4), 9: (0.4, 0.6)})


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({"prompt": 100, "tokens": 0, "rounds": 0, "drafted": 0}, 0.0),
        ({"prompt": 100, "tokens": 200, "rounds": 200, "drafted": 0}, 1.0 + 200 * 0.2),
        ({"prompt": 200, "tokens": 0, "rounds": 10, "drafted": 40}, 3.0 + 40 * 0.03 + 10 * 0.3),
        ({"prompt": 200, "tokens": 0, "rounds": 10, "drafted": 60}, 3.0 + 60 * 0.03 + 10 * 0.4),
        ({"prompt": 900, "tokens": 90, "rounds": 10, "drafted": 990}, 4.0 + 990 * 0.04 + 10 * 0.6),
    ],
)
def test_an_answer_takes_its_prompt_its_drafts_and_its_rounds(values, seconds):
    assert COSTS.answer(**values) == pytest.approx(seconds)


def test_a_block_costs_the_same_however_many_tokens_it_has():
    costs = Costs((1,), (0.0,), (0.0,), (0.0,), {1: (1.0,), 9: (1.0,)}, (0.5,))
    assert [costs.round(n, 1) for n in (0, 0.5, 1, 8)] == [1.0, 1.25, 1.5, 1.5]
    assert costs.token(1) == 0.5
    assert costs.with_draft_cost(0.25).round(8, 1) == 1.25
    assert Costs.of(asdict(costs)) == merged([costs]) == costs


def test_free_drafts_have_all_of_their_tokens(models):
    """A round that looks up is timed without a draft model."""
    (steps,) = repeated_costs(Models(models.target), TEXT, lengths=(8,), gammas=(0, 4), mode=FREE, repeats=1)
    assert sorted(steps.target) == [1, 5]
    response = run_request(Models(models.target), replace(FREE, gamma=4), *batches_of([TEXT[:8]]), 15)
    assert (response.work[0][:2], response.stats.draft_calls) == ((3, 12), 0)


@pytest.mark.parametrize("wrong", [{"gammas": (2, 2)}, {"gammas": ()}, {"lengths": (9, 8)}, {"lengths": (0,)}])
def test_wrong_lengths_are_refused_before_any_forward(wrong):
    with pytest.raises(LossyValueError, match=f"`{next(iter(wrong))}`"):
        measure_costs(Models(None), TEXT, **wrong)


def test_an_evaluation_predicts_seconds_and_compares_with_the_best_lossless_setting(pair, tmp_path):
    modes = parse_modes("plain,lossless@2,topk@4:k=3,lossless@auto,draft", 5)
    models = Models(pair.target, pair.draft)
    evaluation = Evaluation(models, pair.tokenizer, pair.task, modes, "plain", 3, batch_size=1)
    store = AnswerStore(tmp_path, evaluation.plan())
    for _ in evaluation.run(store):
        pass
    assert all(row.predicted_seconds is None for row in evaluation.result(store).modes.values())
    evaluation.measure_costs(store)
    again = AnswerStore(tmp_path, evaluation.plan())
    evaluation.measure_costs(again, track=None)  # what is known is not measured again
    kept = again.costs["modes"]
    result = evaluation.finish(again)
    for mode in modes:
        own = [answer for answer in result.answers if answer.mode == mode.label]
        drafted = [x.drafted if mode.gamma == "auto" else x.rounds * (mode.gamma or 0) for x in own]
        costs = Costs.of(kept[mode.label])
        seconds = [
            costs.answer(x.prompt, x.tokens, x.rounds if mode.gamma else x.tokens, n)
            for x, n in zip(own, drafted, strict=True)
        ]
        row = result.modes[mode.label]
        assert row.predicted_seconds.mean == pytest.approx(sum(seconds) / 3)
        assert row.peak_memory == max(x.memory for x in own) > 0
    lossless = [label for label in result.modes if "lossless" in label]
    best = min(lossless, key=lambda label: result.modes[label].predicted_seconds.mean)
    assert result.modes[best].times_lossless == (1, 1, 1)
    own, other = (result.modes[label] for label in ("topk@4:k=3", best))
    rates = [row.tokens_per_answer.mean / row.predicted_seconds.mean for row in (own, other)]
    assert own.times_lossless[0] == pytest.approx(rates[0] / rates[1])
    assert own.times_lossless[1] <= own.times_lossless[0] <= own.times_lossless[2]
    assert "Predicted from each answer's rounds" in repr(result)


def test_costs_of_another_machine_are_forgotten(pair):
    evaluation = Evaluation(Models(pair.target), pair.tokenizer, pair.task, parse_modes("plain", 5), "plain", 1)
    store = AnswerStore()
    for _ in evaluation.run(store):
        pass
    store.keep_costs({"machine": {"cpu": "abacus"}, "modes": {"plain": {}, "gone": {}}})
    evaluation.measure_costs(store)
    assert [*store.costs["modes"]] == ["plain"]
    assert store.costs["modes"]["plain"]["target"].keys() == {1}


@pytest.mark.parametrize(("modes", "lookup", "timed"), [
    ("plain,stock@3,lossless@2", False, {"plain", "stock@3", "lossless@2"}),
    ("plain,stock@20:threshold=0.4,stock@3:schedule=heuristic", False, {"plain"}),
    ("stock@3:cache=static", False, {"stock@3:cache=static"}),
    ("lossless@9:stop_drafting.by=entropy,lossless@2", False, {"lossless@2"}),
    ("plain,lossless@3", True, {"plain"}),
])  # fmt: skip
def test_drafts_that_end_by_the_text_have_no_costs(pair, modes, lookup, timed):
    models = Models(pair.target, None if lookup else pair.draft, lookup=lookup)
    assert costs_of(models, parse_modes(modes, 5), [5, 7, 9], (8,)).keys() == timed


def test_timed_texts_end_at_the_model_s_last_position(pair, monkeypatch):
    monkeypatch.setattr(pair.target.config, "max_position_embeddings", 128)
    modes = [DecodingMode("lossless", "lossless", gamma=5)]
    costs = costs_of(Models(pair.target, pair.draft), modes, [5, 7, 9], (8, 120, 500))
    assert costs["lossless"].lengths == (8, 128 - 6 * 6)  # six rounds of six tokens follow
