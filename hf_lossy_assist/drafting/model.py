"""Drafts with an assistant model that shares the target's tokenizer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator

from ..compat.caches import cache_name, new_cache
from ..compat.inputs import DraftForwardInputs, ForwardInputs
from ..compat.models import device_of, forward_accepts, has_recurrent_state, obstacle_in_adapter
from ..compat.multimodal import PreparedInputs, reading
from ..compat.positions import keeps_positions, learned_positions
from ..compat.probe import ask, obstacle_to_rollback
from ..core.distributions import Randomness
from ..core.messages import Commit, Draft, DraftCost
from ..core.texts import Texts
from ..core.transfers import Look, looks_late
from ..errors import LossyUnsupportedError
from ..models.lm_head_hook import lm_head_hook
from ..models.processing import process, reads_text
from ..models.recurrent import RecurrentDraftRunner, padding_before
from ..models.runner import DynamicCacheRunner, ModelRunner
from . import Drafter
from .draft_ends import DraftLength, DraftStop
from .vocabulary import NEVER, Vocabulary, check_vocabularies

_WITHOUT = nullcontext()
NO_END = 2**31
"""A length that no text reaches."""


def check_draft_model(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Raise unless ``draft`` can draft for ``target`` through :class:`ModelDrafter`."""
    check_vocabularies(target, draft)
    check_decoder(draft)


def check_decoder(draft: PreTrainedModel) -> None:
    """Raise unless ``draft`` is a decoder that reads text alone, with a cache that can be rolled back."""
    if (refusal := obstacle_in_adapter(draft)) is not None:
        raise LossyUnsupportedError(f"`assistant_model` has {refusal}")
    if draft.config.is_encoder_decoder:
        raise LossyUnsupportedError(
            f"`assistant_model` has to be a decoder-only model, but is a {type(draft).__name__}"
        )
    if (refusal := obstacle_to_rollback(draft, several=False)) is not None:
        raise LossyUnsupportedError(
            f"`assistant_model` has to be a model whose cache can be rolled back, but {refusal}"
        )


def mask_of(ids: Tensor, model_kwargs: dict[str, Any]) -> Tensor | None:
    """Return the attention mask of ``ids`` ``(B, L)``: the end of the target's, which may cover a cache too."""
    mask = model_kwargs.get("attention_mask")
    return None if mask is None else mask[:, -ids.shape[1] :]


