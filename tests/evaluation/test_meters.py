"""Memory, and the origin of a measurement."""

from __future__ import annotations

import torch

from hf_lossy_assist.evaluation.meters import peak_memory, provenance, reset_peak_memory


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


def test_a_measurement_names_its_processor():
    assert provenance("cpu")["cpu"]
