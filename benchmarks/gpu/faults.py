"""Faults on purpose: are the text of a call that meets one and later texts right, and is its memory free again?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_lossy_assist.models.static.graphs import RECORDERS

from .known_texts import pair_of, prompts
from .run import Run, heard
from .speed import ALPHA, decoded

FAULTS: dict[str, tuple[int, Callable[[Tensor], object]]] = {
    "no memory in a recording": (5, lambda x: torch.empty(1 << 50, dtype=torch.uint8, device=x.device)),
    "a wait in a recording": (3, lambda x: x.sum().item()),
}
"""What a recording meets, each with a draft length of its own, so that something is left to be recorded.

Memory may come back, but after a wait a model is not recorded again, so this is the last.
"""
GIVEN_BACK = 0.1
"""GB that may be in use after a planted fault, more than before. Graphs of several temperatures are kept for later."""


def faults(run: Run) -> None:
    target, draft = pair_of(run, ALPHA)
    ours = {"assistant_model": draft, "lossy_mode": "lossless"}
    rows, drawn = 2 if run.tiny else 32, ours | {"num_assistant_tokens": 4 if run.tiny else 16}
    used = []
    for i in range(3 if run.tiny else 6):
        with run.step(f"temperature {i}") as begins:
            if begins:  # texts are known when drawn, too: right tokens are far ahead
                case = {"do_sample": True, "temperature": 0.5 + i / 20, "lossy_config": {"seed": i}}
                used.append(_call(run, target, "temperatures", f"{0.5 + i / 20}", rows, **drawn, **case))
    with run.step("after temperatures") as begins:
        if begins and used:
            _is_back(run, "temperatures", used[0], _call(run, target, "temperatures", "later", rows, **drawn))
    for fault, (gamma, happens) in FAULTS.items():
        with run.step(fault) as begins:
            if begins:
                before = _call(run, target, fault, "before", **ours, num_assistant_tokens=4)
                with _planted(target, happens) as met:
                    _call(run, target, fault, "planted", **ours, num_assistant_tokens=gamma, met=met)
                torch.rand(1, device=run.device)  # a failed recording must leave the device's generator free
                _call(run, target, fault, "the same again", **ours, num_assistant_tokens=gamma)
                _is_back(run, fault, before, _call(run, target, fault, "later", **ours, num_assistant_tokens=4))


@contextlib.contextmanager
def _planted(model: PreTrainedModel, happens: Callable[[Tensor], object]) -> Iterator[list[int]]:
    """Inside, whatever is recorded meets a fault; count how often."""
    norm, met = model.model.norm, []
    forward = norm.forward

    def faulty(states: Tensor) -> Tensor:
        if states.device.type in RECORDERS and torch.cuda.is_current_stream_capturing():
            met.append(1)
            happens(states)
        return forward(states)

    norm.forward = faulty
    try:
        yield met
    finally:
        del norm.forward


def _call(
    run: Run, target: PreTrainedModel, fault: str, case: str, rows: int = 1, met: list[int] | None = None, **kwargs
) -> float | None:
    """Say a call's row, and return the memory in use after it."""
    with heard() as said:
        row = decoded(run, target, prompts(run, rows) % target.config.vocab_size, 40, **kwargs)
    row |= {"allocated_gb": (gb := run.allocated_gb()), "peak_gb": run.peak_gb()}
    run.say(
        "faults", fault=fault, case=case, rows=rows, **row, warned=said, **({} if met is None else {"met": len(met)})
    )
    return gb


def _is_back(run: Run, fault: str, before: float | None, after: float | None) -> None:
    more = None if before is None else round(after - before, 2)
    run.say("faults", fault=fault, summary=True, more_gb=more)
    if fault in FAULTS and more is not None and more > GIVEN_BACK:
        run.fail(f"memory after {fault}")
