"""Labelled hidden states, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import LossyValueError


@dataclass(frozen=True, eq=False)
class Examples:
    """Hidden states of N tokens, each with a label and its prompt.

    ``states`` are ``(N, d)`` arrays by name. The head predicts the probability of a True label; ``classes`` names False
    and True in words. A split keeps the tokens of one prompt together.
    """

    states: Mapping[str, NDArray[np.float32]]
    labels: NDArray[np.bool_]
    prompts: NDArray[np.int64]
    classes: tuple[str, str] = ("unimportant", "important")

    def __len__(self) -> int:
        return len(self.labels)

    def features(self, columns: Sequence[str]) -> NDArray[np.float32]:
        """Return the chosen states ``(N, d)`` side by side."""
        if len(columns) == 1:
            return self.states[columns[0]]
        return np.concatenate([self.states[name] for name in columns], axis=1)

    def only(self, columns: Sequence[str]) -> Examples:
        return replace(self, states={name: self.states[name] for name in columns})

    def where(self, mask: NDArray[np.bool_]) -> Examples:
        """Select the examples where ``mask`` ``(N,)`` is True."""
        states = {name: state[mask] for name, state in self.states.items()}
        return Examples(states, self.labels[mask], self.prompts[mask], self.classes)

    def counts(self) -> dict[str, float]:
        return {
            "prompts": len(np.unique(self.prompts)),
            "tokens": len(self),
            f"{self.classes[1]}_share": float(self.labels.mean()),
        }


def check(examples: Examples) -> None:
    """Refuse examples on which no head can be trained."""
    if len(examples) == 0:
        raise LossyValueError("`data` has to hold labelled tokens, but has none; mine more prompts")
    if examples.labels.all() or not examples.labels.any():
        only = examples.classes[int(examples.labels[0])]
        raise LossyValueError(
            f"`data` has to hold {' and '.join(examples.classes)} tokens, but all of its {len(examples)} tokens are "
            f"{only}; mine more prompts, or prompts on which the models disagree more"
        )
    if len(np.unique(examples.prompts)) < 2:
        raise LossyValueError(
            "`data` has to hold tokens of at least two prompts, to train on some and validate on others, but all "
            f"{len(examples)} are of one"
        )
    for name, state in examples.states.items():
        if broken := int((~np.isfinite(state)).any(axis=1).sum()):
            raise LossyValueError(
                f"`data` has to be finite, but the column {name!r} has NaN or infinite values in {broken} of "
                f"{len(examples)} tokens; mine again, in float32 if half precision overflowed"
            )


@dataclass(frozen=True, eq=False)
class Ratios:
    """Drafted tokens with their probabilities under target (p) and draft (q), which decide their labels.

    ``states`` are the draft's, by position; ``kinds`` names who wrote the text before each token.
    """

    states: Mapping[str, NDArray[np.float32]]
    p: NDArray[np.floating]
    q: NDArray[np.floating]
    prompts: NDArray[np.int64]
    kinds: NDArray[np.str_]

    def labelled(self, ratio: float) -> Examples:
        """Label tokens as acceptable where ``q(x) <= λ p(x)`` and ``p(x) > 0``."""
        labels = (self.q <= ratio * self.p) & (self.p > 0)
        return Examples(self.states, labels, self.prompts, ("unacceptable", "acceptable"))
