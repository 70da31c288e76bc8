"""Tables 1 to 3 of the DropMatch paper's section 3, for any target: the choices of its dropped heads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_lossy_assist.acceptors import DropMatch
from hf_lossy_assist.acceptors.dropmatch import majority
from hf_lossy_assist.core.distributions import Randomness, js_divergence
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.evaluation.evaluate import evaluate
from hf_lossy_assist.evaluation.modes import DecodingMode, Models
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from hf_lossy_assist.pairs import Pair

Text = tuple[Tensor, Tensor]
"""A prompt ``(L,)`` and what was generated after it ``(n,)``."""


@dataclass(frozen=True)
class PathAccuracy:
    """Table 1: the accuracy of one path that decodes alone.

    Attributes
    ----------
    dropout
        ρ; 0 is the undropped head.
    path
        Which of the K paths, counted from 1.
    problems, accuracy, unanswered
        How many problems were put, the share answered right, and how many responses state no answer.
    """

    dropout: float
    path: int
    problems: int
    accuracy: float
    unanswered: int


@dataclass(frozen=True)
class Agreement:
    """Table 2: positions where exactly ``votes`` of the K paths choose the majority token.

    Attributes
    ----------
    dropout, votes
        ρ, and the number of paths that agree.
    positions, share
        How many positions those are, and their share of all.
    mean_probability
        Mean probability that the target's undropped head gives the majority token there; None without positions.
    """

    dropout: float
    votes: int
    positions: int
    share: float
    mean_probability: float | None


@dataclass(frozen=True)
class Divergence:
    """Table 3: positions by the criterion that keeps the draft's token there.

    Attributes
    ----------
    dropout
        ρ.
    case
        ``"dispersed"``: kept by equation 6; ``"concentrated"``: by equation 7 alone; ``"rejected"``: by neither.
    positions, share
        How many positions those are, and their share of all.
    draft_js, path_js
        Mean ``JS(q ‖ P̄)`` and mean ``max_k JS(P_k ‖ P̄)`` in nats; None without positions.
    """

    dropout: float
    case: str
    positions: int
    share: float
    draft_js: float | None
    path_js: float | None


CASES = ("dispersed", "concentrated", "rejected")


@contextmanager
def dropped_head(model: PreTrainedModel, dropout: float, randomness: Randomness) -> Iterator[None]:
    """Let every call of the LM head in this thread see a freshly dropped input, inside the block."""
    thread = threading.get_ident()

    def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if threading.get_ident() != thread:
            return None
        hidden = args[0]
        return (hidden * randomness.keep_mask(tuple(hidden.shape), dropout, hidden), *args[1:])

    handle = model.get_output_embeddings().register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def path_accuracies(
    pair: Pair,
    dropouts: Iterable[float] = (0.1, 0.2, 0.3, 0.4, 0.5),
    *,
    num_paths: int = 5,
    problems: int = 200,
    split: str = "test",
    seed: int = 0,
    batch_size: int = 50,
) -> Iterator[PathAccuracy]:
    """Measure table 1: each path decodes every problem alone and greedily; the undropped head comes first.

    A path drops the head's input anew at every step, as it does in DropMatch's rounds; paths differ by their seed.

    Parameters
    ----------
    pair
        The target, its tokenizer and the task; the draft is not used.
    dropouts, num_paths
        The values of ρ, and K.
    problems, split
        The first ``problems`` of a split.
    seed
        Paths use ``seed`` to ``seed + num_paths - 1``.
    batch_size
        Problems answered at once.
    """
    runs = [(0.0, 1), *((dropout, path) for dropout in dropouts for path in range(1, num_paths + 1))]
    for dropout, path in runs:
        with dropped_head(pair.target, dropout, Randomness(seed + path - 1)):
            result = evaluate(
                pair.target, tokenizer=pair.tokenizer, task=pair.task, modes="plain", limit=problems, split=split,
                batch_size=batch_size,
            )  # fmt: skip
        said = zip(pair.task.examples(split, problems), result.answers, strict=True)
        unanswered = sum(pair.task.answer(example, answer.text) is None for example, answer in said)
        yield PathAccuracy(dropout, path, len(result.answers), result.modes["plain"].score, unanswered)


def own_texts(pair: Pair, problems: int, *, split: str = "test", batch_size: int = 50) -> list[Text]:
    """Return the target's own greedy responses to the first problems of a split."""
    prompts = [pair.task.encode(example, pair.tokenizer) for example in pair.task.examples(split, problems)]
    batches = batches_of(prompts, batch_size, device=pair.target.device, pad=pair.tokenizer.pad_token_id)
    alone = Models(pair.target, pair.target)
    rows = [row for b in batches for row in run_request(alone, DecodingMode(), b, pair.task.max_new_tokens).rows]
    return [(torch.tensor(ids, device=row.device), row) for ids, row in zip(prompts, rows, strict=True)]


