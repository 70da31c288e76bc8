"""A model's forwards over a text in the making: its cache, its inputs, and how much of the text it has seen."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LossyUnsupportedError

if TYPE_CHECKING:
    from ..decoding.batch_layout import RowShift


_CHAINS_ALONE = "{} can't keep one path of a tree; draft chains, or use a cache that grows"


class Forwards(ABC):
    """Runs a model over the end of a text, of which its cache holds the beginning.

    Attributes
    ----------
    model
        The model.
    seen
        How many tokens of the text the cache holds.
    sent
        How many tokens the last forward was over, of all rows.
    """

    model: PreTrainedModel
    seen: int
    sent: int

    def catch_up(self, text: Tensor, keep: int) -> None:
        """Read what :meth:`run` of the same arguments is not to be over, if anything, in a forward before it."""
        return

    @abstractmethod
    def run(self, text: Tensor, keep: int, overrides: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """Run the model over all of ``text`` ``(B, L)`` that it has not seen.

        Parameters
        ----------
        text
            The text, with tokens that are only proposed at its end.
        keep
            At how many positions, counted from the end, logits are wanted.
        overrides
            Inputs of the forward that take the place of the usual ones.

        Returns
        -------
        ModelOutput
            The forward's own output.
        """

    def run_tree(self, text: Tensor, keep: int, ancestors: Tensor, depths: Tensor) -> Any:
        """Run the model over all of ``text`` ``(B, L)`` that it has not seen, where nodes of trees are at its end.

        Parameters
        ----------
        text, keep
            As for :meth:`run`.
        ancestors
            ``(B, m, M)`` which of the last M tokens each of the last m sees, which are sent.
        depths
            ``(B, M)`` how many tokens from the text on each one's path has.

        Raises
        ------
        LossyUnsupportedError
            Where the forwards can't branch.
        """
        raise LossyUnsupportedError(_CHAINS_ALONE.format(type(self).__name__))

    @abstractmethod
    def read(self, tokens: Tensor) -> Any:
        """Run a draft model over ``tokens`` ``(B, k)``, which follow those it has seen; logits of the last are wanted.

        Returns
        -------
        ModelOutput
            The forward's own output.
        """

    def read_nodes(self, tokens: Tensor, width: int, ancestors: Tensor, depths: Tensor) -> Any:
        """Run a draft model over ``tokens`` ``(B, m)``, nodes that follow a text of ``width`` tokens and other nodes.

        Logits of all are wanted; the rest is as for :meth:`run_tree`.
        """
        raise LossyUnsupportedError(_CHAINS_ALONE.format(type(self).__name__))

    def forgettable(self, length: int) -> int:
        """Return how many tokens after ``length`` the next forward may be over so that they can be forgotten."""
        return sys.maxsize

    @abstractmethod
    def rewind(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens, where there is anything."""

    def keep_path(self, start: int, columns: Tensor) -> None:
        """Of what was sent after the first ``start`` tokens, keep ``columns`` ``(B, k)`` alone, in their order.

        Raises
        ------
        LossyUnsupportedError
            Where the cache can't let go of tokens in its middle.
        """
        raise LossyUnsupportedError(_CHAINS_ALONE.format(type(self).__name__))

    @abstractmethod
    def move(self, shift: RowShift, ids: Tensor) -> None:
        """Follow the rows of ``ids`` ``(B, S)`` into the next rectangle; what was rejected is forgotten."""

    def extend(self, length: int) -> None:
        """Take note that ``length`` tokens of the text are committed."""
        return

    def settle(self, text: Tensor) -> None:
        """Let a cache that somebody uses on hold all of ``text`` ``(1, L)`` but its newest token, at a run's end."""
        return

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside the block, let the cache be rewound; after it, the cache belongs to the caller again."""
        yield
