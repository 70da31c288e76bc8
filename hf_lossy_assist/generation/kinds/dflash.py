"""A DFlash head."""

from __future__ import annotations

from ...drafting.chain import BlockDrafter
from ...drafting.dflash import DFlash
from ...drafting.dflash_runner import DFlashRunner
from .base import register
from .state_head import StateHeadKind


@register
class DFlashKind(StateHeadKind):
    """`assistant_model` is a DFlash head, whose forward drafts a block."""

    head, strategy, runner = DFlash, BlockDrafter, DFlashRunner
