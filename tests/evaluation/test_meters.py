"""Where the time goes."""

from __future__ import annotations

import sys
import time
import types
from pathlib import Path

import pytest
import torch

from hf_lossy_assist.evaluation.meters import energy_counter, machine, metered, peak_memory, reset_peak_memory
from hf_lossy_assist.evaluation.modes import DecodingMode
from hf_lossy_assist.evaluation.requests import Instruments, PromptBatch, run_request
from tests.tiny_models import prompt


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
        response = run_request(models, mode, batch, 16, Instruments(clock.read), stages=True)
    finally:
        for handle in handles:
            handle.remove()
    split = response.stages
    # Two readings for the decoder and two for the head, a millisecond between each.
    assert split.verifying == pytest.approx(split.target_calls * 0.102)
    assert split.drafting == pytest.approx(split.draft_calls * 0.012)
    assert (split.target_call, split.draft_call) == (pytest.approx(0.102), pytest.approx(0.012))
    assert split.drafting + split.verifying + (split.deciding or 0) + split.rest == pytest.approx(response.seconds)
    assert split.first_token < response.seconds
    assert split.deciding is None, "this clock is not the statistics'"
    assert response.memory > 0


def test_what_a_meter_sees_of_a_plain_and_of_a_lossless_call(models):
    ids = prompt(6)
    alone, ours = (
        run_request(models, mode, PromptBatch(ids, torch.ones_like(ids)), 9, stages=True)
        for mode in (DecodingMode(), LOSSLESS)
    )
    assert (alone.stages.target_calls, alone.stages.draft_calls, alone.stages.draft_call) == (9, 0, None)
    assert ours.stages.deciding == ours.stats.seconds["deciding"] > 0


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


CUDA = types.SimpleNamespace(type="cuda")


def test_resident_memory(tmp_path):
    process = tmp_path / "self"
    process.mkdir()
    (process / "status").write_text("Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n")
    (process / "clear_refs").write_text("")
    cpu, elsewhere = torch.device("cpu"), tmp_path / "no such place"
    reset_peak_memory(cpu, process)
    assert (process / "clear_refs").read_text() == "5"
    assert peak_memory(cpu, process) == 2048 * 1024
    reset_peak_memory(cpu, elsewhere)
    assert peak_memory(cpu, elsewhere) > 2**20


def nvml(**failing):
    class NVMLError(Exception):
        pass

    state = types.SimpleNamespace(millijoules=0, open=0)

    def init():
        state.open += 1
        if "init" in failing:
            raise NVMLError("Driver Not Loaded")

    def by_uuid(uuid):
        assert uuid == "GPU-1234"
        return "handle"

    def energy(handle):
        assert handle == "handle"
        state.millijoules += 1500
        return state.millijoules

    def shutdown():
        state.open -= 1

    return state, types.SimpleNamespace(
        NVMLError=NVMLError, nvmlInit=init, nvmlDeviceGetHandleByUUID=by_uuid, nvmlShutdown=shutdown,
        nvmlDeviceGetTotalEnergyConsumption=energy,
    )  # fmt: skip


@pytest.fixture
def gpu(monkeypatch):
    properties = types.SimpleNamespace(uuid="1234")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A GPU")


def test_energy_in_joules(gpu, monkeypatch):
    state, module = nvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with energy_counter(CUDA) as joules:
        assert joules() == pytest.approx(3.0)
        assert joules() == pytest.approx(4.5)
    assert state.open == 0
    assert machine(CUDA)["gpu"] == "A GPU"


@pytest.mark.parametrize(
    ("device", "module"),
    [(torch.device("cpu"), nvml()[1]), (CUDA, None), (CUDA, nvml(init=True)[1])],
    ids=["cpu", "no package", "no driver"],
)
def test_where_nobody_counts_energy(gpu, monkeypatch, device, module):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with energy_counter(device) as joules:
        assert joules is None


def test_the_processor_has_a_name():
    assert machine(torch.device("cpu")).keys() == {"cpu"}
    if Path("/proc/cpuinfo").exists():
        assert machine(torch.device("cpu"))["cpu"]
