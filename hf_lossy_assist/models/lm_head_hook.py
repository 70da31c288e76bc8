"""Reads the input of an LM head, and runs the head on dropped copies of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..acceptors import DroppedHeads
from ..acceptors.base import AUTO
from ..core.distributions import Randomness
from ..errors import LossyUnsupportedError
from .quantised import PrepackedLinear

DROPOUTS = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)

AGREEMENT = 0.95
POSITIONS, _FEWEST = 64, 16
_NEAREST, _SMALL = 256, 1024


@torch.no_grad()
def choose_dropout(head: nn.Module, states: Tensor, paths: int) -> Tensor:
    """Return the index of the largest rate in :data:`DROPOUTS` at which dropped heads still agree with the clean one.

    Widths and heads differ in how much noise they bear, so ρ is chosen by its effect. The test uses the half of the
    positions where the clean head is surest: ``paths`` dropped heads have to choose its token in 95 % of all cases.
    It draws from its own seeded generator, so equal prompts get equal ρ. Fewer than 16 positions get the least ρ.
    In a vocabulary beyond 1,024 tokens, only the clean head's 256 likeliest at each position can be chosen: others
    hardly ever win, and most of the head need not be read.

    ``states`` ``(P, d)`` are the head's inputs at positions of the prompt. The result is a scalar on their device; it
    is 0 where even the least ρ disturbs too much.
    """
    low = torch.zeros((), dtype=torch.long, device=states.device)
    if len(states) < _FEWEST:
        return low + 1
    rates = states.new_tensor(DROPOUTS, dtype=torch.float32)
    clean = head(states[None])[0].float()
    surest = clean.softmax(-1).amax(-1).topk(len(states) // 2).indices
    kept = states[surest]
    agrees = _agreement(head, clean[surest])
    # Every ρ and every text uses the same numbers, so a larger ρ drops all that a smaller one drops.
    generator = torch.Generator(kept.device).manual_seed(0)
    most = max(POSITIONS // 2, len(kept))
    uniform = torch.rand((most, paths, kept.shape[-1]), dtype=torch.float32, device=kept.device, generator=generator)
    uniform = uniform[: len(kept)]
    step = len(DROPOUTS) // 2  # a binary search without synchronisation; the length is a power of two
    while step:
        rate = rates.take(low + step)
        mask = (uniform >= rate).to(kept.dtype) / (1 - rate).to(kept.dtype)
        low = low + step * (agrees(kept[:, None] * mask).float().mean() >= AGREEMENT)
        step //= 2
    return low


def _agreement(head: nn.Module, clean: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function that tells whether a head chooses the best token of ``clean`` ``(S, V)``.

    It maps inputs ``(S, K, d)`` to ``(S, K)``.
    """
    best = clean.argmax(-1, keepdim=True)
    weight = head.weight if type(head) in (nn.Linear, PrepackedLinear) else None
    if weight is None or weight.device != clean.device or clean.shape[-1] <= _SMALL:
        return lambda inputs: head(inputs.flatten(0, 1)[None])[0].argmax(-1).view(inputs.shape[:2]) == best
    nearest = clean.topk(_NEAREST).indices
    rows, bias = weight[nearest], 0.0 if head.bias is None else head.bias[nearest][:, None]
    return lambda inputs: nearest.gather(-1, (inputs @ rows.mT + bias).argmax(-1)) == best


class NoHook(nullcontext):
    """Stands in for :class:`LMHeadHook` where no rule reads the LM head's input."""

    hidden: Tensor | None = None

    def wanted(self, mask: Tensor | None, rows: int, known: int) -> int:
        return 1

    def move(self, rows: Tensor) -> None:
        return

    def over(self, drafted: int) -> NoHook:
        return self

    def split(self, logits: Tensor, drafted: int) -> tuple[Tensor, Tensor | None]:
        return logits[:, -(drafted + 1) :], None


