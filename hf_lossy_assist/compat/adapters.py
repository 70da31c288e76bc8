"""PEFT's adapters, one for each row of a batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn


class RowAdapters:
    """Gives PEFT's layers the adapters of the rows that a forward is over.

    For a call with ``adapter_names``, PEFT's own hooks hand on those of all rows, but rows that end leave a batch.
    """

    rows: Sequence[int]  # the rows of the next forwards, by their numbers in the call

    def __init__(self, model: nn.Module) -> None:
        self._names = {
            module: names
            for module in (model.modules() if "peft" in sys.modules else ())
            for hook in module._forward_pre_hooks.values()
            if (names := getattr(hook, "keywords", {}).get("adapter_names"))
        }

    def _hand_on(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        names = [self._names[module][row] for row in self.rows]
        filler = names[-1:] * (len(args[0]) - len(names) if args else 0)  # a static cache keeps its number of rows
        return args, kwargs | {"adapter_names": names + filler}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        handles = [module.register_forward_pre_hook(self._hand_on, with_kwargs=True) for module in self._names]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
