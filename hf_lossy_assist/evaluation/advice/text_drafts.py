"""What a drafter proposes along the target's own text, from each of its tokens on."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...core.distributions import Randomness, point_mass
from ...core.messages import Decision, Draft
from ...decoding.loop import Decoding
from ...generation.lossy_call import LossyCall
from .text_logits import reduced


class ToldTokens(Randomness):
    """Draws what a text says next, whatever the law, and the likeliest tokens after its end."""

    def __init__(self, answer: Sequence[int]) -> None:
        super().__init__(0)
        self.answer, self.next = torch.tensor([answer]), 0

    def categorical(self, weights: Tensor) -> Tensor:
        drawn, own = weights.argmax(-1), self.answer[:, self.next : self.next + weights.shape[1]]
        drawn[:, : own.shape[1]] = own
        self.next += weights.shape[1]
        return drawn


@dataclass(eq=False)
class TextDecoding(Decoding):
    """Writes a known text, one token a round. The target sees none of a round's draft; its laws are read.

    ``laws`` are those of each position ``(K, C)``: of step k by the draft that began k positions before.
    """

    told: ToldTokens = field(kw_only=True)
    steps: int = field(kw_only=True)  # K, the most tokens of a draft
    laws: list[dict[str, Tensor]] = field(kw_only=True)
    counts: list[int] = field(kw_only=True)  # tokens of each draft

    def __post_init__(self) -> None:
        super().__post_init__()
        self._drafts: deque[Tensor] = deque(maxlen=self.steps)

    def round(self) -> None:
        texts, answer = self.texts, self.told.answer[0]
        start = self.told.next = texts.width - texts.prompt
        self.adapters.rows = texts.rows
        self.stats.start()
        draft = self.draft()
        nothing = replace(Draft.empty(texts.ids), target_inputs=draft.target_inputs)
        verification, output = self.verify(nothing, texts.ids, texts.rows)
        p = verification.logits[0, :1].cpu()
        q = point_mass(draft.tokens, p).log() if draft.logits is None else draft.logits
        self._drafts.appendleft(q[0].cpu())
        self.counts.append(len(draft))
        at = [q[k : k + 1] if k < len(q) else p for k, q in enumerate(self._drafts)]  # p fills up
        q = torch.cat([*at, *[p] * (self.steps - len(at))])
        self.laws.append(reduced(p.expand_as(q), q, answer[start].expand(len(q))))
        none = torch.zeros(1, 0, dtype=torch.bool, device=texts.device)
        count, token = none.sum(-1), answer[start : start + 1].to(texts.device)
        self.commit(nothing, verification, output, Decision(none, count, token, count == 0, none, {}))
        self.done = self.done or start + 1 == len(answer)


@dataclass(frozen=True, eq=False)
class TextCall(LossyCall):
    """A call that writes ``answer``, and reads its drafts of up to ``steps`` tokens, which are conditioned on it."""

    answer: Sequence[int] = ()
    steps: int = 1
    laws: list[dict[str, Tensor]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def _decoding(self, progress: Any, randomness: Randomness, adapters: Any, call: Any, row: int = 0) -> Decoding:
        drawing, told = copy.copy(call.config), ToldTokens(self.answer)
        drawing.do_sample = True  # so that drafts have laws, and tokens that are told
        made = super()._decoding(progress, told, adapters, replace(call, config=drawing), row)
        given = {one.name: getattr(made, one.name) for one in fields(Decoding) if one.init}
        return TextDecoding(**given, told=told, steps=self.steps, laws=self.laws, counts=self.counts)


@torch.inference_mode()
def read_drafts(
    target: PreTrainedModel,
    drafting: Mapping[str, Any],
    prompt: Sequence[int],
    answer: Sequence[int],
    steps: int,
    decoding: Mapping[str, Any],
) -> dict[str, Tensor]:
    """Return the fields of :class:`TextLogits` about one text ``(T, K, …)``, with drafts of up to K ``steps``.

    The call's own drafter drafts from each token of the text on, while the target reads one after another. Keywords of
    ``generate()`` say who drafts, ``drafting``, and how tokens are chosen, ``decoding``.
    """
    call = TextCall.from_keywords(target, {**drafting, "lossy_mode": "lossless", "lossy_config": {"compile": False}})
    # Replays end drafts by themselves.
    choice = replace(call.choice, confidence=None, stop=None, schedule="constant")
    call = replace(call, choice=choice, answer=answer, steps=steps)
    ids = torch.tensor([list(prompt)], device=target.device)

    def write(model: Any, input_ids: Tensor, **given: Any) -> Tensor:
        return call.decode(input_ids, **given)[0]

    length = len(answer) + steps + 1  # drafts have room, to the end
    target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, custom_generate=write, **decoding)
    read = {name: torch.stack([laws[name] for laws in call.laws]) for name in call.laws[0]}
    return read | {"counts": torch.tensor(call.counts)}
