"""The automatic window finds the γ of the closed form from what it can see."""

from __future__ import annotations

import math
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hf_lossy_assist import LossyValueError, theory
from hf_lossy_assist.drafting.draft_length import (
    AutoLength,
    AutoNodes,
    ConstantLength,
    DraftLength,
    HeuristicLength,
    Round,
    Stopwatch,
    draft_length_of,
    node_count_of,
)
from hf_lossy_assist.drafting.tree_config import TreeConfig
from tests.models import noisy_copy, prompt, tiny


def simulate(
    window: DraftLength, alpha: float, t_draft: float, t_target: tuple[float, float], tokens: int, seed: int = 0
):
    """Return the seconds that a made-up machine takes for so many tokens, with noise of up to a factor of 2."""
    rng, seconds, made = random.Random(seed), 0.0, 0
    while made < tokens:
        n = window.size
        accepted = next((i for i in range(n) if rng.random() > alpha), n)
        drafting, rest = n * t_draft, t_target[0] + t_target[1] * (n + 1)
        seconds, made = seconds + drafting + rest, made + accepted + 1
        noise = [rng.choice((1, 1, 1, 1.1, 2)) for _ in range(2)]
        window.observe(Round(n, accepted, noise[0] * drafting, noise[1] * rest))
    return seconds


@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize(
    ("t_draft", "t_target"), [(0.05, (1.0, 0.0)), (0.2, (1.0, 0.0)), (0.05, (0.8, 0.1)), (0.02, (1.0, 0.01))]
)
def test_auto_is_near_the_best_fixed_window(alpha: float, t_draft: float, t_target: tuple[float, float]):
    """Within 5 % of it over 4,000 tokens, what exploring costs included, on average over four runs."""
    best = theory.best_gamma(alpha, t_draft, t_target, lowest=1, highest=32)
    fixed = sum(simulate(ConstantLength(best), alpha, t_draft, t_target, 4000, s) for s in range(4))
    auto = sum(simulate(AutoLength(), alpha, t_draft, t_target, 4000, s) for s in range(4))
    assert auto < 1.05 * fixed


def simulate_trees(
    nodes: DraftLength, gain: float, t_draft: float, t_target: tuple[float, float], tokens: int, seed: int = 0
) -> float:
    """The same with trees of depth 6, which keep tokens as the logarithm of their nodes."""
    rng, seconds, made = random.Random(seed), 0.0, 0
    while made < tokens:
        n = nodes.size
        mean = min(0.3 + gain * math.log2(n), 5.5, n)
        accepted = min(6, sum(rng.random() < mean / 6 for _ in range(6)))
        rest = t_target[0] + t_target[1] * (n + 1)
        seconds, made = seconds + t_draft + rest, made + accepted + 1
        noise = [rng.choice((1, 1, 1, 1.1, 2)) for _ in range(2)]
        nodes.observe(Round(n, accepted, noise[0] * t_draft, noise[1] * rest))
    return seconds


@pytest.mark.parametrize("gain", [0.2, 0.5, 0.8])
@pytest.mark.parametrize(("t_draft", "t_target"), [(0.3, (1.0, 0.0)), (0.3, (0.9, 0.02)), (0.1, (0.6, 0.1))])
def test_auto_is_near_the_best_fixed_number_of_nodes(gain: float, t_draft: float, t_target: tuple[float, float]):
    """Within 15 % of it over 2,000 tokens, what exploring costs included, on average over two runs."""
    fixed = {
        n: sum(simulate_trees(ConstantLength(n), gain, t_draft, t_target, 2000, s) for s in range(2))
        for n in (1, 4, 8, 16, 24, 32, 64, 128)
    }
    auto = sum(simulate_trees(AutoNodes(6), gain, t_draft, t_target, 2000, s) for s in range(2))
    assert auto < 1.15 * min(fixed.values())
    assert min(fixed.values()) * 1.3 < max(fixed.values())


