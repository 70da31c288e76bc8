"""Forwards and whole drafts over fixed numbers of tokens: what is prepared of them, and trials of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import LogitsProcessorList
from transformers.utils import logging

from ...compat.models import device_of
from ...core.distributions import Randomness
from ...errors import LossyUnsupportedError
from ..runner import ModelRunner
from .cache_slot import StaticCacheSlot, give_back
from .forwards import Compiling, DecoderForward, FixedForward, Make, filled_up, with_decoder_forward
from .graphs import Recording, weights_of

_TOLERANCE = 0.05  # of the largest logit: half precision, and sums in another order
_FORBIDDEN = -1e5  # logits below say that a token can't be chosen

Prepare = Callable[[Hashable, Make], Callable[..., Any]]
"""Prepares what a function makes, under a name."""


@dataclass(frozen=True)
class FixedSampler:
    """How a draft's next token follows from logits: it is ``drawn`` from so many tokens, or the likeliest where 0.

    ``processors`` look at no text, and ``settings`` tell them from others. ``vocabulary`` translates a draft's tokens
    where these are not the target's. With ``scores``, it returns each token's own q, by which drafts end early.
    """

    drawn: int
    scores: bool
    processors: LogitsProcessorList
    settings: Hashable
    vocabulary: Any

    @property
    def key(self) -> Hashable:
        return self.drawn, self.scores, self.settings, self.vocabulary

    def __call__(self, logits: Tensor, waits: Tensor | None) -> tuple[Tensor, ...]:
        """Return the next tokens ``(B, 1)``, logits of q ``(B, 1, V)`` and, where they are wanted, the tokens' own q.

        ``waits`` ``(B, 1, V)`` are random.
        """
        logits = self.vocabulary.logits(logits[:, -1:].float())
        if self.processors:
            logits = self.processors(None, logits[:, 0])[:, None]
        chosen_by = logits.softmax(-1) / waits if self.drawn else logits
        tokens = chosen_by.argmax(-1)
        return (tokens, logits, chance_of(tokens, logits)) if self.scores else (tokens, logits)


def chance_of(tokens: Tensor, logits: Tensor) -> Tensor:
    """Return ``(B, n)`` the probabilities of tokens by their logits ``(B, n, V)``."""
    return (logits.gather(-1, tokens[..., None])[..., 0] - logits.logsumexp(-1)).exp()


class WholeDraft:
    """Drafts ``length`` tokens by ``body``, which takes ``rows`` rows and returns what :func:`chained` does."""

    def __init__(self, body: Callable[..., tuple[Tensor, ...]], length: int, rows: int, sampler: FixedSampler) -> None:
        self.body = body
        self.length = length
        self.rows = rows
        self.sampler = sampler

    def __call__(self, **inputs: Any) -> tuple[Tensor, ...]:
        rows = next(len(x) for x in inputs.values() if isinstance(x, Tensor))
        inputs = {name: filled_up(x, rows, self.rows) for name, x in inputs.items()}
        return tuple(x[:rows].clone() for x in self.body(**inputs))


def chained(step: Callable[..., tuple[Tensor, ...]], length: int, waits: Tensor | None) -> tuple[Tensor, ...]:
    """Return what a :class:`FixedSampler` gives in ``length`` steps, side by side.

    ``step(i, token, waits)`` reads the last token, and returns what the sampler gives about the next.
    """
    steps: list[tuple[Tensor, ...]] = []
    for i in range(length):
        own = None if waits is None else waits[:, i : i + 1].contiguous()
        steps.append(tuple(x.clone() for x in step(i, steps[-1][0] if i else None, own)))
    return tuple(torch.cat(parts, dim=1) for parts in zip(*steps, strict=True))


@dataclass(frozen=True)
class Widths:
    """Over how many tokens a model's forwards are, of chains and of trees, and how many tokens whole drafts have.

    A forward may write ``room`` slots after the text.
    """

    chains: tuple[int, ...] = ()
    trees: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()
    sampler: FixedSampler | None = None
    room: int = 0


class FixedRunner(ModelRunner):
    """Runs a model by ``fixed`` forwards; it says what is prepared of these, and how they are tried."""

    fixed: FixedForwards

    @abstractmethod
    def kind(self, of_tree: bool) -> Hashable:
        """Return what shapes a forward, besides its width."""

    @abstractmethod
    def body(self, model: nn.Module, of_tree: bool, decorated: bool) -> Callable[..., tuple[Tensor, ...]]:
        """Return what is prepared of a forward of ``model``; ``decorated`` keeps transformers' decorators."""

    @abstractmethod
    def drafting(self, length: int, sampler: FixedSampler, decorated: bool, prepare: Prepare) -> Callable[..., Any]:
        """Return the body of a whole draft, whose steps go through ``prepare``."""

    @abstractmethod
    def trial(self, of_tree: bool, width: int, eager: bool) -> Tensor:
        """Run a forward over anything; return its logits."""

    @abstractmethod
    def trial_draft(self, draft: WholeDraft, waits: Tensor | None) -> Tensor:
        """Make a draft after anything; return its logits."""

    @property
    def lengths(self) -> Sequence[int]:
        return [chain.length for chain in self.fixed.chains]

    def chain_for(self, count: int) -> WholeDraft | None:
        """Return the shortest of the prepared drafts that has ``count`` tokens; None where there is none."""
        return next((chain for chain in self.fixed.chains if chain.length >= count), None)

    def in_use(self) -> AbstractContextManager[None]:
        return self.fixed.in_use()


