"""Reading what enters an LM head."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..acceptors import DroppedHeads
from ..acceptors.base import AUTO
from ..compat import pre_hooks_of
from ..errors import LossyUnsupportedError
from ..sampling import Randomness

DROPOUTS = (0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
"""What :func:`choose_dropout` chooses from."""

AGREEMENT = 0.95
POSITIONS, _FEWEST = 64, 16


@torch.no_grad()
def choose_dropout(head: nn.Module, states: Tensor, paths: int) -> Tensor:
    """Return which of :data:`DROPOUTS` is the largest at which a dropped head says what the clean one says.

    The noise of dropping depends on the width and on the head: what leaves one model's choices alone turns another's
    into nonsense. So ρ is chosen by what it does, at the half of the positions where the clean head is surest: there
    ``paths`` dropped heads have to choose its token in 95 % of all cases. Where the target is unsure, they are to
    differ. Nothing else is drawn from than a generator of its own, so that equal prompts have equal ρ.

    Parameters
    ----------
    head
        The LM head.
    states
        ``(P, d)`` what enters it at positions of the prompt. Fewer than 16 say too little: the least ρ is theirs.
    paths
        K.

    Returns
    -------
    Tensor
        Its index, without dimensions, on the device of the states; 0 where even the least disturbs too much.
    """
    low = torch.zeros((), dtype=torch.long, device=states.device)
    if len(states) < _FEWEST:
        return low + 1
    rates = states.new_tensor(DROPOUTS, dtype=torch.float32)
    clean = head(states[None])[0].float()
    surest = clean.softmax(-1).amax(-1).topk(len(states) // 2).indices
    best, kept = clean.argmax(-1)[surest], states[surest]
    # The same numbers for every ρ and every text: what a smaller one drops, a larger one drops too.
    generator = torch.Generator(kept.device).manual_seed(0)
    most = max(POSITIONS // 2, len(kept))
    uniform = torch.rand((most, paths, kept.shape[-1]), device=kept.device, generator=generator)[: len(kept)]
    step = len(DROPOUTS) // 2  # of a power of two, so that the host need not know what is found on the way
    while step:
        rate = rates.take(low + step)
        mask = (uniform >= rate).to(kept.dtype) / (1 - rate).to(kept.dtype)
        chosen = head((kept[:, None] * mask).flatten(0, 1)[None])[0].argmax(-1).unflatten(0, (-1, paths))
        low = low + step * ((chosen == best[:, None]).float().mean() >= AGREEMENT)
        step //= 2
    return low


class LMHeadHook:
    """Reads what enters an LM head, and sends dropped copies of it through the same call.

    The head's weights are read once for clean and dropped rows, and whatever the model does to logits after
    its head (soft-capping, scaling) happens to every path by itself.

    Parameters
    ----------
    head
        The model's output embeddings.
    dropped
        How many dropped copies of every drafted position to append, if any.
    randomness
        The source of the dropout masks.

    Attributes
    ----------
    dropout
        ρ, of several rows ``(B, 1, 1, 1)`` where each has its own; None as long as it has to be chosen, by the first
        forward's states.
    """

    def __init__(self, head: nn.Module, dropped: DroppedHeads | None, randomness: Randomness) -> None:
        self.head = head
        self.dropped = dropped
        self.randomness = randomness
        self.hidden: Tensor | None = None
        self.dropout: float | Tensor | None = None if dropped is None or dropped.dropout == AUTO else dropped.dropout
        self._drafted = self._thread = 0
        self._own = [1]

    def room(self, mask: Tensor | None, rows: int, known: int) -> int:
        """Return at how many of the ``known`` positions before a draft states are wanted: more than one only once."""
        if self.dropped is None or self.dropout is not None:
            return 1
        padded = mask is not None and mask.dim() == 2
        own = mask.sum(-1).tolist() if padded else [known] * rows
        self._own = [max(1, min(POSITIONS, length, known)) for length in own]
        return max(self._own)

    def move(self, rows: Tensor) -> None:
        """Follow ``rows`` of the batch that go on."""
        if isinstance(self.dropout, Tensor):
            self.dropout = self.dropout.index_select(0, rows.to(self.dropout.device))

    def over(self, drafted: int) -> LMHeadHook:
        """Return a context manager: in its block, read the head's one call of this thread over ``drafted`` tokens.

        It is called at the positions before these, too, that :meth:`room` has asked for.
        """
        self._drafted = drafted
        return self

    # No generator: one that an interruption finds suspended stays so for as long as somebody keeps the traceback.
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
            self._leave_head()  # an interruption can cut short one of them, not both

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        # Once it has read, it never acts again, even where an interruption has left it on the head.
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
            rates = torch.tensor(DROPOUTS, device=known.device)
            self.dropout = rates[torch.stack(chosen)][:, None, None, None] if len(chosen) > 1 else DROPOUTS[chosen[0]]
        return (torch.cat([self.hidden, self._drop(self.hidden[:, :-1])], dim=1), *args[1:])

    def _leave_head(self) -> None:
        """Take this hook off the head, and those of interrupted calls; handles of hooks get lost in interruptions."""
        hooks = pre_hooks_of(self.head)
        for key, hook in list(hooks.items()):
            if hook is self or (isinstance(hook, LMHeadHook) and hook.hidden is not None):
                hooks.pop(key, None)

    def split(self, logits: Tensor, drafted: int) -> tuple[Tensor, Tensor | None]:
        """Split the forward's logits into clean ``(B, n+1, V)`` and dropped ``(B, K, n, V)`` ones."""
        if self.hidden is None:
            raise LossyUnsupportedError(
                "the model does not call its output embeddings as a module, so rules that read the LM head's input "
                "can't be used with it; use a rule that reads logits only, e.g. 'topk'"
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
    """Return a hook on a model's LM head.

    Raises
    ------
    LossyUnsupportedError
        When the model names no LM head.
    """
    head = model.get_output_embeddings()
    if head is None:
        raise LossyUnsupportedError(
            f"the rule reads the input of the LM head, but {type(model).__name__} names none; use a rule that reads "
            "logits only, e.g. 'topk'"
        )
    return LMHeadHook(head, dropped, randomness)
