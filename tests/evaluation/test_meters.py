"""Where the time goes."""

from __future__ import annotations

import time

import pytest
import torch

from hf_lossy_assist.evaluation.meters import metered
from hf_lossy_assist.evaluation.modes import DecodingMode
from hf_lossy_assist.evaluation.requests import Instruments, PromptBatch, run_request
from tests.models import prompt


class Clock:
    """Every reading is a millisecond later than the one before; forwards cost what the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        self.now += 0.001
        return self.now


def costing(model, clock, seconds):
    """Let every decoder pass of a model take so long on the clock."""

    def hook(module, args, output):
        clock.now += seconds

    return model.get_decoder().register_forward_hook(hook)


LOSSLESS = DecodingMode("lossless", "lossless", gamma=3)


@pytest.mark.parametrize("mode", [DecodingMode.stock(3), LOSSLESS], ids=lambda mode: mode.label)
def test_passes_of_stock_and_ours_are_counted_alike(models, mode):
    clock = Clock()
    # A hook that was there before the meter's runs inside what it measures: 100 ms a target pass, 10 ms a draft's.
    handles = [costing(models.target, clock, 0.1), costing(models.draft, clock, 0.01)]
    ids = prompt(6)
    try:
        batch = PromptBatch(ids, torch.ones_like(ids))
        response = run_request(models, mode, batch, 16, Instruments(clock.read), meter=True)
    finally:
        for handle in handles:
            handle.remove()
    split = response.split
    # Two readings for the decoder and two for the head, a millisecond between each.
    assert split.verifying == pytest.approx(split.target_calls * 0.102)
    assert split.drafting == pytest.approx(split.draft_calls * 0.012)
    assert (split.target_call, split.draft_call) == (pytest.approx(0.102), pytest.approx(0.012))
    assert split.drafting + split.verifying + (split.deciding or 0) + split.rest == pytest.approx(response.seconds)
    assert split.first_token < response.seconds
    assert split.deciding is None, "this clock is not the statistics'"
    assert response.peak_memory > 0


def test_deciding_is_what_the_statistics_say(models):
    ids = prompt(6)
    response = run_request(models, LOSSLESS, PromptBatch(ids, torch.ones_like(ids)), 9, meter=True)
    assert response.split.deciding == response.stats.seconds["deciding"] > 0


def test_the_target_alone_takes_a_pass_a_token(models):
    ids = prompt(6)
    response = run_request(models, DecodingMode(), PromptBatch(ids, torch.ones_like(ids)), 9, meter=True)
    assert (response.split.target_calls, response.split.draft_calls, response.split.draft_call) == (9, 0, None)
    assert response.forwards["target"].tokens == [6] + [1] * 8


def test_no_hook_stays_and_plain_calls_have_none(models):
    def hooks():
        modules = [m for model in (models.target, models.draft) for m in model.modules()]
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)

    def interrupted():
        with metered(models.target) as forwards:
            models.target(prompt(4))
            seen.append((hooks(), len(forwards.calls)))
            raise RuntimeError("inside")

    before, seen = hooks(), []
    with pytest.raises(RuntimeError, match="inside"):
        interrupted()
    assert seen == [(before + 4, 1)]
    assert hooks() == before


def test_the_device_is_waited_for_at_every_reading(models):
    waits = []
    with metered(models.target, lambda: waits.append(time.perf_counter())):
        models.target(prompt(4))
    assert len(waits) == 4
