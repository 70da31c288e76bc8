"""Labelled hidden states, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import LossyValueError


@dataclass(frozen=True, eq=False)
class Examples:
    """Hidden states of N tokens, each with a label and the prompt that it comes from.

    ``states`` are ``(N, d)`` arrays by name. A label is True for the class whose probability the head is to give;
    ``classes`` says in words what False and True mean. Tokens of one prompt are never on both sides of a split.

    Examples
    --------
    >>> import numpy as np
    >>> states = {"target_draft": np.ones((3, 2), "f4"), "draft_draft": np.zeros((3, 1), "f4")}
    >>> examples = Examples(states, np.array([True, False, False]), np.array([0, 0, 1]))
    >>> len(examples), examples.features(["target_draft", "draft_draft"]).shape
    (3, (3, 3))
    """

    states: Mapping[str, NDArray[np.float32]]
    labels: NDArray[np.bool_]
    prompts: NDArray[np.int64]
    classes: tuple[str, str] = ("unimportant", "important")

    def __len__(self) -> int:
        return len(self.labels)

    def features(self, columns: Sequence[str]) -> NDArray[np.float32]:
        """Return ``(N, d)`` chosen states side by side."""
        if len(columns) == 1:
            return self.states[columns[0]]
        return np.concatenate([self.states[name] for name in columns], axis=1)

    def only(self, columns: Sequence[str]) -> Examples:
        """Return the examples without the other states."""
        return replace(self, states={name: self.states[name] for name in columns})

    def where(self, mask: NDArray[np.bool_]) -> Examples:
        """Return the examples of a boolean mask ``(N,)``."""
        states = {name: state[mask] for name, state in self.states.items()}
        return Examples(states, self.labels[mask], self.prompts[mask], self.classes)

    def counts(self) -> dict[str, float]:
        """Return how many prompts and tokens there are, and the share of the True class."""
        return {
            "prompts": len(np.unique(self.prompts)),
            "tokens": len(self),
            f"{self.classes[1]}_share": float(self.labels.mean()),
        }


def check(examples: Examples) -> None:
    """Refuse examples that no head can be learnt from."""
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
    """Tokens that a draft has proposed, with the probabilities of target (p) and draft (q) that decide their label.

    ``states`` are the draft's by position, and ``kinds`` says how the text before each token came about.
    """

    states: Mapping[str, NDArray[np.float32]]
    p: NDArray[np.floating]
    q: NDArray[np.floating]
    prompts: NDArray[np.int64]
    kinds: NDArray[np.str_]

    def labelled(self, ratio: float) -> Examples:
        """Return the tokens, True where ``q(x) <= λ p(x)``; a token that the target forbids is never acceptable.

        Examples
        --------
        >>> import numpy as np
        >>> p, q = np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.6, 0.1])
        >>> ratios = Ratios({}, p, q, np.arange(3), np.array(["prompt"] * 3))
        >>> ratios.labelled(1.0).labels.tolist(), ratios.labelled(1.5).labels.tolist()
        ([True, False, False], [True, True, False])
        """
        labels = (self.q <= ratio * self.p) & (self.p > 0)
        return Examples(self.states, labels, self.prompts, ("unacceptable", "acceptable"))
