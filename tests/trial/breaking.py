"""Calls that are broken off at any moment, in this package's loop or in transformers': nothing is left behind."""

from __future__ import annotations

import contextlib
import dis
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import torch
from transformers import GenerationMixin

import hf_lossy_assist
from hf_lossy_assist import LossyVerification, enabled
from hf_lossy_assist.compat import drafters
from hf_lossy_assist.generation import enabling
from tests.golden.cases import RULES
from tests.tiny_models import noisy_copy, prompt, tiny

from .drawing import fields_of

_OURS = (str(Path(hf_lossy_assist.__file__).parent), contextlib.__file__)
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")


def state_of(*models: Any) -> dict[str, Any]:
    """Everything that a call could leave changed."""
    state: dict[str, Any] = {"class": dict(vars(GenerationMixin)), "pending": enabling._pending.get()}
    state["running"], state["intercepts"] = len(enabling._running), any(drafters._intercepts.values())
    for i, model in enumerate(models):
        state[f"{i} weights"] = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
        state[f"{i} configs"] = model.config.to_dict(), model.generation_config.to_dict()
        state[f"{i} attributes"] = [(name, sorted(vars(module))) for name, module in model.named_modules()]
        state[f"{i} hooks"] = [list(getattr(m, name)) for m in model.modules() for name in HOOKS if hasattr(m, name)]
        state[f"{i} training"] = [module.training for module in model.modules()]
    return state


class Failure(Exception):
    """An error of the caller's own code."""


class Interruption:
    """Raises an error at the n-th moment at which Python could handle a signal in this package.

    That is where a function begins and after every call, so also where code of the caller's could have failed. Without
    n, the moments are counted.
    """

    def __init__(self, at: int = 0, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.at = at
        self.error = error
        self.moments = 0

    def during(self, call: Callable[[], Any]) -> bool:
        """Tell whether ``call`` was broken off; nothing that it has used is kept alive by its traceback."""
        told, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None  # generators that are thrown away
        sys.settrace(self._enter)
        try:
            call()
        except self.error:
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
            raise self.error


def interruptions(seed: int, count: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """Ctrl-C or an error at a random moment of a call: nothing is left that acts, and the next call is a usual one."""
    target = tiny()
    draft = noisy_copy(target)
    rules = [(name, "ours") for name in RULES]
    rules += [(name, "stock's") for name, (mode, _) in RULES.items() if "sprinter" not in repr(mode)]
    wholes: dict[tuple[str, str, bool], tuple[Any, int]] = {}
    before: dict[str, Any] = {}

    def generate(rule: str, loop: str, do_sample: bool, run: Callable[[Callable[[], Any]], Any]) -> Any:
        fields = fields_of(*RULES[rule], target, draft)
        fields["lossy_config"]["seed"] = 0
        torch.manual_seed(0)
        kwargs = {"do_sample": do_sample, "max_new_tokens": 6, "eos_token_id": None, "assistant_model": draft}
        if loop == "ours":
            return run(lambda: target.generate(prompt(), **kwargs, **fields).tolist())
        mode, config, head = fields["lossy_mode"], fields["lossy_config"], fields.get("lossy_head")
        with LossyVerification(mode, target, assistant_model=draft, lossy_head=head, **config) as hook:
            return run(lambda: target.generate(prompt(), **kwargs, logits_processor=[hook]).tolist())

    def check(rule: tuple[str, str, bool], share: float, error: type[BaseException]) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if rule not in wholes:
                counting, texts = Interruption(), []
                generate(*rule, lambda call: counting.during(lambda: texts.append(call())))
                wholes[rule] = texts[0], counting.moments
            whole, moments = wholes[rule]
            interrupted = generate(*rule, Interruption(1 + int(share * moments), error).during)
            assert generate(*rule, lambda call: call()) == whole
        assert state_of(target, draft) == before
        return "nothing left" if interrupted else "not interrupted"

    r = Random(seed)
    with enabled():
        before |= state_of(target, draft)
        for _ in range(count):
            rule, share = (*r.choice(rules), r.random() < 0.3), r.random()
            error = r.choice([KeyboardInterrupt, Failure])
            name = f"{rule[0]} in {rule[1]} loop, drawn: {rule[2]}, {error.__name__} at {share:.4f}"
            yield name, lambda rule=rule, share=share, error=error: check(rule, share, error)
