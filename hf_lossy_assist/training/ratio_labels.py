"""Training data for verifier heads: draft tokens with both models' probabilities (SPRINTER, section 3.2).

At inference, draft and target write prefixes in turns. A verifier is therefore trained on four kinds of prefix in equal
parts: prompts alone, and prompts continued by the draft, by the target, and by both.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import numpy as np
import torch
from transformers import PreTrainedModel

from ..models.reading import CachedText, read_text, remembered, variant_states
from ..values import ONE_OR_MORE, POSITIVE
from .choice import Choice, GumbelMax, Ids
from .labelling import MINED, SKIPPED, Labelled, Labelling, Labels, PromptLabels
from .writing import Prompt, ResponseLimits, RowBatch

# The probability that the other model takes over after a token, so each writes about four tokens in a row.
_TURN = 0.25


@dataclass(frozen=True)
class Continuation:
    """A text to write after a prompt, by ``"target"``, ``"draft"`` or both in turns.

    ``salt`` makes the draws of several continuations of a prompt independent.
    """

    prompt: Ids
    authors: tuple[str, ...]
    salt: int

    def turns(self, n: int) -> list[str]:
        """Return the author of each of the first ``n`` tokens."""
        rng = random.Random(f"{self.salt}/{self.prompt}")
        turn = rng.randrange(len(self.authors))
        turns = []
        for _ in range(n):
            turns.append(self.authors[turn])
            turn = (turn + (rng.random() < _TURN)) % len(self.authors)
        return turns


def write_all(
    models: Mapping[str, PreTrainedModel],
    continuations: Sequence[Continuation],
    limits: ResponseLimits,
    choice: Choice,
    known: Mapping[str, Mapping[Ids, CachedText]],
) -> list[Ids]:
    """Write all continuations together, and return the tokens of each, with its EOS.

    ``known`` has what each model remembers of every prompt but for its last token.
    """
    ids = [list(continuation.prompt) for continuation in continuations]
    contexts = [choice.context((one.salt, *one.prompt)) for one in continuations]
    turns = [continuation.turns(limits.max_new_tokens) for continuation in continuations]
    rows: dict[str, RowBatch] = {}
    for role, model in models.items():
        rows[role] = RowBatch(model)
        for i, one in enumerate(continuations):
            if role in one.authors:  # the first step reads the last token
                rows[role].put(i, known[role][one.prompt], len(one.prompt) - 1)
    unfinished = list(range(len(continuations)))
    for t in range(limits.max_new_tokens):
        if not unfinished:
            break
        tokens: dict[int, int] = {}
        for role, batch in rows.items():
            reading = [i for i in unfinished if role in continuations[i].authors]
            if not reading:
                continue
            logits = batch.step({i: ids[i][-1] for i in reading})
            written = [row for row, i in enumerate(reading) if turns[i][t] == role]
            if written:
                chosen = choice.choose(logits[written].float(), [contexts[reading[row]] for row in written])
                tokens.update(zip((reading[row] for row in written), chosen, strict=True))
        # Both models have read the tokens before these.
        for i, token in tokens.items():
            ids[i].append(token)
            contexts[i] = choice.extend(contexts[i], token)
        unfinished = [i for i in unfinished if ids[i][-1] not in limits.eos]
    return [tuple(text[len(continuation.prompt) :]) for continuation, text in zip(continuations, ids, strict=True)]


KINDS: Mapping[str, tuple[str, ...]] = {
    "prompt": (),
    "draft": ("draft",),
    "target": ("target",),
    "interleaved": ("draft", "target"),
}
"""The kinds of prefix, with the authors of the text after the prompt."""


@dataclass(frozen=True, eq=False)
class RatioMiner:
    """Draws tokens from the draft after prefixes of every kind, with their probabilities under both models.

    ``choice`` has the seed and the temperature of all draws. Every prompt gives ``rows_per_kind`` labelled tokens of
    each kind: after a prompt alone all at its end; in a continuation one at each of as many random positions, some of
    them twice where it is shorter.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    limits: ResponseLimits
    choice: GumbelMax
    slots: int = 16
    rows_per_kind: int = 8

    def outcomes(self, prompts: Iterable[Prompt]) -> Iterator[Labelled]:
        source = iter(prompts)
        written = {kind: authors for kind, authors in KINDS.items() if authors}
        while batch := list(islice(source, self.slots)):
            continuations = [
                Continuation(x.tokens, by, salt) for x in batch for salt, by in enumerate(written.values())
            ]
            models = {"target": self.target, "draft": self.draft}
            unique = list(dict.fromkeys(x.tokens for x in batch))
            known = {
                role: dict(zip(unique, remembered(model, [tokens[:-1] for tokens in unique]), strict=True))
                for role, model in models.items()
            }
            texts = iter(write_all(models, continuations, self.limits, self.choice, known))
            for prompt in batch:
                memories = {role: memory[prompt.tokens] for role, memory in known.items()}
                yield self._outcome(prompt, {kind: next(texts) for kind in written}, memories)

    def _outcome(self, prompt: Prompt, continuations: Mapping[str, Ids], known: Mapping[str, CachedText]) -> Labelled:
        # No token comes after an EOS.
        ends = self.limits.eos
        continuations = {kind: text[:-1] if text[-1] in ends else text for kind, text in continuations.items()}
        if not all(continuations.values()):
            return PromptLabels.of(prompt, SKIPPED, {"rows": 0}, "a continuation is empty"), {}
        parts = [self._rows(prompt, kind, continuations.get(kind, ()), known) for kind in KINDS]
        tokens = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return PromptLabels.of(prompt, MINED, {"rows": len(tokens["index"])}), tokens

    @torch.inference_mode()
    def _rows(
        self, prompt: Prompt, kind: str, continuation: Ids, known: Mapping[str, CachedText]
    ) -> dict[str, np.ndarray]:
        indices = self._indices(prompt, kind, len(continuation))
        text, first = (*prompt.tokens, *continuation), len(prompt.tokens)
        drafted = read_text(self.draft, [text], [(known["draft"], first - 1)], states=True)
        checked = read_text(self.target, [text], [(known["target"], first - 1)])
        said = drafted.logits[0, indices].float()
        p, q = (
            (logits.float() / self.choice.temperature).softmax(-1)
            for logits in (checked.logits[0, indices].to(said.device), said)
        )
        salt = len(KINDS) + list(KINDS).index(kind)
        contexts = [self.choice.context((salt, draw, *text[: first + index])) for draw, index in enumerate(indices)]
        tokens = self.choice.choose(said, contexts)
        chosen = torch.tensor(tokens, device=p.device)[:, None]
        variants = [(first + index, token) for index, token in zip(indices, tokens, strict=True)]
        after = variant_states(self.draft, drafted.memories[0], variants)
        return {
            "kind": np.full(len(indices), list(KINDS).index(kind), dtype=np.int8),
            "index": np.array(indices, dtype=np.int32),
            "token": np.array(tokens, dtype=np.int32),
            "p": p.gather(-1, chosen)[:, 0].cpu().numpy(),
            "q": q.gather(-1, chosen)[:, 0].cpu().numpy(),
            "previous": drafted.states[0, indices].float().cpu().numpy(),
            "token_state": torch.stack(after).float().cpu().numpy(),
        }

    def _indices(self, prompt: Prompt, kind: str, n: int) -> list[int]:
        """Return how many tokens of a continuation each prefix has: 0 after a prompt alone, else at least 1."""
        if n == 0:
            return [0] * self.rows_per_kind
        rng = random.Random(f"{self.choice.seed}/{prompt.id}/{kind}")
        possible = range(1, n + 1)
        if n >= self.rows_per_kind:
            return sorted(rng.sample(possible, self.rows_per_kind))
        return sorted(rng.choices(possible, k=self.rows_per_kind))


@dataclass(frozen=True)
class RatioLabels(Labels):
    """Drafted tokens with their probabilities under both models (SPRINTER); see :class:`.RatioMiner`.

    Parameters
    ----------
    temperature
        The temperature of all draws.
    rows
        Drafted tokens per prompt, for each of the four kinds of prefix.
    """

    temperature: Annotated[float, POSITIVE] = 1.0
    rows: Annotated[int, ONE_OR_MORE] = 8

    name = "ratio"

    def miner(self, labelling: Labelling) -> RatioMiner:
        pair = labelling.pair
        return RatioMiner(pair.target, pair.draft, labelling.limits, labelling.choice, labelling.batch_size, self.rows)
