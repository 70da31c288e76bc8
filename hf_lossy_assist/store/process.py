"""The processes that share a run's work, and with it a folder of results."""

from __future__ import annotations

from dataclasses import dataclass

_PREFIXES = ("PMI_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_")


@dataclass(frozen=True)
class Process:
    """One of the processes that share the work: its number from 0 on, their count, and its number on this machine."""

    number: int = 0
    count: int = 1
    local: int = 0


def this_process() -> Process:
    """Read this process from the environment, a single one by default; processes never communicate."""
    from accelerate.utils import get_int_from_env

    def read(name: str, mpi: str, default: int) -> int:
        return get_int_from_env([name, *(prefix + mpi for prefix in _PREFIXES)], default)

    return Process(read("RANK", "RANK", 0), read("WORLD_SIZE", "SIZE", 1), read("LOCAL_RANK", "LOCAL_RANK", 0))
