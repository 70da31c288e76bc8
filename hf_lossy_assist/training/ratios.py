"""Tokens labelled by the ratio of the draft's probability to the target's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .examples import Examples


@dataclass(frozen=True, eq=False)
class Ratios:
    """Tokens that a draft has proposed, with the probabilities that decide their label.

    Attributes
    ----------
    states
        ``(N, d)`` float32 states of the draft, by position.
    p, q
        ``(N,)`` probabilities of the token by target and draft.
    prompts
        ``(N,)`` which prompt each token is of.
    kinds
        ``(N,)`` how the text before each token came about.
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
