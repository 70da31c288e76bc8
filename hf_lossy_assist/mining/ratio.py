"""Training data for verifier heads: draft tokens with both models' probabilities (SPRINTER, section 3.2).

A verifier meets prefixes that draft and target wrote in turns, so it is trained on four kinds of prefix in equal parts:
prompts alone, and prompts continued by the draft, by the target, and by both.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel

from .choice import GumbelMax
from .judge import hidden_size
from .mixed import Sheet, write_all
from .outcomes import MINED, SKIPPED, Outcome, Prompt
from .states import read_text, variant_states
from .tables import ratio_schemas
from .writing import Ids, Limits

if TYPE_CHECKING:
    import pyarrow

KINDS: Mapping[str, tuple[str, ...]] = {
    "prompt": (),
    "draft": ("draft",),
    "target": ("target",),
    "interleaved": ("draft", "target"),
}
"""The kinds of prefix, and who wrote what follows the prompt."""


@dataclass(frozen=True, eq=False)
class RatioMiner:
    """Draws tokens from the draft after prefixes of every kind, and asks both models for their probabilities.

    Parameters
    ----------
    target, draft
        The models.
    limits
        Where continuations end.
    choice
        The seed of every draw, and the temperature of p and q, continuations included.
    slots
        Prompts at once.
    rows_per_kind
        Labelled tokens of each kind from every prompt. After a prompt alone they are so many draws from one law;
        after a continuation, one draw at each of so many positions, chosen at random.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    limits: Limits
    choice: GumbelMax
    slots: int = 16
    rows_per_kind: int = 8

    def schemas(self) -> dict[str, pyarrow.Schema]:
        return ratio_schemas(hidden_size(self.draft))

    def outcomes(self, prompts: Iterable[Prompt]) -> Iterator[Outcome]:
        source = iter(prompts)
        written = {kind: authors for kind, authors in KINDS.items() if authors}
        while batch := list(islice(source, self.slots)):
            sheets = [
                Sheet(prompt.tokens, authors, salt) for prompt in batch for salt, authors in enumerate(written.values())
            ]
            texts = iter(write_all({"target": self.target, "draft": self.draft}, sheets, self.limits, self.choice))
            for prompt in batch:
                yield self._outcome(prompt, {kind: next(texts) for kind in written})

    def _outcome(self, prompt: Prompt, continuations: Mapping[str, Ids]) -> Outcome:
        # An EOS is nothing that a token could come after.
        continuations = {
            kind: text[:-1] if self.limits.ends(text[-1]) else text for kind, text in continuations.items()
        }
        if not all(continuations.values()):
            return Outcome(prompt, SKIPPED, {"rows": 0}, error="a continuation is empty")
        parts = [self._rows(prompt, kind, continuations.get(kind, ())) for kind in KINDS]
        tokens = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return Outcome(prompt, MINED, {"rows": len(tokens["index"])}, tokens)

    @torch.inference_mode()
    def _rows(self, prompt: Prompt, kind: str, continuation: Ids) -> dict[str, Any]:
        """Return the columns of one kind."""
        indices = self._indices(prompt, kind, len(continuation))
        text = (*prompt.tokens, *continuation)
        places = [len(prompt.tokens) - 1 + index for index in indices]
        drafted = read_text(self.draft, text)
        p, q = (
            (logits[places].float() / self.choice.temperature).softmax(-1)
            for logits in (read_text(self.target, text).logits.to(drafted.logits.device), drafted.logits)
        )
        salt = len(KINDS) + list(KINDS).index(kind)
        contexts = [self.choice.context((salt, draw, *text[: place + 1])) for draw, place in enumerate(places)]
        tokens = self.choice.choose(drafted.logits[places].float(), contexts)
        chosen = torch.tensor(tokens, device=p.device)[:, None]
        variants = [(place + 1, token) for place, token in zip(places, tokens, strict=True)]
        return {
            "kind": [kind] * len(indices),
            "index": indices,
            "token": tokens,
            "p": p.gather(-1, chosen)[:, 0].tolist(),
            "q": q.gather(-1, chosen)[:, 0].tolist(),
            "previous": drafted.states[places].float().cpu().numpy(),
            "token_state": variant_states(self.draft, drafted, variants).float().cpu().numpy(),
        }

    def _indices(self, prompt: Prompt, kind: str, n: int) -> list[int]:
        """Return how many tokens of a continuation each prefix has: none after a prompt alone, else at least one."""
        if n == 0:
            return [0] * self.rows_per_kind
        rng = random.Random(f"{self.choice.seed}/{prompt.id}/{kind}")
        possible = range(1, n + 1)
        if n >= self.rows_per_kind:
            return sorted(rng.sample(possible, self.rows_per_kind))
        return sorted(rng.choices(possible, k=self.rows_per_kind))
