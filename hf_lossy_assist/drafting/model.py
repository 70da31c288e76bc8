"""Drafting with an assistant model that shares the target's tokenizer."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from ..compat import (
    CandidateGenerator,
    device_of,
    forward_accepts,
    has_recurrent_state,
    new_cache,
    refusal_of_adapter,
    rollback,
)
from ..decoding.batch_layout import Move
from ..decoding.buffers import Continued, TokenBuffer, counting, ones
from ..errors import LossyUnsupportedError
from ..forwards.cache_rows import move_cache
from ..sampling import Randomness
from ..verification.lm_head_hook import head_tap
from ..verification.processing import process
from .draft_length import ConstantWindow, Round, Window
from .vocabulary import Vocabulary, check_vocabularies


def check_draft_model(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Raise unless ``draft`` can draft for ``target`` through :class:`ModelDrafter`."""
    check_vocabularies(target, draft)
    check_decoder(draft)


def check_decoder(draft: PreTrainedModel) -> None:
    """Raise unless ``draft`` is a decoder that reads the text alone, and whose cache can be rolled back."""
    if (refusal := refusal_of_adapter(draft)) is not None:
        raise LossyUnsupportedError(f"`assistant_model` has {refusal}")
    if draft.config.is_encoder_decoder or has_recurrent_state(draft):
        raise LossyUnsupportedError(
            "`assistant_model` has to be a decoder-only model whose cache can be rolled back, but is a "
            f"{type(draft).__name__}"
        )


def mask_of(ids: Tensor, model_kwargs: dict[str, Any]) -> Tensor | None:
    """Return the attention mask of ``ids`` ``(B, L)``: the end of the target's, which may cover a cache besides."""
    mask = model_kwargs.get("attention_mask")
    return None if mask is None else mask[:, -ids.shape[1] :]


