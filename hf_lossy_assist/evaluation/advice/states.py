"""Rules that read more than two laws: hidden states, dropped heads, or the draft's own states decide along a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from ...acceptors import Acceptor
from ...core.distributions import Randomness
from ...core.messages import Draft, Verification
from ...drafting.vocabulary import vocabulary_of
from ...models.processing import process
from ...models.reading import ReadText, read_text, variant_states
from ...models.target import TargetReader
from .replay import Given, drawn_with
from .text_logits import CHUNK

STATES = frozenset({"hidden", "draft_hidden", "dropped_heads"})
"""What rules may need besides the laws."""


def reads_states(rule: Acceptor) -> bool:
    return bool(rule.needs & STATES) or rule.unverified_drafting is not None


@dataclass(frozen=True, eq=False)
class AlongText(Verification):
    """Drafted tokens along a text that goes on with other tokens: the states that have read them stand beside."""

    after: Tensor | None = None
    draft_after: Tensor | None = None

    @property
    def states_after(self) -> Tensor | None:
        return self.after

    @property
    def draft_states_after(self) -> Tensor | None:
        return self.draft_after


@torch.inference_mode()
def decided(
    rule: Acceptor,
    target: PreTrainedModel,
    draft: PreTrainedModel,
    ids: Sequence[int],
    start: int,
    processors: LogitsProcessorList,
    do_sample: bool,
) -> dict[str, Tensor]:
    """Return ``(T,)`` which drafted tokens a rule keeps after ``start`` tokens of a text, and where it alone does.

    Greedily these are the draft's best tokens; when sampling, they are drawn, once for each position. A rule that keeps
    tokens without the target counts those.
    """
    text = torch.tensor([list(ids)])
    by_draft, vocabulary = read_text(draft, ids), vocabulary_of(target, draft)
    by_target = None if rule.dropped_heads else read_text(target, ids)
    reader = TargetReader(target, processors, rule, do_sample, Randomness(0))
    found = []
    for first in range(start, len(ids), CHUNK):
        end = min(first + CHUNK, len(ids))
        part = text[:, :end]
        q = by_draft.logits[None, first - 1 : end - 1].float().cpu()
        raw = Draft(part[:, first:], q if vocabulary is None else vocabulary.logits(q))
        q = process(processors, part, raw.logits, raw.shape)
        if by_target is None:
            logits, dropped = _with_dropped(target, reader, part, end - first)
        else:
            logits, dropped = by_target.logits[None, first - 1 : end].float().cpu(), None
            if end == len(ids):
                logits = torch.cat([logits, logits[:, -1:]], dim=1)[:, : end - first + 1]
        v = reader.answer(part, replace(raw, logits=q), logits, dropped)
        tokens, u = q.argmax(-1), v.u
        if do_sample:
            tokens, u = drawn_with(v.p[:, :-1].log(), q, raw.tokens, reader.randomness)
        given = {name: getattr(v, name) for name in ("logits", "dropped_logits", "centroid_logits", "shape")}
        along = AlongText(
            tokens, draft_logits=q, do_sample=do_sample, randomness=Given(u), **given,
            **_states(rule, "hidden", ("hidden", "after"), target, by_target, tokens, first, end),
            **_states(rule, "draft_hidden", ("draft_hidden", "draft_after"), draft, by_draft, tokens, first, end),
        )  # fmt: skip
        found.append((_keep(rule, along), along.lossless, v.logits[:, :-1].amax(-1) - along.logit_x))
    keep, lossless, lost = (torch.cat(parts, dim=1)[0] for parts in zip(*found, strict=True))
    return {"keep": keep.float(), "others": (keep & ~lossless).float(), "nats": lost}


def _keep(rule: Acceptor, v: AlongText) -> Tensor:
    if (run := rule.unverified_drafting) is None:
        return rule.keep(v)
    states = v.draft_hidden if run.head.config.position == "previous" else v.draft_after
    return run.head.probability(states.to(run.head.weight.device).float()).cpu() > run.threshold


def _states(
    rule: Acceptor,
    need: str,
    names: tuple[str, str],
    model: PreTrainedModel,
    text: ReadText | None,
    tokens: Tensor,
    first: int,
    end: int,
) -> dict[str, Tensor]:
    """Return the states that predicted drafted tokens, and those that have read them in place of the text's own."""
    if need not in rule.needs and not (need == "draft_hidden" and rule.unverified_drafting):
        return {}
    after = text.states[first:end].clone()
    own = torch.tensor(text.memory.tokens[first:end])
    others = (tokens[0] != own).nonzero()[:, 0].tolist()
    if others:
        after[others] = variant_states(model, text, [(first + i, int(tokens[0, i])) for i in others])
    before = text.states[first - 1 : end - (0 if names[0] == "hidden" else 1)]
    return {names[0]: before[None].cpu(), names[1]: after[None].cpu()}


def _with_dropped(target: PreTrainedModel, reader: TargetReader, ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return logits and those of dropped heads from one forward over a text whose last ``count`` tokens are judged."""
    hook = reader.hook
    keep = count + hook.wanted(None, 1, ids.shape[1] - count)
    with hook.over(count):
        logits = target(ids.to(target.device), logits_to_keep=keep).logits
    clean, dropped = hook.split(logits, count)
    return clean.float().cpu(), dropped
