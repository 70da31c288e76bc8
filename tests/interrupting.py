"""Interruptions at a chosen operation."""

from __future__ import annotations

import dis
from types import FrameType
from typing import Any


class InterruptAt:
    """A trace function that interrupts at the n-th operation, counted over all calls in one file.

    Python handles no signal in the instant of a return.
    """

    def __init__(self, file: str, left: int) -> None:
        self.file, self.left = file, left

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != self.file:
            return None
        frame.f_trace_opcodes = True
        returns = dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")
        self.left -= event == "call" or (event == "opcode" and not returns)
        if self.left == 0:
            self.left = -1
            raise KeyboardInterrupt
        return self
