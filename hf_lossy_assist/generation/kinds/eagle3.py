"""An EAGLE-3 head."""

from __future__ import annotations

from ...drafting import Drafter
from ...drafting.chain import ChainDrafter
from ...drafting.eagle3 import Eagle3
from ...drafting.eagle3_runner import Eagle3Runner
from ...drafting.tree import TreeDrafter
from .base import Making, register
from .state_head import StateHeadKind


@register
class Eagle3Kind(StateHeadKind):
    """`assistant_model` is an EAGLE-3 head, which drafts chains and trees."""

    gives = StateHeadKind.gives | {"tree"}
    head, strategy, runner = Eagle3, ChainDrafter, Eagle3Runner

    def make(self, making: Making) -> Drafter:
        if (tree := making.config.tree) is None:
            return super().make(making)
        return TreeDrafter(self.source(making), tree, making.sampler())
