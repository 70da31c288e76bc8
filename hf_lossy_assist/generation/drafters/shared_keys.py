"""Drafts with a model that reads the target's keys and values in place of its own, such as Gemma 4's assistants."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from ...compat.drafters import drafts_from_target_states, obstacle_to_shared_keys
from ...compat.models import SLIDING, device_of
from ...core.messages import Commit
from ...core.texts import GrowingTensor, RowShift, ones
from ...core.transfers import to_device
from ...drafting import Drafter
from ...drafting.chain import Source
from ...drafting.vocabulary import check_vocabularies, vocabulary_of
from ...errors import LossyUnsupportedError
from ...models.cache_rows import places, slots_of
from ...models.runner import ModelRunner, Nodes
from .base import Asked, Kind, Making, register


class SharedKeysSource(Source):
    """Reads the target's last state, its keys and its values: one forward over one token for each drafted token.

    It has no room in the first round, because the target has read nothing yet.
    """

    target_inputs = {"return_shared_kv_states": True}  # noqa: RUF012
    runner: SharedKeysRunner

    def __init__(self, assistant: PreTrainedModel, target: PreTrainedModel, mask: Tensor | None) -> None:
        super().__init__(SharedKeysRunner(assistant, target, mask), vocabulary_of(target, assistant))
        self._decoder, self._read = target.get_decoder(), None

    def room(self, ids: Tensor) -> int:
        return super().room(ids) if self.runner.seen else 0

    def learn(self, commit: Commit) -> None:
        self.runner.read_target(commit, self._read)
        super().learn(commit)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the block, keep the output of the target's decoder in this thread."""
        thread = threading.get_ident()

        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if threading.get_ident() == thread:
                self._read = output

        try:
            with self._decoder.register_forward_hook(hook):
                yield
        finally:
            self._read = None


class SharedKeysRunner(ModelRunner):
    """Runs an assistant over one token after another, each with the state that the last one left.

    All forwards of a round have the position of the text's newest token, as in transformers' own drafter. ``mask``
    ``(B, L)`` is False at padding of the prompts, or None.
    """

    def __init__(self, assistant: PreTrainedModel, target: PreTrainedModel, mask: Tensor | None) -> None:
        self.model, self.device = assistant, device_of(assistant)
        self.seen = self.sent = 0
        self._embed = target.get_input_embeddings()
        self._mask = None if mask is None or bool(mask.all()) else GrowingTensor(mask.long(), ones)

    def read_target(self, commit: Commit, output: Any) -> None:
        """Take over what the target's forward has left: the state before each row's newest token, and the keys.

        Keys of rejected tokens go, and rows come to end in the same slot. The newest token has no keys yet.
        """
        shift, end = commit.shift, commit.start + commit.drafted
        ends = [commit.start + count for count in commit.counts] if shift is None else shift.ends
        states = output.last_hidden_state
        at = to_device([range(len(ends)) if shift is None else shift.rows, ends], states.device)
        self._state = states[at[0], (at[1] - 2 - end + states.shape[1]).clamp(min=0)][:, None]
        # Keys and values (B, H, S, d) by kind of layer.
        keys, width = dict(output.shared_kv_states), ends[0] if shift is None else shift.width
        before = max(0, *(both[0].shape[2] - end for both in keys.values()))  # of a caller's cache
        if shift is None:
            rejected = end + 1 - width
            keys = {kind: tuple(x[:, :, : x.shape[2] - rejected] for x in both) for kind, both in keys.items()}
        else:
            there = torch.ones(len(commit.rows), end) if self._mask is None else self._mask.between(0, end)
            keys = {kind: tuple(_moved(x, at, end, min(ends), width) for x in both) for kind, both in keys.items()}
            there = _moved(there.to(states.device)[:, None, :, None], at, end, min(ends), width)[:, 0, :, 0]
            fresh = torch.arange(1 - width, 0, device=states.device) + at[1][:, None] >= 1
            self._mask = GrowingTensor((there * fresh).long(), ones)
        # A sliding cache holds more than the assistant's window, by how the round went.
        most = {SLIDING: self.model.config.get_text_config().sliding_window}
        self._keys = {kind: tuple(x[:, :, -most.get(kind, x.shape[2]) :] for x in both) for kind, both in keys.items()}
        self.seen = width - 1
        mask = None if self._mask is None else self._mask.between(0, self.seen)
        position = torch.full((len(ends), 1), self.seen) if mask is None else mask.sum(-1, keepdim=True)
        self._inputs = {
            "attention_mask": None if mask is None else pad(mask, (before, 0), value=1).to(self.device),
            "position_ids": (position + before).to(self.device),
        }
        self._begun = self._state

    def _run(self, tokens: Tensor, keep: int, tree: Nodes | None, skip: int, overrides: Any) -> CausalLMOutput:
        embedded = self._embed(tokens.to(self._embed.weight.device))
        both = torch.cat([embedded, self._state.to(embedded.device)], dim=-1)
        output = self.model(inputs_embeds=both, shared_kv_states=self._keys, use_cache=False, **self._inputs)
        self._state = output.last_hidden_state
        self.seen, self.sent = self.seen + 1, len(tokens)
        return output

    def rewind(self, length: int) -> None:
        self.seen, self._state = length, self._begun

    def _move(self, shift: RowShift, ids: Tensor) -> None:
        return  # what was read of the target has moved already


def _moved(x: Tensor, at: Tensor, end: int, shortest: int, width: int) -> Tensor:
    """Return of ``x`` ``(B, H, S, d)``, the slots up to ``end``, what rows have before their newest token.

    ``at`` ``(2, B')`` are the rows that go on, and the slots after their newest tokens, the least of which is
    ``shortest``. All end in slot ``width`` - 1. A sliding window's slots are as many as every row has.
    """
    begin = end - x.shape[2]
    count = width - 1 if begin <= 0 else min(width, shortest - begin) - 1
    slots = torch.arange(-1 - count, -1, device=x.device) + at[1].to(x.device)[:, None] - begin
    return slots_of(x, places(x.shape[1], x.shape[2], at[0].to(x.device), slots.clamp(min=0)))


@register
class SharedKeys(Kind):
    """`assistant_model` is a Gemma 4 assistant."""

    gives = frozenset({"q", "stop", "certificate"})
    remedy = "pass a draft model"

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        return cls(asked) if drafts_from_target_states(asked.alone) else None

    def check(self) -> None:
        target, assistant = self.asked.target, self.model
        if (obstacle := obstacle_to_shared_keys(target, assistant)) is not None:
            raise LossyUnsupportedError(
                f"`assistant_model` is a {type(assistant).__name__}, {obstacle}; pass a draft model"
            )
        check_vocabularies(target, assistant)

    def make(self, making: Making) -> Drafter:
        return self.drafter(making, SharedKeysSource(self.model, self.asked.target, making.call.mask))
