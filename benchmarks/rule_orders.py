"""How early every rule keeps a mismatch as its knob opens, from what both models say of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.dropped_heads import compared
from hf_lossy_assist.acceptors import DropMatch, Regret
from hf_lossy_assist.core.distributions import entropy, js_divergence, kl_divergence
from hf_lossy_assist.drafting.draft_ends import DEFAULT_NUM_TOKENS
from hf_lossy_assist.models.lm_head_hook import DROPOUTS
from hf_lossy_assist.training.examples import Examples
from hf_lossy_assist.training.judge_training import STRENGTHS, regressions
from hf_lossy_assist.training.validation import auc_of, cross, deal, learning_curve

RATES = DROPOUTS[1::3]
TRAINED = ("judge", "features alone", "judge with features")
LOCAL = np.geomspace(0.002, 20, 60)
ENTROPY = "fly, its entropy alone"
DIGITS = frozenset("0123456789")
OPERATORS = frozenset("+-*/=×÷%$^<>")
RATIO = "min_p, near_top, lenience, regret"
COMPOSED = (RATIO, "typical", "fsd")
"""The rules that are also composed with a refusal of mismatches in which either token has a digit, or an operator."""
Rows = dict[str, NDArray[np.floating]]


def scores(p: Tensor, q: Tensor, x: Tensor) -> dict[str, Tensor]:
    """Return ``(N,)`` by rule how early its knob keeps drafted tokens ``x`` ``(N,)``: the larger, the earlier.

    ``p`` and ``q`` ``(N, V)`` are the distributions of target and draft, of which ``x`` is the draft's likeliest token.
    Rules with one order share a line. A rule with two knobs has both scaled alike.
    """
    own, of_draft = (law.gather(-1, x[:, None]) for law in (p, q))
    (best, second), h = p.topk(2).values.unbind(-1), entropy(p)
    # The largest w with which no token has more of the mixture than x: above it, one that p prefers does.
    gap, lead = p - own, of_draft - q
    weight = torch.where(gap > 0, lead / (lead + gap), 1.0).amin(-1)
    top = p.topk(min(15, p.shape[-1])).values
    some = entropy(top / top.sum(-1, keepdim=True)) / math.log(top.shape[-1])
    return {
        RATIO: own[:, 0] / best,
        "typical": own[:, 0] / (0.3 * (-h).exp()).clamp(max=0.09),
        "topk": -(p > own).sum(-1).float(),
        "relaxed": own[:, 0] - best,
        "margin": torch.where(own[:, 0] >= second, (own[:, 0] / best).log(), -torch.inf),
        "fsd": -js_divergence(p, q),
        "ensemble": weight,
        ENTROPY: some,
    }


def features(p: Tensor, q: Tensor, x: Tensor, y: Tensor, words: Mapping[int, str]) -> Tensor:
    """Return ``(N, 33)`` quantities that cost no forward pass: of both distributions, and of the words x and y.

    ``y`` ``(N,)`` are the target's own tokens.
    """
    own, of_draft, best, answer = (
        law.gather(-1, of[:, None])[:, 0].clamp(min=1e-6).log() for law, of in ((p, x), (q, x), (p, y), (q, y))
    )
    laws = [
        js_divergence(p, q), kl_divergence(p, q).clamp(max=20), kl_divergence(q, p).clamp(max=20),
        own - p.amax(-1).log(), own, of_draft, best, answer, entropy(p), entropy(q),
        (p > p.gather(-1, x[:, None])).sum(-1).clamp(max=20).float(),
    ]  # fmt: skip
    kinds = []
    for a, b in zip((words[i] for i in x.tolist()), (words[i] for i in y.tolist()), strict=True):
        same = a.strip().lower() == b.strip().lower()
        kinds.append((*kinds_of(a), *kinds_of(b), same, len(a) - len(b)))
    return torch.cat([torch.stack(laws, -1).double(), torch.tensor(kinds, dtype=torch.float64)], dim=-1)


def kinds_of(word: str) -> tuple[float, ...]:
    """Return what a word is made of: digits, operators, letters, punctuation, brackets, blanks, its case and length."""
    return (
        bool(DIGITS & {*word}), bool(OPERATORS & {*word}), word.strip().isalpha(), not any(c.isalnum() for c in word),
        bool({*"()[]{}\\"} & {*word}), word.isspace(), "\n" in word, word[:1] == " ", word.strip()[:1].isupper(),
        len(word),
    )  # fmt: skip


def composed(order: Mapping[str, NDArray[np.floating]], refused: Mapping[str, NDArray[np.bool_]]) -> Rows:
    """Return by rule how early it keeps tokens if all that another rule has ``refused`` ``(N,)`` come last."""
    found = {}
    for word, mask in refused.items():
        for name in COMPOSED:
            found[f"{name}; {word}"] = np.unique(order[name], return_inverse=True)[1] - mask * len(mask)
        found[word] = -mask.astype(float)
    return found


def dropped(head: torch.nn.Module, states: Tensor, q: Tensor, x: Tensor, paths: int = 5) -> Tensor:
    """Return ``(N, R)`` whether DropMatch keeps tokens, for each dropout that it knows; all have the same masks."""
    uniform = torch.rand((len(x), paths, states.shape[-1]), generator=torch.Generator().manual_seed(0))
    kept = []
    for rate in RATES:
        mask = (uniform >= rate).to(states.dtype) / (1 - rate)
        kept.append(DropMatch(dropout=rate).keep(compared(head, states, q, x, mask))[:, 0])
    return torch.stack(kept, -1)


def spending(ratio: NDArray[np.floating], prompts: NDArray[np.int64], weights: NDArray[np.floating]) -> Rows:
    """Return ``(N, R)`` how often `regret` keeps tokens ``(N,)`` of texts from left to right, by its local regret.

    A mismatch stands at every place of a draft of five tokens. What was kept of its text before it, with the mismatches
    for which a label stands, has spent of the budget. The text is the one that was mined, and no round has too many.
    """
    rule, places = Regret(), np.arange(1, DEFAULT_NUM_TOKENS + 1)
    own = -np.log(ratio)
    kept = (own[:, None, None] <= LOCAL[:, None] * places).mean(-1)
    spent = np.zeros(len(LOCAL))
    for i, charge in enumerate(own):
        if i and prompts[i] != prompts[i - 1]:
            spent[:] = 0.0
        kept[i] *= spent + charge <= rule.total_regret
        spent += kept[i] * charge * weights[i]
    return kept


def unseen(examples: Examples, free: NDArray[np.floating]) -> tuple[Rows, dict[str, dict[str, float]]]:
    """Return by judge how early it keeps tokens, out of fold, and its learning curve.

    One judge reads the target's state, one free features, and one both.
    """
    both = replace(examples, states={**examples.states, "features": free.astype(np.float32)})
    state = "target_previous"
    judges = dict(zip(TRAINED, ([state], ["features"], [state, "features"]), strict=True))
    folds, grid = deal(both), regressions(STRENGTHS)
    found = {name: cross(grid, columns, both, folds) for name, columns in judges.items()}
    learned = {
        name: learning_curve(each.chosen, judges[name], both, folds, seed=0) | {"auc": auc_of(both, each.probabilities)}
        for name, each in found.items()
    }
    return {name: -each.probabilities for name, each in found.items()}, learned
