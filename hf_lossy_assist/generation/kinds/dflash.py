"""A DFlash head."""

from __future__ import annotations

from ...drafting.dflash import DFlash
from ...drafting.dflash_drafter import DFlashDrafter
from ...drafting.dflash_static import StaticDFlashForwards
from .base import register
from .state_head import StateHeadKind


@register
class DFlashKind(StateHeadKind):
    """`assistant_model` is a DFlash head, whose forward drafts a block."""

    head, drafter, forwards = DFlash, DFlashDrafter, StaticDFlashForwards
