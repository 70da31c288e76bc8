"""Running a model over a growing text: what every runner does, and the runner on a dynamic cache."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..compat.caches import CACHE, cache_name, cache_of, new_cache, recording, rollback, stop_recording, text_cache
from ..compat.inputs import ForwardInputs
from ..compat.models import device_of
from ..compat.probe import ask, takes_whole_masks
from ..compat.tree_inputs import TreeInputs
from ..core.distributions import Randomness
from ..core.texts import RowShift
from .cache_rows import keep_path, move_cache


class ModelRunner(ABC):
    """Runs a model over the end of a text whose beginning its cache holds."""

    model: PreTrainedModel
    seen: int  # how many tokens of the text the cache holds
    sent: int  # how many tokens the last forward was over, all rows together
    returns_states = False  # whether outputs have the states between layers that a head on them reads
    chunk: int | None = None  # the most tokens of a prompt in one forward, if the caller has said

    def ends(self, start: int, stop: int) -> Sequence[int]:
        """Return where chunks of the tokens from ``start`` to ``stop`` end, but for the last one."""
        return () if self.chunk is None else range(start + self.chunk, stop, self.chunk)

    def parts(self, tokens: Tensor) -> Sequence[Tensor]:
        """Return tokens ``(B, k)`` in chunks."""
        return tokens.split(self.chunk or max(1, tokens.shape[1]), dim=1)

    def catch_up(self, text: Tensor, keep: int) -> int:
        """Prefill what :meth:`run` with the same arguments will not cover; return how many tokens that took."""
        return 0

    def run(self, text: Tensor, keep: int, overrides: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """Run the model over the tokens of ``text`` ``(B, L)`` that it has not seen; return the forward's output.

        Logits are computed at the last ``keep`` positions, and ``overrides`` replace inputs of the forward.
        """
        raise NotImplementedError

    def run_tree(self, text: Tensor, keep: int, ancestors: Tensor, depths: Tensor) -> Any:
        """Do as :meth:`run` does, where the text ends in nodes of trees.

        ``ancestors`` ``(B, m, M)`` says which of the last M tokens each of the last m sees. ``depths`` ``(B, M)``
        counts the tokens on each node's path from the text.
        """
        raise NotImplementedError

    def read(self, tokens: Tensor) -> Any:
        """Run a draft model over the next ``tokens`` ``(B, k)``; the output has at least the last token's logits."""
        raise NotImplementedError

    def draft(self, text: Tensor, count: int, randomness: Randomness) -> tuple[Tensor, Tensor] | None:
        """Draft ``count`` tokens after ``text`` ``(B, L)`` in one go: tokens ``(B, k)`` and logits of q ``(B, k, V)``.

        None where the runner is not prepared for that.
        """
        return None

    def read_nodes(self, tokens: Tensor, width: int, ancestors: Tensor, depths: Tensor) -> Any:
        """Run a draft model over the nodes ``tokens`` ``(B, m)``, after a text of ``width`` tokens and other nodes.

        The output has the logits of all m; ``ancestors`` and ``depths`` are as for :meth:`run_tree`.
        """
        raise NotImplementedError

    def forgettable(self, length: int) -> int:
        """Return how many tokens after ``length`` the next forward can cover and still be rolled back."""
        return sys.maxsize

    @abstractmethod
    def rewind(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens."""

    def keep_path(self, start: int, columns: Tensor) -> None:
        """After the first ``start`` tokens, keep only ``columns`` ``(B, k)``, in this order."""
        raise NotImplementedError

    @abstractmethod
    def move(self, shift: RowShift, ids: Tensor) -> None:
        """Follow the rows of ``ids`` ``(B, S)`` into the next rectangle, and forget rejected tokens."""

    def extend(self, length: int) -> None:
        """Note that ``length`` tokens of the text are committed."""
        return

    def settle(self, text: Tensor) -> None:
        """At a run's end, let a cache that is used later hold all of ``text`` ``(1, L)`` but its newest token."""
        return

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the block the cache can be rewound; after it, the cache belongs to the caller again."""
        yield


class DynamicCacheRunner(ModelRunner):
    """Runs a model on transformers' dynamic cache; each forward's inputs follow from the last one's.

    ``carried`` holds the first inputs: cache, mask, positions, and all else that the model reads. Mask and positions
    cover the first ``length`` tokens; the cache holds the first ``seen``. ``last_position`` ``(…, B, 1)`` is the
    highest position that a batch's texts can reach: what fills shorter drafts up would count beyond it. The cache of
    one text may hold ``before`` tokens in front of it.
    """

    def __init__(
        self,
        inputs: ForwardInputs,
        carried: dict[str, Any],
        length: int,
        seen: int = 0,
        last_position: Tensor | None = None,
        before: int = 0,
    ) -> None:
        self.model: PreTrainedModel = inputs.model
        self.last_position = None if last_position is None else last_position.to(device_of(self.model))
        self.inputs = inputs
        self.carried = carried
        self.before = before
        self.seen = seen
        self.sent = 0
        self._covered = length
        self.cache = cache_of(carried)
        self._outputs: Any = None

    def catch_up(self, text: Tensor, keep: int) -> int:
        sent = 0
        for end in self.ends(self.seen, text.shape[1] - keep + 1):
            self._forward(self._inputs(text[:, :end], 1), len(text), end)
            sent += self.sent
        return sent

    def run(self, text: Tensor, keep: int, overrides: Mapping[str, Any] = MappingProxyType({})) -> Any:
        inputs = self._inputs(text, keep)
        inputs.update(overrides)
        return self._forward(inputs, *text.shape)

    def _inputs(self, text: Tensor, keep: int) -> dict[str, Any]:
        longer = text.shape[1] - self._covered
        inputs = self.inputs.of_text(text, self.carried, self.seen, longer, keep, first=self._outputs is None)
        if self.cache is not None and cache_of(inputs) is None:  # the model reads the whole text anew
            name = cache_name(self.model)
            inputs[name] = self.carried[name] = self.cache = new_cache(self.model)
            self.seen = 0
        return inputs

    def read(self, tokens: Tensor) -> Any:
        sent = 0
        for part in self.parts(tokens):
            length = self.seen + part.shape[1]
            inputs = self.inputs.of_tokens(part, self.carried, length - self._covered, 1)
            outputs = self._forward(inputs, len(part), length)
            sent += self.sent
        self.sent = sent
        return outputs

    def _forward(self, inputs: dict[str, Any], rows: int, length: int) -> Any:
        if rows > 1 and self.last_position is not None and inputs.get("position_ids") is not None:
            inputs["position_ids"] = inputs["position_ids"].clamp(max=self.last_position)
        mask = inputs.get("attention_mask") if length - self.seen == 1 else None
        if getattr(mask, "shape", None) == (rows, length) and self._shows_masks:
            inputs["attention_mask"] = self._tree_inputs.of_token(mask, self.cache)
        self._outputs = self.model(**inputs, return_dict=True)
        returned = getattr(self._outputs, CACHE, None)
        if returned is not None and returned is not self.cache:  # code of a model's own may hand on another cache
            text_cache(returned).activate_past_recording()
            self.cache = returned
        self.sent = rows * (length - self.seen)
        self.seen = length
        return self._outputs

    def run_tree(self, text: Tensor, keep: int, ancestors: Tensor, depths: Tensor) -> Any:
        inputs = self._inputs(text, keep)
        inputs |= self._tree_overrides(text.shape[1] - depths.shape[1], ancestors, depths)
        return self._forward(inputs, *text.shape)

    def read_nodes(self, tokens: Tensor, width: int, ancestors: Tensor, depths: Tensor) -> Any:
        rows, count = tokens.shape
        inputs = self.inputs.of_tokens(tokens, self.carried, self.seen + count - self._covered, count)
        return self._forward(inputs | self._tree_overrides(width, ancestors, depths), rows, self.seen + count)

    def _tree_overrides(self, width: int, ancestors: Tensor, depths: Tensor) -> dict[str, Any]:
        width, seen = width + self.before, self.seen + self.before
        return self._tree_inputs.of_tree(self.carried, width, seen, ancestors, depths)

    @cached_property
    def _shows_masks(self) -> bool:
        return takes_whole_masks(self.model)

    @cached_property
    def _tree_inputs(self) -> TreeInputs:
        return TreeInputs(self.model)

    @property
    def _sees_on(self) -> bool:
        """Whether a prompt's tokens would see a draft behind it."""
        told = self.carried.get("token_type_ids") is not None
        return self.inputs.prompt_sees_on(self.carried) if told else not ask(self.model).at_first

    def forgettable(self, length: int) -> int:
        if self._outputs is None and self._sees_on:
            return 0
        return sys.maxsize

    def rewind(self, length: int) -> None:
        # Some layers record what they have seen, so they need every round, also those without a rejection.
        rollback(self.cache, max(0, self.seen - length))
        self.seen = min(self.seen, length)

    def keep_path(self, start: int, columns: Tensor) -> None:
        keep_path(self.cache, start + self.before, columns)
        self.seen = start + columns.shape[1]

    def extend(self, length: int) -> None:
        self.inputs.after(self._outputs, self.carried, length - self._covered)
        self.cache = cache_of(self.carried)
        self._covered = length

    def move(self, shift: RowShift, ids: Tensor) -> None:
        slots = shift.known(self.seen)
        move_cache(self.cache, shift, slots)
        self.extend(ids.shape[1])
        self.inputs.move(self.carried, shift, ids)
        if self.last_position is not None:
            self.last_position = shift.of_rows(self.last_position)
        self.seen, self._covered = slots, shift.width

    @contextmanager
    def in_use(self) -> Iterator[None]:
        given = self.cache
        with recording(given):
            yield
        if self.cache is not given:
            stop_recording(self.cache)
