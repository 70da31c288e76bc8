"""Reading what enters an LM head."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
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

    @contextmanager
    def over(self, drafted: int) -> Iterator[LMHeadHook]:
        """Watch the head's calls of this thread inside the block, for a forward over ``drafted`` tokens."""
        thread = threading.get_ident()
        self.hidden = None

        def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if threading.get_ident() != thread:
                return None
            self.hidden = args[0][:, -(drafted + 1) :]
            if self.dropped is None:
                return None
            return (torch.cat([self.hidden, self._drop(self.hidden[:, :-1])], dim=1), *args[1:])

        handle = self.head.register_forward_pre_hook(hook)
        try:
            yield self
        finally:
            handle.remove()

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
