"""Forwards on a cache that grows with the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import PreTrainedModel

from ..compat import ForwardInputs, TreeInputs, forgettable, recording, rollback
from . import Forwards
from .cache_rows import keep_path, move_cache

if TYPE_CHECKING:
    from ..decoding.batch_layout import RowShift


class GrowingForwards(Forwards):
    """Runs a model on transformers' own dynamic cache, with inputs that are carried on from forward to forward.

    Parameters
    ----------
    inputs
        Makes a forward's inputs from those carried on.
    carried
        The inputs at the text's beginning: cache, mask, positions, and whatever else the model reads.
    length
        The tokens that mask and positions cover.
    seen
        How many of these the cache holds.
    last_position
        The last position that there is, where rows that are shorter than others are filled up beyond it.
    """

    def __init__(
        self,
        inputs: ForwardInputs,
        carried: dict[str, Any],
        length: int,
        seen: int = 0,
        last_position: int | None = None,
    ) -> None:
        self.model: PreTrainedModel = inputs.model
        self.last_position = last_position
        self.inputs = inputs
        self.carried = carried
        self.seen = seen
        self.sent = 0
        self._covered = length
        self._outputs: Any = None
        self._tree_inputs: TreeInputs | None = None

    @property
    def cache(self) -> Any:
        """The cache."""
        return self.carried["past_key_values"]

    def run(self, text: Tensor, keep: int, overrides: Mapping[str, Any] = MappingProxyType({})) -> Any:
        longer = text.shape[1] - self._covered
        inputs = self.inputs.of_text(text, self.carried, self.seen, longer, keep, first=self._outputs is None)
        inputs.update(overrides)
        return self._forward(inputs, *text.shape)

    def read(self, tokens: Tensor) -> Any:
        rows, length = len(tokens), self.seen + tokens.shape[1]
        return self._forward(self.inputs.of_tokens(tokens, self.carried, length - self._covered, 1), rows, length)

    def _forward(self, inputs: dict[str, Any], rows: int, length: int) -> Any:
        if rows > 1 and self.last_position is not None and inputs.get("position_ids") is not None:
            inputs["position_ids"] = inputs["position_ids"].clamp(max=self.last_position)
        self._outputs = self.model(**inputs, return_dict=True)
        self.sent = rows * (length - self.seen)
        self.seen = length
        return self._outputs

    def run_tree(self, text: Tensor, keep: int, ancestors: Tensor, depths: Tensor) -> Any:
        return self.run(text, keep, self._of_tree(text.shape[1] - depths.shape[1], ancestors, depths))

    def read_nodes(self, tokens: Tensor, width: int, ancestors: Tensor, depths: Tensor) -> Any:
        rows, count = tokens.shape
        inputs = self.inputs.of_tokens(tokens, self.carried, self.seen + count - self._covered, count)
        return self._forward(inputs | self._of_tree(width, ancestors, depths), rows, self.seen + count)

    def _of_tree(self, width: int, ancestors: Tensor, depths: Tensor) -> dict[str, Any]:
        if self._tree_inputs is None:
            self._tree_inputs = TreeInputs(self.model)
        return self._tree_inputs.of_tree(self.carried, width, self.seen, ancestors, depths)

    def forgettable(self, length: int) -> int:
        return max(0, forgettable(self.cache) - (length - self.seen))

    def rewind(self, length: int) -> None:
        # Layers that record what they have seen are told of every round, also where nothing is to be forgotten.
        rollback(self.cache, max(0, self.seen - length))
        self.seen = min(self.seen, length)

    def keep_path(self, start: int, columns: Tensor) -> None:
        keep_path(self.cache, start, columns)
        self.seen = start + columns.shape[1]

    def extend(self, length: int) -> None:
        self.carried = self.inputs.after(self._outputs, self.carried, length - self._covered)
        self._covered = length

    def move(self, shift: RowShift, ids: Tensor) -> None:
        slots = shift.known(self.seen)
        move_cache(self.cache, shift, slots)
        self.extend(ids.shape[1])
        self.inputs.move(self.carried, shift, ids)
        self.seen, self._covered = slots, shift.width

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with recording(self.cache):
            yield
