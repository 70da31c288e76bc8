"""Acceptance rules, one file per published rule. All files here are imported, so that their rules register."""

from importlib import import_module
from pkgutil import iter_modules

from .base import Acceptor as Acceptor
from .base import DroppedHeads as DroppedHeads
from .base import GreedyRule as GreedyRule
from .base import decide as decide
from .composed import AllOf as AllOf
from .composed import AnyOf as AnyOf
from .registry import REGISTRY as REGISTRY
from .registry import Setting as Setting
from .registry import head_type as head_type
from .registry import place_rule_head as place_rule_head
from .registry import register as register
from .registry import setting as setting
from .registry import settings_of as settings_of
from .registry import summary_of as summary_of

# isort: off
# The order of the registry and of README's table; other rules follow.
from .lossless import Lossless as Lossless
from .dropmatch import DropMatch as DropMatch
from .ears import Ears as Ears
from .topk import TopK as TopK
from .typical import Typical as Typical
from .relaxed import Relaxed as Relaxed
from .ensemble import Ensemble as Ensemble
from .thresholds import Thresholds as Thresholds
from .near_top import NearTop as NearTop
from .lenience import Lenience as Lenience
from .fsd import Fsd as Fsd
from .fly import Fly as Fly
from .cactus import Cactus as Cactus
from .margin import Margin as Margin
from .regret import Regret as Regret
from .judge import Judge as Judge
from .sprinter import Sprinter as Sprinter
# isort: on

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
globals().update({_rule.__name__: _rule for _rule in REGISTRY.values()})
