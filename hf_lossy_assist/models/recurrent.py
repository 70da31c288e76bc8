"""Runs models with recurrent states, which can't be cropped, only saved, restored and read on from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ..compat.caches import CacheSnapshot
from ..compat.inputs import WHOLE_OUTPUTS, ForwardInputs
from ..core.texts import RowShift
from .runner import DynamicCacheRunner, Nodes

LONGEST_REPLAY = 32
"""The most committed tokens that a forward reads again; it takes about as long as a forward over one."""

_COVERING = ("attention_mask", "position_ids")


class _SavedStates(DynamicCacheRunner):
    """Saves states, and restores one where tokens are rejected.

    The first ``padding`` columns are skipped, because models differ in how padding changes their state.
    """

    needs_parts = True

    def __init__(
        self, inputs: ForwardInputs, carried: dict[str, Any], length: int, seen: int = 0, padding: int = 0, **more: Any
    ) -> None:
        super().__init__(inputs, _after(padding, carried), length, max(seen, padding), **more)
        self.padding = padding
        self._saved = [(self.seen, CacheSnapshot(self.cache))]

    @property
    def _at_first(self) -> bool:
        return self.seen == self.padding

    def rewind(self, length: int) -> None:
        if length >= self.seen:
            return
        while self._saved[-1][0] > length:
            self._saved.pop()
        self.seen, snapshot = self._saved[-1]
        snapshot.restore(self.cache)

    def _move(self, shift: RowShift, ids: Tensor) -> None:
        raise NotImplementedError("rows with recurrent states are decoded one by one")

    @contextmanager
    def in_use(self) -> Iterator[None]:
        yield

    def _save(self, last: int) -> None:
        """Save the state; keep the first one and the newest ``last``."""
        if self._saved[-1][0] < self.seen:
            self._saved.append((self.seen, CacheSnapshot(self.cache)))
            del self._saved[1:-last]


class RecurrentRunner(_SavedStates):
    """Runs a target with a recurrent state: after a rejection, it reads the kept tokens again.

    The state is saved before each forward over a draft. After a rejection it is restored, and the next forward begins
    with the tokens committed since, so replaying costs no forward of its own. The prompt, and more than
    :data:`LONGEST_REPLAY` committed tokens, are read in a forward without a draft, which moves the saved state on.
    ``keeps_cache`` says whether the cache is used after the run.
    """

    def __init__(self, *args: Any, keeps_cache: bool = False, **more: Any) -> None:
        super().__init__(*args, **more)
        self.keeps_cache = keeps_cache

    @property
    def _returns_prompt(self) -> bool:
        """Whether the next forward returns every token's states, as the caller wants: of the prompt, or its rest."""
        return self._at_first and any(self.carried.get(name) for name in WHOLE_OUTPUTS)

    def forgettable(self, length: int) -> int:
        # A prompt that is read together with a draft would be read again after a rejection, with its images.
        return 0 if self._returns_prompt else super().forgettable(length)

    def _stops(self, skip: int, length: int, keep: int) -> Iterable[int]:
        committed = length - keep
        if self._returns_prompt:
            return super()._stops(skip, length, keep)
        if committed > skip and (self._at_first or committed - skip > LONGEST_REPLAY):
            return *super()._stops(skip, committed, 1), committed
        return ()

    def _run(self, tokens: Tensor, keep: int, tree: Nodes | None, skip: int, overrides: Mapping[str, Any]) -> Any:
        self._save(last=1)
        return super()._run(tokens, keep, tree, skip, overrides)

    def settle(self, text: Tensor) -> None:
        if self.keeps_cache and self.seen < text.shape[1] - 1:
            super()._run(text[:, :-1], 1, None, self.seen, {})


class RecurrentDraftRunner(_SavedStates):
    """Runs a draft model with a recurrent state, which it saves after each forward, so nothing is read again.

    ``several`` says whether a model with a state reads several tokens at once.
    """

    def __init__(self, *args: Any, several: bool = True, **more: Any) -> None:
        super().__init__(*args, **more)
        self.several = several

    def forward(self, *args: Any, **more: Any) -> Any:
        output = super().forward(*args, **more)
        self._save(last=LONGEST_REPLAY)
        return output

    def _stops(self, skip: int, length: int, keep: int) -> Iterable[int]:
        if self.several:
            return super()._stops(skip, length, keep)
        return () if self._at_first else range(skip + 1, length)


def _after(padding: int, carried: dict[str, Any]) -> dict[str, Any]:
    return carried | {x: carried[x][..., padding:] for x in _COVERING if padding and carried.get(x) is not None}


def padding_before(mask: Tensor | None) -> int:
    """Return how many columns of padding a row's mask ``(1, L)`` begins with."""
    return 0 if mask is None else int((mask[0] != 0).int().argmax())
