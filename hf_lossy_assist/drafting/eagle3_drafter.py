"""Drafts with an EAGLE-3 head or an MTP layer, from the states of the target's layers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from ..compat import rollback
from ..core.messages import Commit, Draft
from ..core.texts import RowShift, Texts
from ..core.transfers import to_device
from ..core.trees import along_path
from ..errors import LossyUnsupportedError
from ..models.cache_rows import move_cache
from ..models.runner import ModelRunner
from ..models.static.forwards import decoder_layers
from .draft_ends import DraftLength
from .model import ModelDrafter
from .state_head import StateHead


class Eagle3Drafter(ModelDrafter):
    """Drafts with a head on the target's states: a forward over what a round has committed, then one per token.

    The first round has no draft, because there are no states yet. ``returned`` says that the target's outputs have the
    states.
    """

    def __init__(
        self,
        head: StateHead,
        target: PreTrainedModel,
        draft_length: int | DraftLength,
        *,
        attention_mask: Tensor | None = None,
        returned: bool = False,
        runner: Callable[[], Eagle3Forwards] | None = None,
        **settings: Any,
    ) -> None:
        self.states = ReturnedStates() if returned else LayerStates(target, head.layers_of(target))
        super().__init__(
            head,
            draft_length,
            vocabulary=head.vocabulary(target),
            runner=runner or (lambda: Eagle3Forwards(head, target, attention_mask)),
            **settings,
        )

    def propose(self, ids: Tensor, layout: Texts, remaining: Sequence[int]) -> Draft:
        return super().propose(ids, layout, remaining) if self.runner.seen else Draft.empty(ids)

    def observe(self, commit: Commit) -> None:
        unread = commit.start + commit.drafted - min(self.runner.seen, commit.start - 1)
        self.runner.read_states(commit, self.states.pop(commit.outputs, unread))
        super().observe(commit)

    def begin(self, ids: Tensor) -> None:
        super().begin(ids)
        # A slot holds the token after it too, so the slots know one token more than their number.
        self.unread = self.unread[:, 1:]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        with self.states.watched(), self.runner.in_use():
            yield


class Eagle3Forwards(ModelRunner):
    """Runs a head for a target. Its slot t holds the target's state at token t and the token after it.

    ``mask`` ``(B, L)`` is False at padding of the prompts, or None.
    """

    def __init__(self, head: StateHead, target: PreTrainedModel, mask: Tensor | None) -> None:
        self.model = head
        self.embeddings = head.embeddings(target)
        self.seen = self.sent = 0
        self._first = 0
        self._cache = head.new_cache()
        self._mask = None if mask is None or bool(mask.all()) else mask.bool().to(head.device)
        self._state: Tensor | None = None
        self._nodes: Tensor | None = None

    def read_states(self, commit: Commit, states: Tensor) -> None:
        """Read what a round has committed, given the target's states ``(B, S, …)`` of its verification.

        The drafted slots are forgotten: they hold the head's own output in place of the target's states.
        """
        self.rewind(commit.start - 1)
        begin = commit.start + commit.drafted - states.shape[1]
        if commit.path is not None:
            states = along_path(states, commit.path, commit.drafted)
        if not self.seen:  # the caller's cache may hold the beginning, whose states are unknown
            self.seen = self._first = begin
        longest = max(commit.counts)
        ids = commit.ids[:, self.seen + 1 : commit.start + longest]
        counts = to_device(commit.counts, ids.device)[:, None]
        over = torch.arange(self.seen + 1 - commit.start, longest, device=ids.device) >= counts
        g = self.model.fuse(states[:, self.seen - begin :][:, : ids.shape[1]])
        before = self.seen
        output = self._forward(ids.masked_fill(over, 0), g)  # beyond the end of shorter rows, anything will do
        last = (counts + commit.start - 2 - before).clamp(min=0).to(output.device)
        self._state = output.gather(1, last[..., None].expand(-1, -1, output.shape[-1]))

    def run(self, text: Tensor, keep: int, overrides: Mapping[str, Any] = MappingProxyType({})) -> CausalLMOutput:
        return self.read(text[:, self.seen + 1 :])

    def read(self, tokens: Tensor) -> CausalLMOutput:
        if tokens.shape[1]:  # the first drafted token needs no forward: its state has been read
            self._state = self._forward(tokens, self._state)
        return CausalLMOutput(logits=self.model.logits(self._state))

    def run_nodes(self, tokens: Tensor, came_from: Tensor, ancestors: Tensor, levels: int) -> Tensor:
        """Run the head over the newest nodes ``tokens`` ``(B, k)``, at depth ``levels``; return logits ``(B, k, V)``.

        ``came_from`` ``(B, k)`` is each node's parent among the nodes before, whose output it takes; depth 1 has none.
        ``ancestors`` ``(B, k, M)`` says which of all nodes so far each sees.
        """
        rows, k, slots = ancestors.shape
        before, read = self._state if levels == 1 else self._nodes, self.seen - (slots - k)
        device = before.device
        if self._mask is None:
            newest, text = torch.full((rows, 1), read, device=device), torch.ones(1, read - self._first, device=device)
        else:
            there = self._covering(read + 1)[:, self._first :]
            newest, text = there.sum(-1, keepdim=True) - 1, there[:, :-1]
        sees = torch.cat([text.bool()[:, None].expand(rows, k, -1), ancestors.to(device)], dim=-1)
        states = before[torch.arange(rows, device=device)[:, None], came_from.to(device)]
        self._nodes = self._run(tokens, states, (newest + levels - 1).expand(-1, k), sees[:, None])
        return self.model.logits(self._nodes)

    def rewind(self, length: int) -> None:
        if length < self.seen:
            rollback(self._cache, self.seen - length)
            self.seen = length

    def move(self, shift: RowShift, ids: Tensor) -> None:
        slots = shift.known(self.seen)
        self._move_cache(shift, slots)
        if self._mask is not None or len(set(shift.ends)) > 1:
            mask = torch.ones_like(ids, dtype=torch.bool) if self._mask is None else self._covering(ids.shape[1])
            self._mask = shift.moved(mask.to(self.model.device), False)
        self._state = self._state.index_select(0, shift.index.to(self._state.device))
        self.seen = slots

    def _move_cache(self, shift: RowShift, slots: int) -> None:
        move_cache(self._cache, shift, slots)

    def _covering(self, length: int) -> Tensor:
        """Return the mask of the first ``length`` tokens; generated tokens are no padding."""
        return nn.functional.pad(self._mask, (0, max(0, length - self._mask.shape[1])), value=True)[:, :length]

    def _forward(self, ids: Tensor, states: Tensor) -> Tensor:
        """Run the head over the next slots; ``ids`` ``(B, n)`` are the tokens after those of the slots."""
        return self._run(ids, states, *self._next(ids.shape[1]))

    def _next(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Return positions and mask of the next ``count`` slots."""
        start, end = self.seen, self.seen + count
        slots = torch.arange(self._first, end, device=self.model.device)
        queries = slots[start - self._first :, None]
        if self._mask is not None:
            there = self._covering(end)[:, self._first :]
            positions = (there.cumsum(-1) - 1).clamp(min=0)[:, start - self._first :]
            # Padding sees itself, since attention over nothing gives NaN.
            return positions, ((slots <= queries) & there[:, None] | (slots == queries))[:, None]
        return queries.T, (slots <= queries)[None, None] if len(queries) > 1 else None

    def _run(self, ids: Tensor, states: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        output = self.model(embedded(ids, self.embeddings, self.model.device), states, positions, mask, self._cache)
        self.seen, self.sent = self.seen + ids.shape[1], ids.numel()
        return output


def embedded(ids: Tensor, embeddings: Tensor, device: torch.device) -> Tensor:
    """Return the embeddings of tokens, on the head's ``device``; a target's newest tokens may have none."""
    ids = ids.to(embeddings.device)
    return embedding(ids.masked_fill(ids >= len(embeddings), 0), embeddings).to(device)


class ReturnedStates:
    """Reads the states that a forward over a static cache returns."""

    def pop(self, outputs: Any, wanted: int) -> Tensor:
        return torch.cat(outputs.hidden_states, dim=-1)

    def watched(self) -> AbstractContextManager[None]:
        return nullcontext()


class LayerStates:
    """Reads a few of the hidden states of a model's forwards, numbered as in :meth:`StateHead.layers_of`."""

    def __init__(self, model: PreTrainedModel, layers: Sequence[int]) -> None:
        depth = model.config.get_text_config(decoder=True).num_hidden_layers
        found = decoder_layers(model)
        if found is None and min(layers) <= depth:
            raise LossyUnsupportedError(
                "`assistant_model` is an EAGLE-3 head, which reads layers of the target, but the decoder of a "
                f"{type(model).__name__} does not hold its layers in one list; pass a draft model"
            )
        self._entered = [] if found is None else list(found[1])
        self._left = {depth: self._entered[-1]} if found else {}
        self._left[depth + 1] = model.get_decoder()
        self._layers = tuple(layers)
        self._read: dict[int, deque[Tensor]] = {}

    def pop(self, outputs: Any = None, wanted: int = 1) -> Tensor:
        """Return ``(B, S, k·d)`` the states of this thread's last forward, side by side, and forget them.

        If these are fewer than ``wanted``, those of the forward before come first: recurrent models read a prompt, or
        many kept tokens, in a forward of its own.
        """
        states = [_last(self._read.pop(i), wanted) for i in self._layers]
        return torch.cat([state.to(states[0].device) for state in states], dim=-1)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block, keep the states of this thread's last two forwards."""
        thread, handles = threading.get_ident(), []

        def keep(i: int, state: Tensor) -> None:
            if threading.get_ident() == thread:
                self._read.setdefault(i, deque(maxlen=2)).append(state)

        def entering(i: int) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                keep(i, args[0] if args else kwargs["hidden_states"])

            return hook

        def leaving(i: int) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
                keep(i, output if isinstance(output, Tensor) else output[0])

            return hook

        try:
            for i in self._layers:
                if i in self._left:
                    handles.append(self._left[i].register_forward_hook(leaving(i)))
                else:
                    handles.append(self._entered[i].register_forward_pre_hook(entering(i), with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._read.clear()


def _last(parts: Sequence[Tensor], wanted: int) -> Tensor:
    return parts[-1] if parts[-1].shape[1] >= wanted else torch.cat([*parts], dim=1)
