"""Runs models with recurrent states, which can't be cropped, only saved, restored and read on from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from torch import Tensor

from ..compat.inputs import WHOLE_OUTPUTS, ForwardInputs
from ..compat.snapshots import CacheSnapshot
from ..core.texts import RowShift
from .runner import DynamicCacheRunner

LONGEST_REPLAY = 32
"""The most committed tokens that a forward reads again; it takes about as long as a forward over one."""

_COVERING = ("attention_mask", "position_ids")


class RecurrentRunner(DynamicCacheRunner):
    """Restores a saved state where tokens are rejected, and reads the kept tokens again.

    The target's state is saved before each forward over a draft. After a rejection it is restored, and the next
    forward begins with the tokens committed since, so replaying costs no forward of its own. The prompt, and more than
    :data:`LONGEST_REPLAY` committed tokens, are read in a forward without a draft, which moves the saved state on.
    A draft model's state is saved after each forward, so nothing is read again.

    The first ``padding`` columns are skipped, because models differ in how padding changes their state. ``several``
    says whether a model with a state reads several tokens at once; ``keeps_cache`` whether the cache is used after the
    run.
    """

    def __init__(
        self,
        inputs: ForwardInputs,
        carried: dict[str, Any],
        length: int,
        seen: int = 0,
        *,
        padding: int = 0,
        several: bool = True,
        keeps_cache: bool = False,
    ) -> None:
        super().__init__(inputs, _after(padding, carried), length, max(seen, padding))
        self.padding = padding
        self.several = several
        self.keeps_cache = keeps_cache
        self._saved = [(self.seen, CacheSnapshot(self.cache))]

    @property
    def _at_first(self) -> bool:
        return self.seen == self.padding

    @property
    def _returns_prompt(self) -> bool:
        """Whether the next forward returns every token's states, as the caller wants: of the prompt, or its rest."""
        return self._at_first and any(self.carried.get(name) for name in WHOLE_OUTPUTS)

    def forgettable(self, length: int) -> int:
        # A prompt that is read together with a draft would be read again after a rejection, with its images.
        return 0 if self._returns_prompt else super().forgettable(length)

    def catch_up(self, text: Tensor, keep: int) -> int:
        committed = text.shape[1] - keep
        ends: Iterable[int] = ()
        if self._returns_prompt:
            ends = self.ends(self.seen, committed + 1)
        elif committed > self.seen and (self._at_first or committed - self.seen > LONGEST_REPLAY):
            ends = *self.ends(self.seen, committed), committed
        sent = 0
        for end in ends:
            self._send(text[:, :end], self.seen, end, 1)
            sent += self.sent
        return sent

    def run(self, text: Tensor, keep: int, overrides: Mapping[str, Any] = MappingProxyType({})) -> Any:
        self._save(last=1)
        return self._send(text, self.seen, text.shape[1], keep, overrides)

    def read(self, tokens: Tensor) -> Any:
        sent = 0
        whole = self.parts(tokens) if self.several else (tokens,)
        for part in tokens.split(1, dim=1) if not (self._at_first or self.several) else whole:
            outputs = self._send(part, 0, self.seen + part.shape[1], 1)
            sent += self.sent
        self.sent = sent
        self._save(last=LONGEST_REPLAY)
        return outputs

    def _send(
        self, tokens: Tensor, skip: int, length: int, keep: int, overrides: Mapping[str, Any] = MappingProxyType({})
    ) -> Any:
        """Run the model over ``tokens`` without the first ``skip``, up to ``length`` tokens of the text."""
        first = self.seen == self._saved[0][0]
        inputs = self.inputs.of_text(tokens, self.carried, skip, length - self._covered, keep, first)
        inputs.update(overrides)
        return self._forward(inputs, len(tokens), length)

    def rewind(self, length: int) -> None:
        if length >= self.seen:
            return
        while self._saved[-1][0] > length:
            self._saved.pop()
        self.seen, snapshot = self._saved[-1]
        snapshot.restore(self.cache)

    def move(self, shift: RowShift, ids: Tensor) -> None:
        raise NotImplementedError("rows with recurrent states are decoded one by one")

    def settle(self, text: Tensor) -> None:
        if self.keeps_cache and self.seen < text.shape[1] - 1:
            self._send(text[:, :-1], self.seen, text.shape[1] - 1, 1)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        yield

    def _save(self, last: int) -> None:
        """Save the state; keep the first one and the newest ``last``."""
        if self._saved[-1][0] < self.seen:
            self._saved.append((self.seen, CacheSnapshot(self.cache)))
            del self._saved[1:-last]


def _after(padding: int, carried: dict[str, Any]) -> dict[str, Any]:
    return carried | {x: carried[x][..., padding:] for x in _COVERING if padding and carried.get(x) is not None}


def padding_before(mask: Tensor | None) -> int:
    """Return how many columns of padding a row's mask ``(1, L)`` begins with."""
    return 0 if mask is None else int((mask[0] != 0).int().argmax())