class ModelDrafter(Drafter, CandidateGenerator):
    """Proposes tokens with the draft model's own forward and cache.

    It calls the model directly, without a nested ``generate()``, so nothing is validated, copied or written to a
    configuration between rounds. Tokens are drawn from the very distribution q that it reports, after the user's
    ``processors``.

    ``draft_length`` is γ, or chooses it from round to round; ``max_length`` leaves room for the target's own token.
    ``attention_mask`` ``(B, L)`` is that of padded prompts. ``keep_logits`` and ``keep_hidden`` return the logits of q
    and the inputs of the LM head with the tokens. ``runner`` makes a runner for every text, by default on a dynamic
    cache, and reads a prompt in forwards over ``chunk`` tokens, by default in one. Tokens in ``never`` are not drafted.
    ``inputs`` are those of a model that reads more than text.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        draft_length: int | DraftLength,
        *,
        processors: LogitsProcessorList | None = None,
        do_sample: bool = False,
        max_length: int = NO_END,
        attention_mask: Tensor | None = None,
        randomness: Randomness | None = None,
        keep_logits: bool = True,
        keep_hidden: bool = False,
        stop: DraftStop | None = None,
        vocabulary: Vocabulary | None = None,
        runner: Callable[[], ModelRunner] | None = None,
        never: Sequence[int] = (),
        inputs: PreparedInputs | None = None,
        chunk: int | None = None,
    ) -> None:
        self.model = model = model if inputs is None else inputs.model
        self._never = torch.tensor(never) if never else None
        self._inputs = inputs
        self.draft_length = DraftLength(draft_length) if isinstance(draft_length, int) else draft_length
        self.processors = LogitsProcessorList() if processors is None else processors
        self._reads_text = reads_text(self.processors)
        self.do_sample = do_sample
        self.max_length = min(max_length, NO_END)  # a caller's may be larger than any tensor holds
        self.randomness = Randomness() if randomness is None else randomness
        self.keep_logits = keep_logits
        self.stop = stop
        self.vocabulary = vocabulary
        self.device = device_of(model)
        self.positions = learned_positions(model)
        self._mask, self._chunk = attention_mask, chunk
        self._new_runner = self._default_runner if runner is None else runner
        self._hook = lm_head_hook(model, self.randomness) if keep_hidden else None
        self.reset()

    def reset(self) -> None:
        """Forget everything seen, to draft for another prompt."""
        self.calls = self.tokens = 0
        self.runner = self._new_runner()
        self.runner.chunk = self._chunk
        if self._hook is not None:
            self.runner.hook = self._hook
        self._drafted = 0

    def _default_runner(self) -> ModelRunner:
        carried: dict[str, Any] = {cache_name(self.model): new_cache(self.model), "use_cache": True}
        if forward_accepts(self.model, "logits_to_keep"):
            carried["logits_to_keep"] = 1
        length, inputs = 0, DraftForwardInputs(self.model)
        if self._inputs is None and keeps_positions(self.model):
            length, carried["position_ids"] = 1, torch.zeros(1, 1, dtype=torch.long, device=self.device)
        if self._inputs is not None:
            carried |= self._inputs.carried
            length, inputs = self._inputs.length, ForwardInputs(self.model)
        elif self._mask is not None and not bool(self._mask.all()):  # else models would ask in every forward
            mask = self._mask.to(self.device)
            length = mask.shape[1]
            carried["attention_mask"] = mask
            if forward_accepts(self.model, "position_ids"):
                carried["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
        if has_recurrent_state(self.model):
            return RecurrentDraftRunner(
                ForwardInputs(self.model), carried, length, padding=padding_before(self._mask),
                hands_on=self._inputs is not None, several=ask(self.model).several,
            )  # fmt: skip
        # Only what fills shorter drafts up counts further.
        positions = carried.get("position_ids", torch.tensor([[length - 1]]))
        last = positions[..., -1:] + (self.max_length - length)
        return DynamicCacheRunner(inputs, carried, length, last_position=last, hands_on=self._inputs is not None)

    def propose(self, ids: Tensor, layout: Texts | None, remaining: Sequence[int]) -> Draft:
        before = self.calls, self.tokens
        self._drafted = n = min(self.draft_length.size, max(remaining) - 1, self.room(ids))
        if n <= 0:
            return Draft.empty(ids)
        self.begin(ids)
        if (whole := self.runner.draft(ids, n, self.randomness)) is not None:
            return self._whole(n, *whole, remaining)
        scores, states, looks, sure = [], [], [], []
        if self.stop is not None:
            late = looks_late(ids.device)
            self.stop.begin()
        for _ in range(n):
            token, logits, chosen_by = self.draft_one()
            if self.keep_logits:
                scores.append(logits)
            if self._hook is not None:
                states.append(self._hook.hidden)
            if self.stop is not None:
                looks.append(Look(self.stop.goes_on(chosen_by, token)))
                if len(looks) > late:
                    sure.append(looks[len(sure)].tolist())
                if sure and not any(map(all, zip(*sure, strict=True))):
                    for of_token in (self.drafted, scores, states):
                        del of_token[len(sure) :]  # drafted before the look
                    break
        self._drafted = n = len(self.drafted)
        return Draft(
            torch.cat(self.drafted, dim=-1),
            torch.cat(scores, dim=1).float() if scores else None,
            torch.cat(states, dim=1).to(ids.device) if states else None,
            lengths_of(n, remaining, sure),
            cost=DraftCost(self.calls - before[0], self.tokens - before[1]),
        )

    def _whole(self, calls: int, tokens: Tensor, logits: Tensor, remaining: Sequence[int]) -> Draft:
        """Return a draft that the runner has made by itself, in so many forwards."""
        n, sent = tokens.shape[1], self.runner.sent
        self.calls, self.tokens = self.calls + calls, self.tokens + sent
        device = self.text.device
        kept = logits.to(device) if self.keep_logits else None
        return Draft(tokens.to(device), kept, None, lengths_of(n, remaining, []), cost=DraftCost(calls, sent))

    def observe(self, commit: Commit) -> None:
        self._learn(round(sum(commit.accepted) / len(commit.accepted)))
        self.runner.follow(commit)

    def in_use(self) -> AbstractContextManager[None]:
        return self.runner.in_use()

    def get_candidates(self, input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Return ``input_ids`` ``(1, L)`` extended by up to γ tokens, and the processed logits of q ``(1, n, V)``."""
        draft = self.propose(input_ids, None, [self.max_length - input_ids.shape[1]])
        return torch.cat([input_ids, draft.tokens], dim=-1), draft.logits

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        """Let γ adapt to the last round."""
        self._learn(num_matches)

    def _learn(self, accepted: int) -> None:
        if self._drafted and self.draft_length.adapts:
            self.draft_length.observe(self._drafted, accepted)
        self._drafted = 0

    def room(self, ids: Tensor) -> int:
        """Return how many tokens the draft model has positions for after ``ids`` ``(B, W)``."""
        # The last drafted token is not read.
        return sys.maxsize if self.positions is None else max(0, self.positions + 1 - ids.shape[1])

    def begin(self, ids: Tensor) -> None:
        # The drafter has seen all committed tokens but the newest, so a longer cache holds rejected ones.
        self.runner.rewind(ids.shape[1] - 1)
        self.text, self.drafted = ids, []
        self.unread = ids[:, self.runner.seen :]

    @property
    def ids(self) -> Tensor:
        """``(B, W + n)`` the text and the tokens drafted after it."""
        return torch.cat([self.text, *self.drafted], dim=-1)

    def draft_one(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draft one token after the text and the tokens drafted so far.

        Return the token ``(B, 1)``, the processed logits of q ``(B, 1, V)``, and q where it is needed, else these
        logits.
        """
        return self.choose(self.read(self.unread))

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Choose tokens by their raw logits ``(B, n, V)``, as :meth:`draft_one` does: each, where none reads the text.

        Return what :meth:`draft_one` returns.
        """
        if self._never is not None:
            logits = logits.index_fill(-1, self._never.to(logits.device), NEVER)
        if self.processors:
            logits = process(self.processors, self.ids if self._reads_text else self.text, logits)
        chosen_by = logits.softmax(-1) if self.do_sample or self.stop is not None else logits
        token = self.randomness.categorical(chosen_by) if self.do_sample else logits.argmax(-1)
        self.drafted.append(token)
        self.unread = token
        return token, logits, chosen_by

    def read(self, tokens: Tensor) -> Tensor:
        """Run the model over the next ``tokens`` ``(B, k)`` of the text.

        Return the last position's raw logits ``(B, 1, V)`` over the target's vocabulary, in float32.
        """
        if self.vocabulary is not None:
            tokens = self.vocabulary.context(tokens)
        unsure = _WITHOUT if self.calls else reading(self.model)  # it may need an image, or another kind of image
        if self._hook is not None:
            self._hook.over(0)
        with unsure:
            outputs = self.runner.forward(tokens.to(self.device))
        self.calls += 1
        self.tokens += self.runner.sent
        logits = outputs.logits if outputs.logits.shape[1] == 1 else outputs.logits[:, -1:]
        logits = logits.to(device=tokens.device, dtype=torch.float32)
        return logits if self.vocabulary is None else self.vocabulary.logits(logits)


def lengths_of(n: int, remaining: Sequence[int], sure: Sequence[Sequence[bool]]) -> tuple[int, ...] | None:
    """Return how many of n drafted tokens each row gets: up to the first unsure one, and as many as fit."""
    apart = len(remaining) > 1 and bool(sure)
    if not apart and min(remaining) > n:
        return None
    full = [n] * len(remaining)
    if apart:
        full = [row.index(False) + 1 if False in row else n for row in zip(*sure, strict=True)]
    lengths = tuple(min(length, max(room - 1, 0)) for length, room in zip(full, remaining, strict=True))
    return None if set(lengths) == {n} else lengths
