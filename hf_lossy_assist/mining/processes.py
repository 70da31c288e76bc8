"""Which of several processes this one is, as ``accelerate launch``, ``torchrun`` or ``mpirun`` say it."""

from __future__ import annotations

from dataclasses import dataclass

_PREFIXES = ("PMI_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_")


@dataclass(frozen=True)
class Process:
    """One of the processes that share the work.

    Attributes
    ----------
    number, count
        Its number, from 0 on, and how many there are.
    local
        Its number on this machine.
    """

    number: int = 0
    count: int = 1
    local: int = 0


def this_process() -> Process:
    """Return what the environment says; alone where it says nothing.

    Nothing is sent between the processes, so none has to wait for another.
    """
    from accelerate.utils import get_int_from_env

    def read(name: str, mpi: str, default: int) -> int:
        return get_int_from_env([name, *(prefix + mpi for prefix in _PREFIXES)], default)

    return Process(read("RANK", "RANK", 0), read("WORLD_SIZE", "SIZE", 1), read("LOCAL_RANK", "LOCAL_RANK", 0))