@torch.inference_mode()
def verify_along(
    target: PreTrainedModel, text: Text, rule: DropMatch, randomness: Randomness, draft: PreTrainedModel | None = None
) -> Verification:
    """Return the target's verification of every position of a response, from one parallel forward.

    Parameters
    ----------
    target, rule, randomness
        As in a run of the rule; the decoding is greedy and without processors.
    text
        The response to go along; its tokens are the prefixes.
    draft
        With a draft model, the tokens in question are its likeliest ones after the same prefixes, and its
        logits come with them; without, they are the response's own.
    """
    prompt, tokens = text
    ids, start = torch.cat(text)[None], len(prompt) - 1
    states = target.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[:, start:]
    head, drafted = target.get_output_embeddings(), states[:, None, :-1]
    shape = (1, rule.num_paths, *drafted.shape[2:])
    dropped = head(drafted * randomness.keep_mask(shape, rule.dropout, drafted)).float()
    own = tokens[None]
    logits = None
    if draft is not None:
        logits = draft(input_ids=ids[:, :-1].to(draft.device), use_cache=False).logits[:, start:].to(dropped)
        own = logits.argmax(-1)
    return Verification(
        tokens=own, logits=head(states).float(), draft_logits=logits, dropped_logits=dropped,
        centroid_logits=dropped.mean(1),
    )  # fmt: skip


def agreements(
    target: PreTrainedModel, responses: Sequence[Text], dropout: float, *, num_paths: int = 5, seed: int = 0
) -> list[Agreement]:
    """Measure table 2 along the target's own responses: one row for each number of agreeing paths.

    The paper's "Mean prob." is read as the target's probability of the majority token.
    """
    rule, randomness = DropMatch(num_paths=num_paths, dropout=dropout, criterion="naive"), Randomness(seed)
    votes, probabilities = [], []
    for response in responses:
        v = verify_along(target, response, rule, randomness)
        y = v.dropped_logits.argmax(-1)
        winner = majority(y, v.centroid_logits.softmax(-1))
        votes.append((y == winner[:, None]).sum(1).flatten())
        probabilities.append(v.p[:, :-1].gather(-1, winner[..., None]).flatten())
    votes, probabilities = torch.cat(votes), torch.cat(probabilities)
    return [
        Agreement(dropout, count, *_share(votes == count), _mean(probabilities, votes == count))
        for count in range(1, num_paths + 1)
    ]


def divergences(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    responses: Sequence[Text],
    dropout: float,
    *,
    num_paths: int = 5,
    seed: int = 0,
) -> list[Divergence]:
    """Measure table 3 along the target's own responses, at every position with the draft's distribution there.

    The paper's two columns lost their headings' formulas. They are read as ``JS(q ‖ P̄)`` and
    ``max_k JS(P_k ‖ P̄)``, since its "Dispersed" row then satisfies equation 6 (0.0254 <= 0.0313) and its
    "Concentrated" row fails it (0.0097 > 0.0014), being kept by the majority token (equation 7) alone. The
    token in question is the draft's likeliest one. Positions kept by neither make a third row.
    """
    rule, randomness = DropMatch(num_paths=num_paths, dropout=dropout), Randomness(seed)
    draft_js, path_js, matches = [], [], []
    for response in responses:
        v = verify_along(target, response, rule, randomness, draft)
        paths, centroid = v.dropped_logits.softmax(-1), v.centroid_logits.softmax(-1)
        draft_js.append(js_divergence(v.q, centroid).flatten())
        path_js.append(js_divergence(paths, centroid[:, None]).amax(1).flatten())
        matches.append((v.tokens == majority(v.dropped_logits.argmax(-1), centroid)).flatten())
    draft_js, path_js, matches = torch.cat(draft_js), torch.cat(path_js), torch.cat(matches)
    dispersed = draft_js <= path_js
    masks = (dispersed, matches & ~dispersed, ~(matches | dispersed))
    return [
        Divergence(dropout, case, *_share(mask), _mean(draft_js, mask), _mean(path_js, mask))
        for case, mask in zip(CASES, masks, strict=True)
    ]


def _share(mask: Tensor) -> tuple[int, float]:
    return int(mask.sum()), mask.double().mean().item()


def _mean(values: Tensor, mask: Tensor) -> float | None:
    return values[mask].double().mean().item() if mask.any() else None
