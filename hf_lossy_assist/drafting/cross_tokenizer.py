"""Drafting with an assistant model that has a tokenizer of its own."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LossyValueError
from .draft_length import DraftLength
from .model import ModelDrafter


class Translation:
    """Which tokens two tokenizers share, and how the text of the others is written in the draft's.

    Parameters
    ----------
    target, draft
        The tokenizers.
    target_size, draft_size
        Rows of the models' LM heads.

    Raises
    ------
    LossyValueError
        When they share no token.
    """

    def __init__(self, target: Any, draft: Any, target_size: int, draft_size: int) -> None:
        self.target, self.draft = target, draft
        self.target_size = target_size
        theirs = {text: i for text, i in _texts(draft) if i < draft_size}
        pairs = {i: theirs[text] for text, i in _texts(target) if i < target_size and text in theirs}
        if not pairs:
            raise LossyValueError("`tokenizer` and `assistant_tokenizer` have no token in common")
        self.to_draft = pairs
        self.columns = torch.tensor(list(pairs)), torch.tensor(list(pairs.values()))

    @cached_property
    def special(self) -> set[int]:
        """The target's special tokens, which are no text."""
        return set(self.target.all_special_ids)

    def text(self, ids: list[int]) -> list[int]:
        """Translate a text: special tokens that both have one by one, what is between them in the draft's way."""
        out, part = [], []
        for i in [*ids, None]:
            if i is not None and i not in self.special:
                part.append(i)
                continue
            if part:
                out += self.draft.encode(self._decode(part), add_special_tokens=False)
                part = []
            out += [self.to_draft[i]] if i in self.to_draft else []
        return out

    def token(self, i: int) -> list[int]:
        """Translate one token of the response."""
        shared = self.to_draft.get(i)
        return self.draft.encode(self._decode([i]), add_special_tokens=False) if shared is None else [shared]

    def logits(self, logits: Tensor) -> Tensor:
        """Return ``(…, V)`` the draft's logits over the target's vocabulary; what only one has can't be drawn."""
        theirs, ours = (columns.to(logits.device) for columns in self.columns)
        out = logits.new_full((*logits.shape[:-1], self.target_size), -torch.inf)
        out[..., theirs] = logits[..., ours]
        return out

    def _decode(self, ids: list[int]) -> str:
        return self.target.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


class CrossTokenizerDrafter(ModelDrafter):
    """Drafts only tokens that both tokenizers have, so that there is a q over the target's vocabulary.

    Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
    Vocabularies" (token-level intersection). Neither model is edited. For one sequence.

    Parameters
    ----------
    model, draft_length, **settings
        As for :class:`ModelDrafter`.
    translation
        Between the tokenizers.
    prompt
        ``(1, L)`` the prompt in the target's tokens.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        draft_length: int | DraftLength,
        *,
        translation: Translation,
        prompt: Tensor,
        **settings: Any,
    ) -> None:
        mask = settings.pop("attention_mask", None)
        super().__init__(model, draft_length, **settings)
        self.translation = translation
        self._prompt = prompt.shape[1]
        real = prompt[0] if mask is None else prompt[0][mask[0].bool().to(prompt.device)]
        self._begin = translation.text(real.tolist()) or [translation.draft.bos_token_id or 0]

    def reset(self) -> None:
        super().reset()
        self._text: list[int] = []
        self._ends: list[int] = []
        self._ids: list[int] = []

    def _forget_after(self, length: int) -> None:
        return  # what was rejected is found by comparing texts

    def read(self) -> Tensor:
        text = self.text.ids[0, self._prompt :].tolist()
        same = _common(text, self._text)
        self._text = text
        del self._ends[same:]
        ids = self._ids[: self._ends[-1]] if self._ends else [*self._begin]
        for i in text[same:]:
            ids += self.translation.token(i)
            self._ends.append(len(ids))
        self.forwards.rewind(min(_common(ids, self._ids), len(ids) - 1))
        self._ids = ids
        logits = self.read_tokens(torch.tensor([ids[self.forwards.seen :]], device=self.device))
        return self.translation.logits(logits).to(self.text.ids.device)


def _texts(tokenizer: Any) -> Iterator[tuple[str, int]]:
    """Give every token with a plain space where the tokenizer has a sign of its own in front."""
    ids = tokenizer.encode(" ", add_special_tokens=False)
    sign = tokenizer.convert_ids_to_tokens(ids)[0][0] if ids else " "
    for token, i in tokenizer.get_vocab().items():
        yield (" " + token.removeprefix(sign) if token.startswith(sign) else token), i


def _common(a: list[int], b: list[int]) -> int:
    """Return the length of the common beginning."""
    shortest = min(len(a), len(b))
    # Where a length is the first that differs: comparing slices is fast, and most texts differ near their end.
    return bisect_left(range(shortest), True, key=lambda n: a[: n + 1] != b[: n + 1])
