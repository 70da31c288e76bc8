"""Reading what enters an LM head."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..acceptors import DroppedHeads
from ..errors import LossyUnsupportedError
from ..sampling import Randomness


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
    """

    def __init__(self, head: nn.Module, dropped: DroppedHeads | None, randomness: Randomness) -> None:
        self.head = head
        self.dropped = dropped
        self.randomness = randomness
        self.hidden: Tensor | None = None
        self._drafted = self._thread = 0

    def over(self, drafted: int) -> LMHeadHook:
        """Return a context manager: in its block, read the head's one call of this thread over ``drafted`` tokens."""
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
        return (torch.cat([self.hidden, self._drop(self.hidden[:, :-1])], dim=1), *args[1:])

    def _leave_head(self) -> None:
        """Take this hook off the head, and those of interrupted calls; handles of hooks get lost in interruptions."""
        hooks = self.head._forward_pre_hooks
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
        mask = self.randomness.keep_mask((batch, paths, drafted, width), self.dropped.dropout, hidden)
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
