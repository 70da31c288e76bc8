"""Where a sequence ends: exactly where plain ``generate()`` ends it."""

from __future__ import annotations

from torch import Tensor
from transformers import EosTokenCriteria, GenerationConfig, MaxLengthCriteria, StoppingCriteriaList


class Stopping:
    """Cuts a round's tokens at the first one after which a stopping criterion holds.

    Length and EOS are decided on the host from the tokens alone; every other criterion is asked once per
    token, with the prefix that plain generation would show it.

    Parameters
    ----------
    config
        Its ``max_length`` bounds the sequence.
    criteria
        As ``generate()`` prepared them.
    """

    def __init__(self, config: GenerationConfig, criteria: StoppingCriteriaList) -> None:
        self.others = StoppingCriteriaList()
        self.max_length = config.max_length
        self.eos: set[int] = set()
        for criterion in criteria:
            if type(criterion) is MaxLengthCriteria:
                self.max_length = min(self.max_length, criterion.max_length)
            elif type(criterion) is EosTokenCriteria:
                self.eos.update(criterion.eos_token_id.flatten().tolist())
            else:
                self.others.append(criterion)

    def room(self, length: int) -> int:
        """Return how many more tokens fit into a text."""
        return self.max_length - length

    def cut(self, extended: Tensor, tokens: list[int], scores: tuple[Tensor, ...] | None) -> tuple[int, bool]:
        """Return how many of a round's tokens to commit, and whether the sequence ends with them.

        Parameters
        ----------
        extended
            ``(1, L + m)`` the sequence with all m tokens of the round.
        tokens
            The m tokens.
        scores
            The scores of every generated token including the round's, where the caller records them.
        """
        before = extended.shape[1] - len(tokens)
        for i, token in enumerate(tokens, start=1):
            if token in self.eos or before + i >= self.max_length:
                return i, True
            if self.others:
                seen = None if scores is None else scores[: len(scores) - len(tokens) + i]
                if bool(self.others(extended[:, : before + i], seen).all()):
                    return i, True
        return len(tokens), False
