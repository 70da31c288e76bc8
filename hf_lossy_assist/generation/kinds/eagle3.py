"""An EAGLE-3 head."""

from __future__ import annotations

from ...drafting import Drafter
from ...drafting.eagle3 import Eagle3
from ...drafting.eagle3_drafter import Eagle3Drafter
from ...drafting.eagle3_static import StaticEagle3Forwards
from ...drafting.tree import Eagle3TreeDrafter
from .base import Making, register
from .state_head import StateHeadKind


@register
class Eagle3Kind(StateHeadKind):
    """`assistant_model` is an EAGLE-3 head, which drafts chains and trees."""

    gives = StateHeadKind.gives | {"tree"}
    head, drafter, forwards = Eagle3, Eagle3Drafter, StaticEagle3Forwards

    def make(self, making: Making) -> Drafter:
        if (tree := making.config.tree) is None:
            return super().make(making)
        own = making.settings | {"keep_hidden": "draft_hidden" in making.config.rule.needs} | self._own(making)
        return Eagle3TreeDrafter(self.model, self.asked.target, tree.depth, shape=tree, **own)