def test_what_is_learnt_of_a_draft_s_trees_serves_the_next_call():
    target = tiny()
    draft, sizes = noisy_copy(target, 0.01), []
    for _ in range(2):
        target.generate(
            prompt(), assistant_model=draft, lossy_mode="lossless", max_new_tokens=40, do_sample=False,
            eos_token_id=None, lossy_config={"tree": {"depth": 4, "top_k": 3, "nodes": "auto"}},
        )  # fmt: skip
        sizes.append(node_count_of(TreeConfig(4, 3, "auto"), draft, "lossless").rounds)
    assert sizes[1] > sizes[0] > 4
    assert node_count_of(TreeConfig(4, 3, "auto"), draft, "topk").rounds == 0
    assert node_count_of(TreeConfig(4, 3, "auto"), draft, "lossless").highest == 3 + 3 * 9


def test_auto_follows_a_change():
    window = AutoLength()
    simulate(window, 0.95, 0.05, (1.0, 0.0), 1500)
    assert abs(window._best - theory.best_gamma(0.95, 0.05, 1.0)) <= 4
    simulate(window, 0.3, 0.05, (1.0, 0.0), 400)
    assert abs(window._best - theory.best_gamma(0.3, 0.05, 1.0, lowest=1)) <= 1


def test_windows_by_name():
    assert [type(draft_length_of(*x)) for x in ((4,), (4, "heuristic"), ("auto",), (4, "constant"))] == [
        ConstantLength, HeuristicLength, AutoLength, ConstantLength,
    ]  # fmt: skip
    for bad in (0, True, 2.5, "car"):
        with pytest.raises(LossyValueError, match="`num_assistant_tokens`"):
            draft_length_of(bad)


def test_auto_remembers_a_draft_and_a_rule_for_as_long_as_the_draft_lives():
    draft, other = tiny(), tiny()
    learned = draft_length_of("auto", "constant", draft, "topk")
    simulate(learned, 0.95, 0.05, (1.0, 0.0), 400)
    assert draft_length_of("auto", "constant", draft, "topk") is learned
    assert draft_length_of("auto", "constant", draft, "lossless").rounds == 0
    assert draft_length_of("auto", "constant", other, "topk").rounds == 0
    assert draft_length_of("auto") is not draft_length_of("auto")


def test_the_rounds_that_read_a_prompt_teach_no_times():
    window = AutoLength()
    for first in (True, False, False, True):
        window.observe(Round(5, 4, 50.0 if first else 0.5, 90.0 if first else 1.0, first))
    assert list(window.steps) == [0.1, 0.1]
    assert window.rounds == 4


def test_threads_may_share_what_is_learnt():
    window, interval = AutoLength(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            learn = [pool.submit(simulate, window, 0.8, 0.05, (1.0, 0.1), 600, seed) for seed in range(4)]
        assert all(x.result() > 0 for x in learn)
    finally:
        sys.setswitchinterval(interval)


def test_a_clock_that_stands_still_teaches_nothing():
    window = AutoLength()
    for _ in range(30):
        window.observe(Round(window.size, 1, 0.0, 0.0))
    assert window.size == 5


def test_auto_in_generate_and_its_text_is_plain_text():
    target = tiny()
    draft = noisy_copy(target)
    kwargs = {"input_ids": prompt(), "max_new_tokens": 100, "eos_token_id": None, "do_sample": False}
    plain = target.generate(**kwargs)
    out = target.generate(
        **kwargs, assistant_model=draft, lossy_mode="lossless", num_assistant_tokens="auto",
        return_dict_in_generate=True,
    )  # fmt: skip
    assert torch.equal(out.sequences, plain)
    assert len(set(out.lossy_stats.trace)) > 1
    assert out.lossy_stats.drafted / out.lossy_stats.rounds != 5


@pytest.mark.parametrize(("size", "timed"), [(4, False), ("auto", True)])
def test_only_a_window_that_learns_from_times_takes_any(monkeypatch, size, timed):
    """Reading an event's time would make the host wait for a GPU."""
    marks = []
    monkeypatch.setattr(Stopwatch, "mark", lambda self: marks.append(time.perf_counter()) or marks[-1])
    target = tiny()
    target.generate(
        prompt(), assistant_model=noisy_copy(target), lossy_mode="lossless", num_assistant_tokens=size,
        max_new_tokens=12, do_sample=False,
    )  # fmt: skip
    assert bool(marks) is timed
