"""Kinds of drafters, one file each. All files here are imported, so that their kinds register."""

from importlib import import_module
from pkgutil import iter_modules

from .base import KINDS as KINDS
from .base import Asked as Asked
from .base import Kind as Kind
from .base import Lengths as Lengths
from .base import Making as Making
from .base import StaticDraft as StaticDraft
from .base import chosen as chosen

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
