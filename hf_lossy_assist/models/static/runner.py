"""Runs a model over fixed numbers of tokens."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import CompileConfig, PreTrainedModel
from transformers.utils import logging

from ...compat import TreeInputs, cache_name, new_cache
from ...core.texts import GrowingTensor, RowShift, counting, ones
from ...errors import LossyUnsupportedError
from ..runner import ModelRunner
from .cache_slot import StaticCacheSlot, give_back
from .chain import GreedyDraft, chained
from .forwards import FixedForward, choosing, compiled_choice, compiled_forward, eager_forward, shallow, states_of
from .graphs import Graph, Recorder, weights_of

_TOLERANCE = 0.05  # of the largest logit: half precision, and sums in another order
_MOST_GRAPHS = 16  # on one cache


class StaticCacheRunner(ModelRunner):
    """Runs a text, or the rows of a batch, on a static cache that is rolled back by position.

    A batch keeps its first cache: rows that go on move to the front, and forwards keep their number of rows.
    ``carried`` holds the prompt's mask and positions, where ``generate()`` has prepared them. Positions beyond
    ``last_position``, which only padding of shorter rows has, are clamped to it. Outputs return the states ``reads``
    between layers as ``hidden_states``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        slot: StaticCacheSlot,
        carried: Mapping[str, Any],
        seen: int = 0,
        last_position: int | None = None,
        reads: tuple[int, ...] = (),
    ) -> None:
        self.model = model
        self.slot = slot
        self.seen = seen
        self.sent = 0
        self.last_position = last_position
        self.reads, self.returns_states = reads, bool(reads)
        self._cache_name = cache_name(model)
        self.carried = {**carried, self._cache_name: slot.cache}
        self.fixed: dict[tuple[bool, int], FixedForward] = {}  # for trees or chains, by width
        self.recorded = False
        self.chain: GreedyDraft | None = None
        self.keeps_cache = self.copies_cache = False  # whether the caller gets the cache in the end, or a dynamic copy
        self.device = device = model.device  # read once: models search all of their weights for it
        self._eager = eager_forward(model, slot.rows, reads)
        mask, positions = carried.get("attention_mask"), carried.get("position_ids")
        if mask is None and slot.rows > 1:  # rows will be padded
            mask = torch.ones(slot.rows, 1, dtype=torch.long)
        if positions is None:
            positions = torch.arange(1)[None] if mask is None else (mask.cumsum(-1) - 1).clamp(min=0)
        self._cover(None if mask is None else mask.to(device), positions.to(device))
        self._last: dict[tuple[int, int], Tensor] = {}
        self._tree_inputs: TreeInputs | None = None

    def _cover(self, mask: Tensor | None, positions: Tensor) -> None:
        """Write mask and positions ahead for the whole cache: no padding follows the prompt."""
        self._padding = None
        if mask is not None:
            ahead = GrowingTensor(mask, ones).between(0, self.slot.capacity)
            self._padding = ahead.clone(memory_format=torch.contiguous_format)
        self._positions = GrowingTensor(positions, counting).between(0, self.slot.capacity)
        if self.last_position is not None:
            self._positions = self._positions.clamp(max=self.last_position)

    def compile(
        self, config: CompileConfig | None, widths: Iterable[int], trees: Iterable[int] = (), drafts: int = 0
    ) -> None:
        """Compile now, so that a failure shows here; a progress bar says so.

        Forwards over ``widths`` tokens are compiled, and over ``trees`` tokens of trees; for ``drafts`` greedy tokens,
        also LM head and choice.
        """
        model, capacity, rows, users = self.model, self.slot.capacity, self.slot.rows, {}
        for shape in _shapes(widths, trees):
            key = *shape, capacity, self._mask_kind(shape[0])
            users[shape] = self.fixed[shape] = compiled_forward(model, config, key, rows, self.reads)
        if drafts:
            key = capacity, self._mask_kind(False), rows
            steps = users["drafts"] = tuple(compiled_choice(model, config, (n, *key)) for n in (1, 2))
            self.chain = GreedyDraft(chained(lambda n: steps[n - 1], drafts), drafts, rows)
        self._warm_up(users, "Compiling {} for {} tokens, once; a large model takes minutes")

    def record(self, recorder: Recorder, widths: Iterable[int], trees: Iterable[int] = (), drafts: int = 0) -> None:
        """Record graphs of what :meth:`compile` compiles; ``drafts`` greedy tokens are one graph."""
        model, slot, users = self.model, self.slot, {}
        if slot.weights != (weights := weights_of(model)):
            slot.forget_forwards()
            slot.weights = weights
        for shape in _shapes(widths, trees):
            body = partial(states_of, model, self.reads, decorated=True)
            users[shape] = graph = self._graph((*shape, self._mask_kind(shape[0]), self.reads), body, recorder)
            self.fixed[shape] = FixedForward(model, graph, slot.rows)
        if drafts:
            key, body = ("drafts", drafts, self._mask_kind(False)), partial(_greedy_drafts, model, drafts)
            users["drafts"] = self._graph(key, body, recorder)
            self.chain = GreedyDraft(users["drafts"], drafts, slot.rows)
        self.recorded = True
        self._warm_up(users, "Recording graphs of {} for {} tokens")

    def forget(self) -> None:
        """Run one by one what :meth:`compile` or :meth:`record` failed to prepare."""
        self.fixed, self.chain, self.recorded = {}, None, False
        self.slot.forget_forwards()
        self.seen = 0
        self.slot.clear()

    def _graph(self, key: Hashable, make: Callable[[], Callable[..., Any]], recorder: Recorder) -> Graph:
        graphs = self.slot.graphs
        if key not in graphs:
            if len(graphs) >= _MOST_GRAPHS:
                self.slot.forget_forwards()
            graphs[key] = Graph(self.slot.recorded(make()), recorder)
        return graphs[key]

    def _mask_kind(self, tree: bool) -> str:
        return "tree" if tree else "none" if self._padding is None else "padding"

    def _warm_up(self, users: Mapping[Hashable, Hashable], what: str) -> None:
        """Run and check what has not run on this cache yet; CUDA graphs need two runs after the one that compiles."""
        keys = {kind: (user, self._mask_kind(False)) for kind, user in users.items()}
        cold = [kind for kind, key in keys.items() if key not in self.slot.warm]
        sizes = [f"drafts of {self.chain.length}" if kind == "drafts" else str(kind[1]) for kind in cold]
        shown = what.format(type(self.model).__name__, " and ".join(sizes))
        for kind in logging.tqdm(cold, desc=shown, unit="shape", disable=not cold):
            trial = self._drafts_on_trial if kind == "drafts" else partial(self._forward_on_trial, *kind)
            # Eager comes first: it makes the cache's tensors, which a compiled forward can't.
            self._forward_on_trial(False, 1, True)
            logits = [trial(eager) for eager in (True, False, False, False)]
            wrong = _difference(logits[0], logits[-1])
            if not wrong <= _TOLERANCE * logits[0].abs().max():
                raise LossyUnsupportedError(f"its logits are off by {wrong:.3g}")
            self.slot.warm.add(keys[kind])
        self.seen = 0
        self.slot.clear()

    def _forward_on_trial(self, of_tree: bool, width: int, eager: bool) -> Tensor:
        rows, self.seen, tree = self.slot.rows, int(of_tree), None
        if of_tree:
            nodes = torch.ones(rows, width, width, dtype=torch.bool, device=self.device).tril()
            tree = self._tree(1, nodes, torch.arange(1, width + 1, device=self.device).expand(rows, -1))
        tokens = torch.zeros(rows, width, dtype=torch.long, device=self.device)
        return self._forward(tokens, 1, tree, eager).logits

    def _drafts_on_trial(self, eager: bool) -> Tensor:
        chain, rows = self.chain, self.slot.rows
        if eager:
            chain = GreedyDraft(chained(lambda n: choosing(self.model), chain.length), chain.length, rows)
        tokens = torch.zeros(rows, 2, dtype=torch.long, device=self.device)
        return self._drafted(chain, tokens, self._positions[:, : chain.length + 1], 0)[1]

    def run(self, text: Tensor, keep: int, overrides: Mapping[str, Any] = MappingProxyType({})) -> Any:
        return self._forward(text[:, self.seen :].to(self.device), keep)

    def read(self, tokens: Tensor) -> Any:
        return self._forward(tokens, 1)

    def run_tree(self, text: Tensor, keep: int, ancestors: Tensor, depths: Tensor) -> Any:
        width = text.shape[1] - depths.shape[1]
        return self._forward(text[:, self.seen :].to(self.device), keep, self._tree(width, ancestors, depths))

    def read_nodes(self, tokens: Tensor, width: int, ancestors: Tensor, depths: Tensor) -> Any:
        return self._forward(tokens, tokens.shape[1], self._tree(width, ancestors, depths))

    def _tree(self, width: int, ancestors: Tensor, depths: Tensor) -> dict[str, Any]:
        """Return mask and positions of one forward over the unread text and nodes after it."""
        if self._tree_inputs is None:
            self._tree_inputs = TreeInputs(self.model)
        carried = {"attention_mask": self._padding, "position_ids": self._positions, self._cache_name: self.slot.cache}
        ancestors, depths = ancestors.to(self.device), depths.to(self.device)
        inputs = self._tree_inputs.of_tree(carried, width, self.seen, ancestors, depths)
        if self.last_position is not None:
            inputs["position_ids"] = inputs["position_ids"].clamp(max=self.last_position)
        return inputs

    def _forward(self, tokens: Tensor, keep: int, tree: dict[str, Any] | None = None, eager: bool = False) -> Any:
        start, count, slot = self.seen, tokens.shape[1], self.slot
        widths = () if eager else (width for of_tree, width in sorted(self.fixed) if of_tree is (tree is not None))
        width = next((x for x in widths if x >= count and slot.fits(start, x)), None)
        self.seen, self.sent = start + count, tokens.numel()
        inputs = self._inputs(tokens, start, count, keep, count if width is None else width, tree)
        self._go_to(start, self.recorded and width is not None)
        slot.filled = start + (count if width is None else width)
        forward = self._eager if width is None else self.fixed[tree is not None, width]
        return forward(**inputs, return_dict=True)

    def draft(self, text: Tensor, count: int) -> tuple[Tensor, Tensor] | None:
        width = text.shape[1]
        if self.chain is None or width < 2 or not self.slot.fits(width, self.chain.length - 1):
            return None
        new = width - self.seen
        if self.seen < width - 2:
            self._forward(text[:, self.seen : width - 2].to(self.device), 1)
        begin, end = width - 2, width - 1 + self.chain.length
        # Drafts after the last wanted token are thrown away, but have to have positions.
        positions = self._positions[:, begin:end].clamp(max=self._positions[:, width + count - 2 : width + count - 1])
        drafted = self._drafted(self.chain, text[:, begin:].to(self.device), positions, begin)
        self.sent, self.seen = len(text) * (new + count - 1), width + count - 1
        return tuple(x[:, :count] for x in drafted)

    def _drafted(self, chain: GreedyDraft, tokens: Tensor, positions: Tensor, begin: int) -> tuple[Tensor, Tensor]:
        self._go_to(begin, self.recorded and chain is self.chain)
        self.slot.filled = begin + chain.length + 1
        return chain(
            input_ids=tokens.clone(memory_format=torch.contiguous_format),
            position_ids=positions.clone(memory_format=torch.contiguous_format),
            attention_mask=self._padding,
            use_cache=True,
            **{self._cache_name: self.slot.cache},
        )

    def _go_to(self, position: int, recorded: bool) -> None:
        if recorded:
            self.slot.place(position)
        else:
            self.slot.seek(position)

    def rewind(self, length: int) -> None:
        self.seen = min(self.seen, length)
        self.slot.seek(self.seen)

    def keep_path(self, start: int, columns: Tensor) -> None:
        self.slot.keep_path(start, columns)
        self.seen = start + columns.shape[1]

    def move(self, shift: RowShift, ids: Tensor) -> None:
        slots, width = shift.known(self.seen), ids.shape[1]
        self.slot.move(shift, slots)
        self._cover(shift.moved(self._padding[:, :width], 0), shift.moved(self._positions[:, :width], 0))
        self.seen = slots

    def settle(self, text: Tensor) -> None:
        if self.copies_cache:
            self.carried[self._cache_name] = self.slot.copied_to(new_cache(self.model))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        try:
            yield
        finally:
            if not self.keeps_cache:
                give_back(self.model, self.slot)

    def _inputs(
        self, tokens: Tensor, start: int, count: int, keep: int, width: int, tree: dict[str, Any] | None
    ) -> dict[str, Any]:
        extra = width - count
        if tree is None:
            mask, positions = self._padding, self._positions[:, start : start + width]
            if extra:  # learned positions may end with the last one
                positions = positions.clamp(max=self._positions[:, start + count - 1 : start + count])
        else:
            mask, positions = tree["attention_mask"], tree["position_ids"]
            if extra:
                masks = mask if isinstance(mask, dict) else {"": mask}
                masks = {kind: pad(x, (0, 0, 0, extra)) for kind, x in masks.items()}
                mask = masks if isinstance(mask, dict) else masks[""]
                positions = torch.cat([positions, positions[:, -1:].expand(-1, extra)], dim=1)
        return {
            "input_ids": pad(tokens, (0, extra)).clone(memory_format=torch.contiguous_format),
            "position_ids": positions.clone(memory_format=torch.contiguous_format),
            "attention_mask": mask,
            self._cache_name: self.slot.cache,
            "use_cache": True,
            "logits_to_keep": self._last_of(count, keep) if extra else keep,
        }

    def _last_of(self, count: int, keep: int) -> Tensor:
        if (count, keep) not in self._last:
            self._last[count, keep] = torch.arange(count - keep, count, device=self.device)
        return self._last[count, keep]


def _shapes(widths: Iterable[int], trees: Iterable[int]) -> list[tuple[bool, int]]:
    """Return of each forward whether it is over trees, and its width."""
    return sorted({*((False, width) for width in widths), *((True, width) for width in trees)})


def _greedy_drafts(model: PreTrainedModel, drafts: int) -> Callable[..., Any]:
    # Of the model itself a graph would be a reference, which keeps the model for ever.
    step = choosing(shallow(model))
    return chained(lambda n: step, drafts)


def _difference(eager: Tensor, prepared: Tensor) -> Tensor:
    """Return the largest difference of logits ``(B, n, V)``, up to the first token that is not the same."""
    same = (eager.argmax(-1) == prepared.argmax(-1)).cumprod(-1)
    comparable = pad(same[:, :-1], (1, 0), value=1).bool()
    return (eager - prepared).abs().amax(-1)[comparable].max()
