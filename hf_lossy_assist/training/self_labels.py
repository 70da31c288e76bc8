"""Labels by the target's own likelihood of the text that follows (SelfJudge, arXiv:2510.02329)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models.reading import CachedText, read, read_prompts, read_text
from .choice import MOST_LOGITS, Choice, DraftArgmax, DraftQuery, Ids
from .ratio_labels import Continuation, write_all
from .search import Found, Mismatch, Searched
from .writing import Prompt, ResponseCost, ResponseLimits


@dataclass(frozen=True, eq=False)
class SelfSearches:
    """Labels every mismatch of the target's response by whether its continuation stays as likely.

    The draft's token replaces the target's, and the next ``horizon`` tokens y of the response stay. With x the draft's
    token, the target's is important iff ``mean_i [log p(y_i | …x…) - log p(y_i | …)] < -most_lost``. A mismatch at the
    response's end, where nothing follows, is important. No task has to check an answer, and no text is written anew.

    Each mismatch is judged in the target's own text; the paper leaves open how mismatches of one response interact.
    """

    target: PreTrainedModel
    draft: DraftArgmax
    limits: ResponseLimits
    choice: Choice
    slots: int = 16
    horizon: int = 64
    most_lost: float = 0.5  # nats per token

    def run(self, prompts: Iterable[Prompt]) -> Iterator[Searched]:
        """Label the responses to all prompts, ``slots`` of which are written together."""
        source = iter(prompts)
        while batch := list(islice(source, self.slots)):
            asked = [Continuation(prompt.tokens, ("target",)) for prompt in batch]
            known = read_prompts(self.target, [prompt.tokens for prompt in batch])
            responses = write_all({"target": self.target}, asked, self.limits, self.choice, {"target": known})
            texts = list(zip(batch, responses, strict=True))
            guesses = dict(self.draft.guess([DraftQuery(i, one.tokens, y, 0) for i, (one, y) in enumerate(texts)]))
            for slot, (prompt, response) in enumerate(texts):
                self.draft.forget(slot)
                yield self._labelled(prompt, known[prompt.tokens], response, guesses[slot])

    def _labelled(self, prompt: Prompt, known: CachedText, response: Ids, guesses: Ids) -> Searched:
        places = [t for t, (ours, theirs) in enumerate(zip(response, guesses, strict=True)) if ours != theirs]
        changes = likelihood_changes(self.target, prompt.tokens, response, places, guesses, self.horizon, known)
        mismatches = tuple(
            Mismatch(t, response[t], guesses[t], important=not change >= -self.most_lost)
            for t, change in zip(places, changes, strict=True)
        )
        # The prompt, the response as it is written and as it is judged, and what follows each change.
        cost = len(prompt.tokens) - 1 + len(response) + (len(response) + 1 if places else 0)
        cost += sum(1 + min(self.horizon, len(response) - t - 1) for t in places)
        return Searched(prompt, ResponseCost(cost), Found(response, response, "", mismatches))


@torch.inference_mode()
def likelihood_changes(
    model: PreTrainedModel,
    prompt: Ids,
    response: Ids,
    places: Sequence[int],
    others: Ids,
    horizon: int,
    known: CachedText,
) -> list[float]:
    """Put the other token at each place, and return by how much the text after it becomes likelier, in nats per token.

    It is NaN at the response's end, where no text follows. ``known`` is the beginning of the prompt that the model has
    read.
    """
    if not places:
        return []
    text = read_text(model, (*prompt, *response), (known, len(known.tokens)), len(response) + 1)
    own = _likelihoods(text.logits[:-1], response)
    vocabulary = text.logits.shape[-1]
    together = max(1, min(16, MOST_LOGITS // (vocabulary * (horizon + 1))))
    changes = []
    for first in range(0, len(places), together):
        batch = places[first : first + together]
        followers = [response[t + 1 : t + 1 + horizon] for t in batch]
        texts = [(*prompt, *response[:t], others[t], *y) for t, y in zip(batch, followers, strict=True)]
        logits = read(model, texts, [(text.memory, len(prompt) + t) for t in batch]).logits
        for t, row, y in zip(batch, logits, followers, strict=True):
            after = _likelihoods(row[len(row) - 1 - len(y) : -1], y)
            changes.append((after - own[t + 1 : t + 1 + horizon]).mean().item())
    return changes


def _likelihoods(logits: Tensor, tokens: Ids) -> Tensor:
    chosen = torch.tensor(tokens, dtype=torch.long, device=logits.device)
    logits = logits.float()
    return logits.gather(-1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