class ModelDrafter(CandidateGenerator):
    """Proposes tokens with the draft model's own forward and cache.

    Calls the model directly, without a nested ``generate()``: nothing is validated, copied or written to a
    configuration between rounds. Tokens are drawn from the very distribution q that is reported.

    Parameters
    ----------
    model
        The draft model.
    window
        γ, drafted tokens per round: a number, or what chooses one from round to round.
    processors
        The user's logits processors; they act on q as they do on p.
    do_sample
        Whether tokens are drawn from q, or are its argmax.
    max_length
        Length that no candidate exceeds, leaving room for the token that the target adds.
    attention_mask
        ``(B, L)`` mask of the prompts, where they are padded.
    randomness
        The source of the draws.
    keep_logits
        Whether the processed logits of q are returned with the tokens.
    keep_hidden
        Whether the inputs of the LM head are kept in ``hidden``.
    confidence
        Stop drafting after a token whose probability q(x) is below this.
    vocabulary
        Which of the model's tokens are which of the target's; by default they are the same.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        window: int | Window,
        *,
        processors: LogitsProcessorList | None = None,
        do_sample: bool = False,
        max_length: int = 2**31,
        attention_mask: Tensor | None = None,
        randomness: Randomness | None = None,
        keep_logits: bool = True,
        keep_hidden: bool = False,
        confidence: float | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.model = model
        self.window = ConstantWindow(window) if isinstance(window, int) else window
        self.processors = LogitsProcessorList() if processors is None else processors
        self.do_sample = do_sample
        self.max_length = max_length
        self.randomness = Randomness() if randomness is None else randomness
        self.keep_logits = keep_logits
        self.confidence = confidence
        self.vocabulary = Vocabulary() if vocabulary is None else vocabulary
        self.device = device_of(model)
        self._watch = self.window.watch(self.device)
        self._tap = head_tap(model, self.randomness) if keep_hidden else None
        self.reset()
        self._see(attention_mask)
        self._extra = {"logits_to_keep": 1} if forward_accepts(model, "logits_to_keep") else {}

    def _see(self, mask: Tensor | None) -> None:
        self._mask = self._positions = None
        if mask is not None:
            mask = mask.to(self.device)
            self._mask = Continued(mask, ones)
            if forward_accepts(self.model, "position_ids"):
                self._positions = Continued((mask.cumsum(-1) - 1).clamp(min=0), counting)

    def reset(self) -> None:
        """Forget everything seen, to draft for another prompt."""
        self.calls = self.tokens = 0
        self.hidden: Tensor | None = None
        self.lengths: tuple[int, ...] | None = None
        self._drafted = 0
        self._first = True
        self._marks: list[Any] = []
        self._cache = new_cache(self.model)
        self._cached = 0
        self._buffer: TokenBuffer | None = None
        self._committed = 0

    def get_candidates(self, input_ids: Tensor, **kwargs) -> tuple[Tensor, Tensor | None]:
        """Return ``input_ids`` ``(1, L)`` extended by up to γ tokens, and the processed logits of q ``(1, n, V)``.

        Where they are kept, ``hidden`` then holds the states ``(1, n, d)`` that predicted the tokens. The tokens are
        a view, overwritten by the next call.
        """
        return self.extend(input_ids, self.max_length - input_ids.shape[1] - 1)

    def extend(self, ids: Tensor, room: int) -> tuple[Tensor, Tensor | None]:
        """Do the same for any number of rows, and up to ``room`` tokens.

        Rows have one width, their padding on the left. Where drafting has stopped earlier in some than in others,
        ``lengths`` then says how many tokens each has.
        """
        length = ids.shape[1]
        self._marks = [self._watch.mark()]
        self._first = self._cached == 0
        self.lengths = None
        n = min(self.window.size, room)
        if n <= 0:
            return ids, None
        self.forget_after(length - 1)
        text = self._hold(ids)
        scores, states, sure = [], [], []
        for _ in range(n):
            token, logits, law = self.step(text.ids)
            text.append(token)
            if self.keep_logits:
                scores.append(logits)
            if self._tap is not None:
                states.append(self._tap.hidden)
            if self.confidence is not None:
                sure.append((law.gather(-1, token[..., None]) >= self.confidence).flatten().tolist())
                if not any(map(all, zip(*sure, strict=True))):
                    break
        if len(ids) > 1 and sure:
            self.lengths = tuple(min(row.index(False) + 1 if False in row else n, n) for row in zip(*sure, strict=True))
        self.hidden = torch.cat(states, dim=1) if states else None
        self._drafted = text.length - length
        self._marks.append(self._watch.mark())
        return text.ids, torch.cat(scores, dim=1) if self.keep_logits else None

    def _hold(self, ids: Tensor) -> TokenBuffer:
        """Return the committed tokens in the drafter's own memory; those of earlier rounds are there already."""
        if self._buffer is None:
            self._buffer = TokenBuffer(ids)
        else:
            self._buffer.become(ids, known=min(self._committed, ids.shape[1]))
        self._committed = ids.shape[1]
        return self._buffer

    def forget_after(self, length: int) -> None:
        """Take everything after the first ``length`` tokens out of the cache: tokens that were rejected."""
        # All but the newest committed token were drafted here, so a longer cache only holds rejected ones.
        stale = max(0, self._cached - length)
        rollback(self._cache, stale)
        self._cached -= stale

    def move(self, move: Move, mask: Tensor | None) -> None:
        """Follow the rows into the next round's rectangle, of which ``mask`` ``(B', W')`` is the attention mask."""
        slots = move.known(self._cached)
        move_cache(self._cache, move, slots)
        self._cached = slots
        self._buffer = None
        self._see(mask)

    def step(self, candidate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draft one token after ``candidate`` ``(1, L)``.

        Returns
        -------
        tuple
            The token ``(1, 1)``, the processed logits of q ``(1, 1, V)``, and what the token was chosen by: q where
            it is needed, else the logits.
        """
        raw = self.vocabulary.logits(self.read(self.vocabulary.context(candidate)))
        logits = process(self.processors, candidate, raw)
        law = logits.softmax(-1) if self.do_sample or self.confidence is not None else logits
        token = self.randomness.categorical(law) if self.do_sample else logits.argmax(-1)
        return token, logits, law

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        """Let γ be adapted to the last round."""
        if len(self._marks) == 2:
            begin, drafted, end = *self._marks, self._watch.mark()
            seconds = self._watch.between(begin, drafted), self._watch.between(drafted, end)
            self.window.observe(Round(self._drafted, num_matches, *seconds, first=self._first))
            self._marks = []

    def read(self, candidate: Tensor) -> Tensor:
        """Run the model over what its cache lacks; return the last position's raw logits ``(B, 1, V)`` in float32."""
        with nullcontext() if self._tap is None else self._tap.over(0):
            outputs = self._forward(candidate)
        self.calls += 1
        self.tokens += len(candidate) * (candidate.shape[1] - self._cached)
        self._cached = candidate.shape[1]
        return outputs.logits[:, -1:].to(device=candidate.device, dtype=torch.float32)

    def _forward(self, candidate: Tensor) -> Any:
        inputs = self._inputs(candidate[:, self._cached :].to(self.device), candidate)
        return self.model(past_key_values=self._cache, use_cache=True, return_dict=True, **inputs)

    def _inputs(self, new: Tensor, candidate: Tensor) -> dict[str, Any]:
        """Return the inputs of a forward over the last tokens of ``candidate``, ``new``."""
        inputs = {"input_ids": new, **self._extra}
        if self._mask is not None:
            inputs["attention_mask"] = self._mask.upto(candidate.shape[1])
        if self._positions is not None:
            # In a batch, what only fills a row up may stand behind the last position that there can be.
            positions = self._positions.upto(candidate.shape[1])[:, self._cached :]
            inputs["position_ids"] = positions.clamp(max=self.max_length - 1)
        return inputs
