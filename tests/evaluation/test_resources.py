"""What the machine counts."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch

from hf_lossy_assist.evaluation.resources import ResidentMemory, energy_counter, machine

CUDA = types.SimpleNamespace(type="cuda")


def test_resident_memory(tmp_path):
    process = tmp_path / "self"
    process.mkdir()
    (process / "status").write_text("Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n")
    (process / "clear_refs").write_text("")
    memory = ResidentMemory(process)
    memory.reset()
    assert (process / "clear_refs").read_text() == "5"
    assert memory.peak() == 2048 * 1024
    elsewhere = ResidentMemory(tmp_path / "no such place")
    elsewhere.reset()
    assert elsewhere.peak() > 2**20


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
    with energy_counter(CUDA) as (joules, note):
        assert joules() == pytest.approx(3.0)
        assert joules() == pytest.approx(4.5)
        assert "NVML" in note
    assert state.open == 0
    assert machine(CUDA)["gpu"] == "A GPU"


@pytest.mark.parametrize(
    ("device", "module", "message"),
    [
        (torch.device("cpu"), None, "on NVIDIA GPUs only, not on 'cpu'"),
        (CUDA, None, "nvidia-ml-py is not installed"),
        (CUDA, nvml(init=True)[1], "NVML says Driver Not Loaded"),
    ],
    ids=["cpu", "no package", "no driver"],
)
def test_why_there_is_no_energy(gpu, monkeypatch, device, module, message):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with energy_counter(device) as (joules, note):
        assert joules is None
        assert message in note


def test_the_processor_has_a_name():
    assert machine(torch.device("cpu")).keys() == {"cpu"}
    if Path("/proc/cpuinfo").exists():
        assert machine(torch.device("cpu"))["cpu"]
