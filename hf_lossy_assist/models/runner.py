"""Running a model over a growing text: what every runner does, and the runner on a dynamic cache."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..compat.caches import CACHE, cache_name, cache_of, new_cache, recording, rollback, stop_recording, text_cache
from ..compat.inputs import ForwardInputs, TreeInputs
from ..compat.models import attention_of, device_of
from ..compat.probe import ask, obstacle_to_trees
from ..core.distributions import Randomness
from ..core.messages import Commit
from ..core.texts import RowShift
from .cache_rows import keep_path, move_cache


@dataclass(frozen=True, eq=False)
class Nodes:
    """The last tokens of a forward, where these are nodes of trees.

    Attributes
    ----------
    ancestors
        ``(B, m, M)`` which of all M nodes after the text each of the last m sees.
    depths
        ``(B, M)`` how many tokens each node's path from the text has.
    parents
        ``(B, m)`` each one's parent, among the nodes of the forward before; None for models that need not know.
    """

    ancestors: Tensor
    depths: Tensor
    parents: Tensor | None = None


@dataclass(frozen=True, eq=False)
class WholeTokens:
    """Tokens that were drafted in one go.

    Attributes
    ----------
    tokens, logits
        ``(B, n)``, and the logits of q ``(B, n, V)``.
    q
        ``(B, n)`` each token's own q, where drafts may end early.
    states
        The random numbers' states after each token, likewise; none where nothing is drawn, or all tokens at once.
    """

    tokens: Tensor
    logits: Tensor
    q: Tensor | None = None
    states: Sequence[Tensor] = ()


class ModelRunner(ABC):
    """Runs a model over the end of a text whose beginning its cache holds: :meth:`forward`, then :meth:`follow`.

    Attributes
    ----------
    device
        Where the model reads tokens.
    seen
        How many tokens of the text the cache holds.
    sent
        How many tokens the last :meth:`forward` was over, all rows together.
    needs_parts
        Whether some tokens take forwards of their own.
    hands_on
        Whether outputs give inputs of later forwards.
    returns_states
        Whether outputs have the states between layers that a head on them reads.
    lengths
        How many tokens :meth:`draft` may draft, the fewest first; none where it isn't prepared.
    chunk
        The most tokens of a prompt in one forward, if the caller has said.
    before
        How many tokens a caller's cache holds in front of the text.
    hook
        Is entered around each forward whose output is returned.
    """

    model: PreTrainedModel
    device: torch.device
    seen: int
    sent: int
    needs_parts = False
    hands_on = False
    returns_states = False
    lengths: Sequence[int] = ()
    chunk: int | None = None
    before = 0
    hook: AbstractContextManager[Any] = nullcontext()

    def forward(
        self,
        tokens: Tensor,
        keep: int = 1,
        tree: Nodes | None = None,
        skip: int = 0,
        overrides: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """Run the model over ``tokens`` ``(B, k)``, of which it has read the first ``skip``; return the output.

        Logits are computed at the last ``keep`` positions, and ``overrides`` replace inputs of the model. The last
        tokens may be a ``tree``. What a prompt has more than a chunk is read in forwards before.
        """
        sent = 0
        in_parts = self.chunk is not None or self.needs_parts
        for end in self._stops(skip, tokens.shape[1], keep) if in_parts else ():
            self._run(tokens[:, :end], 1, None, skip, {})
            skip, sent = end, sent + self.sent
        with self.hook:
            output = self._run(tokens, keep, tree, skip, overrides)
        self.sent += sent
        return output

    def follow(self, commit: Commit) -> None:
        """Keep what a round has committed but for the newest token, where the rows now stand; forget the rest."""
        if commit.path is not None and self.seen > commit.start:
            self._keep_path(commit.start, commit.path)
            self.seen = commit.start + commit.path.shape[1]
        if commit.shift is not None:
            self._move(commit.shift, commit.ids)
            return
        width = commit.width
        self.rewind(width - 1)
        if self.hands_on and self.seen:
            self._extend(width)

    @abstractmethod
    def rewind(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens, within a round."""

    def draft(self, text: Tensor, count: int, randomness: Randomness) -> WholeTokens | None:
        """Draft ``count`` tokens after ``text`` ``(B, L)`` in one go; None where that is not prepared."""
        return None

    def forgettable(self, length: int) -> int:
        """Return how many tokens after ``length`` the next forward can cover and still be rolled back."""
        return sys.maxsize

    def settle(self, text: Tensor) -> None:
        """At a run's end, let a cache that is used later hold all of ``text`` ``(1, L)`` but its newest token."""
        return

    def _stops(self, skip: int, length: int, keep: int) -> Iterable[int]:
        """Return where the forwards end that read what :meth:`forward` can't read at once."""
        return () if self.chunk is None else range(skip + self.chunk, length - keep + 1, self.chunk)

    @abstractmethod
    def _run(self, tokens: Tensor, keep: int, tree: Nodes | None, skip: int, overrides: Mapping[str, Any]) -> Any:
        """Run one forward."""

    def _keep_path(self, start: int, columns: Tensor) -> None:
        """After the first ``start`` tokens, keep only ``columns`` ``(B, k)``, in this order."""
        raise NotImplementedError

    def _extend(self, length: int) -> None:
        """Let what is handed on cover the first ``length`` tokens."""
        return

    @abstractmethod
    def _move(self, shift: RowShift, ids: Tensor) -> None:
        """Follow the rows of ``ids`` ``(B, S)`` into the next rectangle, and forget rejected tokens."""

    @cached_property
    def _tree_inputs(self) -> TreeInputs:
        return TreeInputs(self.model)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the block the cache can be rewound; after it, the cache belongs to the caller again."""
        yield


class DynamicCacheRunner(ModelRunner):
    """Runs a model on transformers' dynamic cache; each forward's inputs follow from the last one's.

    ``carried`` holds the first inputs: cache, mask, positions, and all else that the model reads. Mask and positions
    cover the first ``length`` tokens; the cache holds the first ``seen``. ``last_position`` ``(…, B, 1)`` is the
    highest position that a batch's texts can reach: what fills shorter drafts up would count beyond it. The cache of
    one text may hold ``before`` tokens in front of it. A prompt that is read ``alone`` has no draft behind it.
    """

    def __init__(
        self,
        inputs: ForwardInputs,
        carried: dict[str, Any],
        length: int,
        seen: int = 0,
        last_position: Tensor | None = None,
        before: int = 0,
        hands_on: bool = True,
        alone: bool = False,
    ) -> None:
        self.model: PreTrainedModel = inputs.model
        self.device = device_of(self.model)
        self.last_position = None if last_position is None else last_position.to(self.device)
        self.inputs = inputs
        self.carried = carried
        self.before = before
        self.hands_on = hands_on
        self.alone = alone
        self.seen = self._start = seen  # there, the run's first forward begins
        self.sent = 0
        self._covered = length
        self.cache = cache_of(carried)
        self._outputs: Any = None

    def _run(self, tokens: Tensor, keep: int, tree: Nodes | None, skip: int, overrides: Mapping[str, Any]) -> Any:
        rows, length = len(tokens), self.seen + tokens.shape[1] - skip
        inputs = self.inputs.of_text(tokens, self.carried, skip, length - self._covered, keep, self.seen == self._start)
        if inputs.get(CACHE) is None and self.cache is not None and cache_of(inputs) is None:
            name = cache_name(self.model)  # the model reads the whole text anew
            inputs[name] = self.carried[name] = self.cache = new_cache(self.model)
            self.seen = 0
        if tree is not None:
            width = length - tree.depths.shape[1] + self.before
            seen = self.seen + self.before
            inputs |= self._tree_inputs.of_tree(self.carried, width, seen, tree.ancestors, tree.depths)
        inputs.update(overrides)
        if rows > 1 and self.last_position is not None and inputs.get("position_ids") is not None:
            inputs["position_ids"] = inputs["position_ids"].clamp(max=self.last_position)
        mask = inputs.get("attention_mask") if length - self.seen == 1 else None
        if getattr(mask, "shape", None) == (rows, length) and self._shows_masks:
            inputs["attention_mask"] = self._tree_inputs.of_token(mask, text_cache(self.cache))
        self._outputs = self.model(**inputs, return_dict=True)
        returned = getattr(self._outputs, CACHE, None)
        if returned is not None and returned is not self.cache:  # code of a model's own may hand on another cache
            text_cache(returned).activate_past_recording()
            self.cache = returned
        self.sent = rows * (length - self.seen)
        self.seen = length
        return self._outputs

    @cached_property
    def _shows_masks(self) -> bool:
        """Whether transformers would read a mask in a forward over one token, but takes whole ones, too."""
        return attention_of(self.model) == "sdpa" and obstacle_to_trees(self.model, {}) is None

    @property
    def _sees_on(self) -> bool:
        """Whether a prompt's tokens would see a draft behind it."""
        told = self.carried.get("token_type_ids") is not None
        return self.inputs.prompt_sees_on(self.carried) if told else not ask(self.model).at_first

    def forgettable(self, length: int) -> int:
        if self._outputs is None and (self.alone or self._sees_on):
            return 0
        return sys.maxsize

    def rewind(self, length: int) -> None:
        # Some layers record what they have seen, so they need every round, also those without a rejection.
        rollback(self.cache, max(0, self.seen - length))
        self.seen = min(self.seen, length)

    def _keep_path(self, start: int, columns: Tensor) -> None:
        keep_path(text_cache(self.cache), start + self.before, columns)

    def _extend(self, length: int) -> None:
        self.inputs.after(self._outputs, self.carried, length - self._covered)
        self.cache = cache_of(self.carried)
        self._covered = length

    def _move(self, shift: RowShift, ids: Tensor) -> None:
        slots = shift.known(self.seen)
        move_cache(self.cache, shift, slots)
        self._extend(ids.shape[1])
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
