"""A draft model that has another tokenizer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from typing import Any, Self

import torch
from torch import Tensor

from ...core.messages import Commit
from ...core.texts import common_prefix
from ...drafting import Drafter
from ...drafting.vocabulary import NEVER, check_tokenizers, vocabulary_sizes
from ...errors import LossyValueError
from ...models.runner import ModelRunner, Nodes
from .base import Asked, Making, PerRowKind, register
from .draft_model import ModelSource, check_decoder, draft_runner


class Translation:
    """Maps the tokens that two tokenizers share, and writes other text in the draft's tokens.

    ``target_size`` and ``draft_size`` are the rows of the models' LM heads.
    """

    def __init__(self, target: Any, draft: Any, target_size: int, draft_size: int) -> None:
        self.target, self.draft = target, draft
        self.target_size = target_size
        theirs = {text: i for text, i in _texts(draft) if i < draft_size}
        pairs = {i: theirs[text] for text, i in _texts(target) if i < target_size and text in theirs}
        if not pairs:
            raise LossyValueError(
                "`tokenizer` and `assistant_tokenizer` have to share a token, but have none in common; pass another "
                "`assistant_model`"
            )
        self.to_draft = pairs
        self.columns = torch.tensor(list(pairs)), torch.tensor(list(pairs.values()))

    @cached_property
    def special(self) -> set[int]:
        return set(self.target.all_special_ids)

    def text(self, ids: list[int]) -> list[int]:
        """Translate a text: shared special tokens one by one, the text between them by the draft's tokenizer."""
        out = []
        for special, part in groupby(ids, self.special.__contains__):
            tokens = list(part)
            out += [self.to_draft[i] for i in tokens if i in self.to_draft] if special else self._encode(tokens)
        return out

    def token(self, i: int) -> list[int]:
        shared = self.to_draft.get(i)
        return self._encode([i]) if shared is None else [shared]

    def logits(self, logits: Tensor) -> Tensor:
        """Return the draft's logits over the target's vocabulary ``(…, V)``; unshared tokens are never drafted."""
        theirs, ours = (columns.to(logits.device) for columns in self.columns)
        out = logits.new_full((*logits.shape[:-1], self.target_size), NEVER)
        out[..., theirs] = logits[..., ours]
        return out

    def _encode(self, ids: list[int]) -> list[int]:
        text = self.target.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return self.draft.encode(text, add_special_tokens=False)


class TranslatedSource(ModelSource):
    """A draft model of another tokenizer: q is over the tokens that both have, so it is a law of the target's tokens.

    Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
    Vocabularies" (token-level intersection). It follows one sequence, after ``prompt`` ``(1, L)`` in the target's
    tokens; ``mask`` ``(1, L)`` is False at its padding.
    """

    def __init__(
        self, runner: ModelRunner, translation: Translation, prompt: Tensor, mask: Tensor | None, keep_hidden: bool
    ) -> None:
        super().__init__(runner, keep_hidden=keep_hidden)
        self.translation = translation
        self._prompt = prompt.shape[1]
        real = prompt[0] if mask is None else prompt[0][mask[0].bool().to(prompt.device)]
        self._begin = translation.text(real.tolist()) or [translation.draft.bos_token_id or 0]
        self._text: list[int] = []
        self._ends: list[int] = []
        self._ids: list[int] = []  # the text in the draft's tokens
        self._read: list[int] = []  # what the draft model has read

    def room(self, ids: Tensor) -> int:
        # Drafted tokens are tokens of both.
        return sys.maxsize if self.positions is None else max(0, self.positions + 1 - len(self._translated(ids)))

    def begin(self, ids: Tensor) -> Tensor:
        self._whole = ids
        return ids[:, :0]

    def logits(self, tokens: Tensor, keep: int = 1, tree: Nodes | None = None) -> Tensor:
        self._whole = torch.cat([self._whole, tokens], dim=-1)
        ids = self._translated(self._whole)
        self.runner.rewind(min(common_prefix(ids, self._read), len(ids) - 1))
        self._read = ids
        logits = super().logits(torch.tensor([ids[self.runner.seen :]], device=self.device))
        return self.translation.logits(logits).to(tokens.device)

    def rewind(self, length: int) -> None:
        return  # `logits` finds rejected tokens by comparing texts

    def learn(self, commit: Commit) -> None:
        return

    def _translated(self, whole: Tensor) -> list[int]:
        """Return a text of the target ``(1, L)`` in the draft's tokens."""
        text = whole[0, self._prompt :].tolist()
        same = common_prefix(text, self._text)
        self._text = text
        del self._ends[same:]
        ids = self._ids[: self._ends[-1]] if self._ends else [*self._begin]
        for i in text[same:]:
            ids += self.translation.token(i)
            self._ends.append(len(ids))
        self._ids = ids
        return ids


def _texts(tokenizer: Any) -> Iterator[tuple[str, int]]:
    """Yield every token's text and id; the tokenizer's own sign for a space becomes a space."""
    ids = tokenizer.encode(" ", add_special_tokens=False)
    sign = tokenizer.convert_ids_to_tokens(ids)[0][0] if ids else " "
    for token, i in tokenizer.get_vocab().items():
        yield (" " + token.removeprefix(sign) if token.startswith(sign) else token), i


@register
class OtherTokenizer(PerRowKind):
    """`assistant_tokenizer` differs from `tokenizer`, so tokens are translated."""

    gives = frozenset({"q", "hidden", "stop", "static"})

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        return None if asked.draft is None or asked.tokenizers is None else cls(asked)

    @cached_property
    def translation(self) -> Translation:
        target, draft = self.asked.target, self.asked.assistant
        check_tokenizers(target, draft, *self.asked.tokenizers)
        return Translation(*self.asked.tokenizers, *vocabulary_sizes(target, draft))

    def check(self) -> None:
        check_decoder(self.model)
        self.translation  # noqa: B018 - which refuses tokenizers that share nothing

    def for_row(self, making: Making) -> Drafter:
        runner = draft_runner(self.model, max_length=making.call.config.max_length)
        runner.chunk = making.call.config.prefill_chunk_size
        source = TranslatedSource(runner, self.translation, making.call.ids, making.call.mask, self.asked.keep_hidden)
        return self.drafter(making, source)
