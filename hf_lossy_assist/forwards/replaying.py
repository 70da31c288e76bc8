"""Forwards of models with recurrent states, which can't be cropped: they are saved, brought back, and read on from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..compat import CacheSnapshot, ForwardInputs, cache_of
from ..errors import LossyUnsupportedError
from . import Forwards
from .growing import GrowingForwards

if TYPE_CHECKING:
    from ..decoding.batch_layout import RowShift

LONGEST_REPLAY = 32
"""How many committed tokens a forward reads again at most: over so many it takes about as long as over one."""

_COVERING = ("attention_mask", "position_ids")
_WHOLE_OUTPUTS = ("output_hidden_states", "output_attentions")


class ReplayingForwards(GrowingForwards):
    """Goes back to a saved state where tokens are rejected, and reads those that were kept again.

    A target's state is saved before every forward over a draft that does not begin at a saved one. After a rejection it
    is brought back, and what has been committed since is sent at the front of the next forward, which costs no forward
    of its own. Where more than :data:`LONGEST_REPLAY` tokens have gathered, and for the prompt, one forward over
    committed tokens alone moves the saved state.

    A draft model's state is saved after each of its forwards, so that nothing is read again.

    Parameters
    ----------
    inputs, carried, length, seen
        As for :class:`GrowingForwards`.
    padding
        How many columns at the text's beginning are not to be read: what a state makes of padding differs from model
        to model, and from a row alone to a batch.
    several
        Whether the model reads several tokens in one forward also where there is a state; else one after another.
    keeps_cache
        Whether somebody uses the cache after the run.
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
        self._caught_up = 0
        self._saved = [(self.seen, CacheSnapshot(self.cache))]

    @property
    def cache(self) -> Any:
        return cache_of(self.carried)

    @property
    def _at_first(self) -> bool:
        """Whether nothing has been read yet."""
        return self.seen == self.padding

    def catch_up(self, text: Tensor, keep: int) -> None:
        committed = text.shape[1] - keep
        # A caller who wants states of every token has the prompt's from one forward.
        at_once = self._at_first and any(self.carried.get(name) for name in _WHOLE_OUTPUTS)
        if committed > self.seen and not at_once and (self._at_first or committed - self.seen > LONGEST_REPLAY):
            self._send(text[:, :committed], self.seen, committed, 1)
            self._caught_up = self.sent

    def run(self, text: Tensor, keep: int, overrides: Mapping[str, Any] = MappingProxyType({})) -> Any:
        self._save(last=1)
        outputs = self._send(text, self.seen, text.shape[1], keep, overrides)
        self.sent += self._caught_up
        self._caught_up = 0
        return outputs

    def read(self, tokens: Tensor) -> Any:
        sent = 0
        for part in tokens.split(1, dim=1) if not (self._at_first or self.several) else (tokens,):
            outputs = self._send(part, 0, self.seen + part.shape[1], 1)
            sent += self.sent
        self.sent = sent
        self._save(last=LONGEST_REPLAY)
        return outputs

    def _send(
        self, tokens: Tensor, skip: int, length: int, keep: int, overrides: Mapping[str, Any] = MappingProxyType({})
    ) -> Any:
        """Run the model over ``tokens`` but for the first ``skip``, up to a ``length`` of the text."""
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

    def keep_path(self, start: int, columns: Tensor) -> None:
        Forwards.keep_path(self, start, columns)

    def move(self, shift: RowShift, ids: Tensor) -> None:
        raise LossyUnsupportedError(
            f"{type(self.model).__name__} keeps a recurrent state, so that its rows can't be decoded together; call "
            "generate() for one prompt at a time"
        )

    def settle(self, text: Tensor) -> None:
        if self.keeps_cache and self.seen < text.shape[1] - 1:
            self._send(text[:, :-1], self.seen, text.shape[1] - 1, 1)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        yield

    def _save(self, last: int) -> None:
        """Save the state, and forget those before the newest few, but for the first."""
        if self._saved[-1][0] < self.seen:
            self._saved.append((self.seen, CacheSnapshot(self.cache)))
            del self._saved[1:-last]


def _after(padding: int, carried: dict[str, Any]) -> dict[str, Any]:
    """Return what is carried, with mask and positions after the first ``padding`` columns only."""
    return carried | {x: carried[x][..., padding:] for x in _COVERING if padding and carried.get(x) is not None}


def padding_before(mask: Tensor | None) -> int:
    """Return how many columns of padding a row's mask ``(1, L)`` begins with."""
    return 0 if mask is None else int((mask[0] != 0).int().argmax())