class LMHeadHook:
    """Reads the input of an LM head, and sends dropped copies of it through the same call.

    Clean and dropped rows share one read of the head's weights. All that the model does after its head, such as
    soft-capping, applies to every path. ``dropout`` is ρ, or one per row ``(B, 1, 1, 1)``; None until the first
    forward's states have chosen it.
    """

    def __init__(self, head: nn.Module, dropped: DroppedHeads | None, randomness: Randomness) -> None:
        self.head = head
        self.dropped = dropped
        self.randomness = randomness
        self.hidden: Tensor | None = None
        self.dropout: float | Tensor | None = None if dropped is None or dropped.dropout == AUTO else dropped.dropout
        self._drafted = self._thread = 0
        self._own = [1]

    def wanted(self, mask: Tensor | None, rows: int, known: int) -> int:
        """Return at how many of the ``known`` positions before a draft states are needed: several until ρ is chosen."""
        if self.dropped is None or self.dropout is not None:
            return 1
        padded = mask is not None and mask.dim() == 2
        own = mask.sum(-1).tolist() if padded else [known] * rows
        self._own = [max(1, min(POSITIONS, length, known)) for length in own]
        return max(self._own)

    def move(self, rows: Tensor) -> None:
        if isinstance(self.dropout, Tensor):
            self.dropout = self.dropout.index_select(0, rows.to(self.dropout.device))

    def over(self, drafted: int) -> LMHeadHook:
        """Return a context manager that reads this thread's one call of the head in its block.

        The call covers ``drafted`` tokens and the positions before them that :meth:`wanted` asks for.
        """
        self._drafted = drafted
        return self

    # Not a generator: an interrupted one stays suspended for as long as somebody keeps the traceback.
    def __enter__(self) -> LMHeadHook:
        try:
            self._leave_head()
            self.hidden, self._thread = None, threading.get_ident()
            self.head.register_forward_pre_hook(self)
            return self
        except BaseException:
            self._leave_head()
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            self._leave_head()
        finally:
            self._leave_head()  # again, in case an interruption cut the first one short

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        # A hook reads once, even where an interruption has left it on the head.
        if self.hidden is not None or threading.get_ident() != self._thread:
            return None
        self.hidden = args[0][:, -(self._drafted + 1) :]
        if self.dropped is None:
            return None
        if self.dropout is None:
            known = args[0][:, : args[0].shape[1] - self._drafted]
            chosen = [
                choose_dropout(module, states[-own:], self.dropped.num_paths)
                for states, own in zip(known, self._own, strict=True)
            ]
            rates = torch.tensor(DROPOUTS, dtype=torch.float32, device=known.device)
            self.dropout = rates[torch.stack(chosen)][:, None, None, None] if len(chosen) > 1 else DROPOUTS[chosen[0]]
        return (torch.cat([self.hidden, self._drop(self.hidden[:, :-1])], dim=1), *args[1:])

    def _leave_head(self) -> None:
        """Remove this hook and those of interrupted calls: an interruption can lose a hook's handle."""
        hooks = self.head._forward_pre_hooks
        for key, hook in list(hooks.items()):
            if hook is self or (isinstance(hook, LMHeadHook) and hook.hidden is not None):
                hooks.pop(key, None)

    def split(self, logits: Tensor, drafted: int) -> tuple[Tensor, Tensor | None]:
        """Split a forward's logits into clean ``(B, n+1, V)`` and dropped ``(B, K, n, V)`` ones."""
        if self.hidden is None:
            raise LossyUnsupportedError(
                "the rule reads the input of the LM head, but the model does not call its output embeddings as a "
                "module; use a rule that reads logits only, e.g. 'topk'"
            )
        if self.dropped is None:
            return logits[:, -(drafted + 1) :], None
        clean, dropped = logits.split([drafted + 1, self.dropped.num_paths * drafted], dim=1)
        return clean, dropped.unflatten(1, (self.dropped.num_paths, drafted))

    def _drop(self, hidden: Tensor) -> Tensor:
        batch, drafted, width = hidden.shape
        paths = self.dropped.num_paths
        mask = self.randomness.keep_mask((batch, paths, drafted, width), self.dropout, hidden)
        return (hidden[:, None] * mask).flatten(1, 2)


def lm_head_hook(model: PreTrainedModel, randomness: Randomness, dropped: DroppedHeads | None = None) -> LMHeadHook:
    head = model.get_output_embeddings()
    if head is None:
        raise LossyUnsupportedError(
            f"the rule reads the input of the LM head, but {type(model).__name__} names none; use a rule that reads "
            "logits only, e.g. 'topk'"
        )
    return LMHeadHook(head, dropped, randomness)
