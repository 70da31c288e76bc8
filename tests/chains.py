"""Chains that a draft model drafts, outside of any call."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator

from hf_lossy_assist.core.messages import Commit
from hf_lossy_assist.drafting.chain import ChainDrafter, Sampler
from hf_lossy_assist.generation.drafters.draft_model import ModelSource, draft_runner


def chain(model: PreTrainedModel, count: int, stop=None, keep_logits=True, adapts=False, **sampling) -> ChainDrafter:
    """Return a drafter of ``count`` tokens; ``sampling`` is for :class:`Sampler`."""
    return ChainDrafter(ModelSource(draft_runner(model)), count, Sampler(**sampling), keep_logits, stop, adapts)


def commit(text: Tensor, before: Tensor, drafted: int) -> Commit:
    """Return what a round has committed that made ``text`` ``(1, L)`` of the one ``before``; its last is no draft's."""
    count = text.shape[1] - before.shape[1]
    return Commit(text, before.shape[1], drafted, (count - 1,), (count,), (0,), (0,), None)


class Generating(CandidateGenerator):
    """A draft model behind transformers' contract; it reads the text anew in every round."""

    def __init__(self, model: PreTrainedModel, count: int, max_length: int = 10**6, **sampling: Any) -> None:
        self.model, self.count, self.max_length, self.sampling = model, count, max_length, sampling

    def get_candidates(self, input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        room = self.max_length - input_ids.shape[1]
        draft = chain(self.model, self.count, **self.sampling).propose(input_ids, None, [room])
        return input_ids.new_tensor([input_ids[0].tolist() + draft.tokens[0].tolist()]), draft.logits

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        return