class FixedForwards:
    """A model's forwards over fixed numbers of tokens, on a static cache, which is rolled back by position.

    ``prepared`` has those that are compiled or recorded, by whether they are over trees and by width; ``chains`` make
    whole drafts, the shortest first.
    """

    keeps_cache = False  # whether the caller gets the cache in the end
    recorded = False
    chains: Sequence[WholeDraft] = ()

    def __init__(self, model: nn.Module, slot: StaticCacheSlot) -> None:
        self.model = model
        self.slot = slot
        self.device = device_of(model)  # read once: models search all of their weights for it
        self.prepared: dict[tuple[bool, int], Callable[..., Any]] = {}

    def around(self, body: Callable[..., tuple[Tensor, ...]]) -> FixedForward:
        """Return the forward that calls ``body`` in place of the decoder's."""
        return FixedForward(with_decoder_forward(self.model, DecoderForward(body, self.slot.rows)))

    def prepare(self, runner: FixedRunner, how: Compiling | Recording, widths: Widths) -> None:
        """Compile or record now, so that a failure shows here; a progress bar says so."""
        slot, keys, trials = self.slot, {}, {}
        if slot.weights != (weights := weights_of(self.model)):
            slot.forget_forwards()
            slot.weights = weights

        prepared, part = partial(how.prepared, slot), partial(how.part, self.model, slot)
        for of_tree, width in sorted({*((False, x) for x in widths.chains), *((True, x) for x in widths.trees)}):
            key = of_tree, width, runner.kind(of_tree)
            body = partial(part, key, partial(runner.body, of_tree=of_tree, decorated=how.decorated))
            self.prepared[of_tree, width] = self.around(prepared(key, body))
            keys[str(width)], trials[str(width)] = key, partial(runner.trial, of_tree, width)
        sampler, kind, chains = widths.sampler, runner.kind(False), []
        for length in sorted(widths.drafts):
            drafting, key = partial(runner.drafting, length, sampler), ("draft", length, kind, sampler.key)
            body = partial(drafting, how.decorated, lambda name, make: part(("step", name, kind), make))
            chains.append(WholeDraft(prepared(key, body), length, slot.rows, sampler))
            keys[f"drafts of {length}"] = key
            alone = WholeDraft(drafting(True, lambda name, make: make(self.model)), length, slot.rows, sampler)
            trials[f"drafts of {length}"] = partial(self._trial_draft, runner, alone, chains[-1])
        self.chains = chains
        self.recorded = how.records
        self._warm_up(runner, {name: (how.key, key) for name, key in keys.items()}, trials, how.title)

    def _trial_draft(self, runner: FixedRunner, alone: WholeDraft, prepared: WholeDraft, eager: bool) -> Tensor:
        """Return the logits of a draft, by what is prepared or by the model itself."""
        size, drawn = (self.slot.rows, alone.length, alone.sampler.drawn), alone.sampler.drawn
        waits = torch.ones(size, dtype=torch.float32, device=self.device) if drawn else None
        return runner.trial_draft(alone if eager else prepared, waits)

    def _warm_up(
        self, runner: FixedRunner, keys: dict[str, Hashable], trials: dict[str, Callable[[bool], Tensor]], title: str
    ) -> None:
        """Run and check what has not run on this cache yet; Inductor's graphs need two runs after one that compiles."""
        cold = [name for name, key in keys.items() if key not in self.slot.warm]
        shown = title.format(type(self.model).__name__, " and ".join(cold))
        for name in logging.tqdm(cold, desc=shown, unit="shape", disable=not cold):
            # Eager comes first: it makes the cache's tensors, which a compiled forward can't.
            runner.trial(False, 1, True)
            logits = [trials[name](eager) for eager in (True, False, False, False)]
            logits = [x.masked_fill(x < _FORBIDDEN, 0) for x in (logits[0], logits[-1])]
            wrong = _difference(logits[0], logits[-1])
            if not wrong <= _TOLERANCE * logits[0].abs().max():
                raise LossyUnsupportedError(f"its logits are off by {wrong:.3g}")
            self.slot.warm.add(keys[name])
        runner.seen = 0
        self.slot.clear()

    def forget(self, runner: FixedRunner) -> None:
        """Run one by one what :meth:`prepare` failed to prepare."""
        self.prepared, self.chains, self.recorded, runner.seen = {}, (), False, 0
        self.slot.forget_forwards()
        self.slot.clear()

    def width(self, of_tree: bool, start: int, count: int) -> int | None:
        """Return the width of the forward that is prepared for ``count`` tokens; None where there is none."""
        widths = (width for tree, width in sorted(self.prepared) if tree is of_tree)
        return next((x for x in widths if x >= count and self.slot.fits(start, x)), None)

    def begin(self, start: int, count: int, prepared: bool) -> None:
        """Let the next forward, which may be a prepared one, write ``count`` slots from ``start`` on."""
        (self.slot.place if prepared and self.recorded else self.slot.seek)(start)
        self.slot.filled = start + count

    def waits(
        self, chain: WholeDraft, text: Tensor, count: int, randomness: Randomness, at_once: bool = False
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Draw what chooses ``count`` tokens, as one after another would, or one ``at_once``.

        Return it with the random numbers' states after each, where drafts may end early.
        """
        sampler = chain.sampler
        if not sampler.drawn:
            return None, []
        times, each = (1, count) if at_once else (count, 1)
        drawn, states = [], []
        for _ in range(times):
            drawn.append(randomness.waits((len(text), each, sampler.drawn), text.device))
            if sampler.scores and not at_once:
                states.append(randomness.state(text.device))
        return pad(torch.cat(drawn, dim=1), (0, 0, 0, chain.length - count), value=1.0).to(self.device), states

    @contextmanager
    def in_use(self) -> Iterator[None]:
        try:
            yield
        finally:
            if not self.keeps_cache:
                give_back(self.model, self.slot)


def _difference(eager: Tensor, prepared: Tensor) -> Tensor:
    """Return the largest difference of logits ``(B, n, V)``, up to the first token that is not the same."""
    same = (eager.argmax(-1) == prepared.argmax(-1)).cumprod(-1)
    comparable = pad(same[:, :-1], (1, 0), value=1).bool()
    return (eager - prepared).abs().amax(-1)[comparable].max()
