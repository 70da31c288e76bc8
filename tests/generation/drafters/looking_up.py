"""When to look up, for tests that want look-ups beside other drafts."""

from __future__ import annotations


def sometimes(self, count: int, price: float) -> bool:
    """Decide by the text alone, in a way that leaves some rounds to the model."""
    return self.rounds > 1 and self.repeats.length > 0 and (len(self.repeats._text) + self.repeats._text[-1]) % 3 > 0
