"""Calls that are broken off anywhere, and what they could leave behind."""

from __future__ import annotations

import contextlib
import dis
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import GenerationMixin

import hf_lossy_assist
from hf_lossy_assist import compat, enabling

_OURS = (str(Path(hf_lossy_assist.__file__).parent), contextlib.__file__)
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")


def state_of(*models: Any) -> dict[str, Any]:
    """Everything that a call could leave changed."""
    state: dict[str, Any] = {"class": dict(vars(GenerationMixin)), "pending": enabling._pending.get()}
    state["running"], state["intercepts"] = len(enabling._running), any(compat.drafters._intercepts.values())
    for i, model in enumerate(models):
        state[f"{i} weights"] = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
        state[f"{i} configs"] = model.config.to_dict(), model.generation_config.to_dict()
        state[f"{i} attributes"] = [(name, sorted(vars(module))) for name, module in model.named_modules()]
        state[f"{i} hooks"] = [list(getattr(m, name)) for m in model.modules() for name in HOOKS if hasattr(m, name)]
        state[f"{i} training"] = [module.training for module in model.modules()]
    return state


class Interruption:
    """Raises KeyboardInterrupt at the n-th moment at which Python could handle a signal in this package.

    That is where a function begins and after every call. Without n, the moments are counted.
    """

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.moments = 0

    def during(self, call: Callable[[], Any]) -> bool:
        """Tell whether ``call`` was broken off; nothing that it has used is kept alive by its traceback."""
        told, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None  # generators that are thrown away
        sys.settrace(self._enter)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
            sys.unraisablehook = told
        return False

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        code, called = frame.f_code.co_code, False
        self._pass()

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal called
            if event == "opcode":
                if called:
                    self._pass()
                called = dis.opname[code[frame.f_lasti]].startswith("CALL")
            return trace

        return trace

    def _pass(self) -> None:
        self.moments += 1
        if self.moments == self.at:
            raise KeyboardInterrupt
