"""The loop on static caches."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...call.static_plan import Plan
from ...decoding.loop import Decoding, Run
from ...decoding.outputs import GenerateLossyOutput
from ...stats import LossyStats
from .verifying import StaticVerifier


class StaticDecoding(Decoding):
    """One sequence in the making, with a target whose cache is rolled back by position.

    Parameters
    ----------
    run, ids, inputs, unseen
        As for :class:`~hf_lossy_assist.decoding.loop.Decoding`.
    plan
        What runs on static caches.
    """

    def __init__(self, run: Run, ids: Tensor, inputs: dict[str, Any], unseen: int | None, plan: Plan) -> None:
        self.plan = plan
        super().__init__(run, ids, inputs | {"past_key_values": plan.target.slots.cache}, unseen)

    def new_verifier(self) -> StaticVerifier:
        return StaticVerifier(**self.verifying, steps=self.plan.target)

    def decode(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        try:
            self.rounds()
            return self.finish()
        finally:
            self.plan.release(self.run.config.return_dict_in_generate)

    def after_target(self, drafted: int, committed: int, pending: int = 0) -> None:
        # The newest token is never in the cache: it is the first input of the next forward.
        self.plan.target.slots.seek(self.ids.shape[1] - 1)
        self.unseen = 1
