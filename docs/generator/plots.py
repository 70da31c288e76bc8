"""The pictures of the page of rules: how often each rule keeps a token of three, computed by its own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from hf_lossy_assist import JudgeHead, acceptors, theory
from hf_lossy_assist.acceptors.registry import Formula
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.pairs import hub_cards

GRID = torch.linspace(0.005, 0.995, 199)
_DRAWS = 200
_Q = torch.tensor([0.5, 0.3, 0.2])
_SAMPLING = "p(x), where q(x) = 0.5"
_GREEDY = "p(x), where the likeliest other token has 0.7 · (1 − p(x))"

Curve = Callable[[str, Formula, Mapping[str, Any]], Tensor]


class Quantiles(Randomness):
    """Evenly spread numbers in place of drawn ones, so that a mean over positions is a probability."""

    def uniform(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Return the same numbers for every row."""
        return ((torch.arange(shape[-1], device=device) + 0.5) / shape[-1]).expand(shape)


def draw(name: str, path: Path) -> None:
    """Draw how often a rule keeps x, at some of its settings and beside the lossless rule, as an SVG file."""
    formula = acceptors.REGISTRY[name].formula
    curve, xlabel = _SPECIAL.get(name, (kept, _SAMPLING if formula.do_sample else _GREEDY))
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure = Figure(figsize=(6, 3.2), layout="constrained")
        axes = figure.subplots()
        if curve is kept and name != "lossless":
            axes.plot(GRID, kept("lossless", formula, {}), color="0.6", linestyle="--", label="lossless")
        for settings in formula.drawn:
            axes.plot(GRID, curve(name, formula, settings), label=_label(settings) or _LABELS.get(name, "defaults"))
        axes.set(xlabel=xlabel, ylabel="tokens per run" if name == "sprinter" else "probability that x is kept")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        figure.savefig(path, metadata={"Date": None})


def kept(name: str, formula: Formula, settings: Mapping[str, Any]) -> Tensor:
    """Return how often a rule keeps x at every p(x) of the grid: a mean over u, or 0 or 1 for a greedy rule."""
    rule = acceptors.REGISTRY[name](**settings)
    return rule.keep(_verification(_DRAWS if formula.do_sample else 1, formula.do_sample)).float().mean(-1)


def _verification(positions: int, do_sample: bool, **more: Any) -> Verification:
    """Return ``positions`` scores of the same token x, 0, in one row per p(x)."""
    logits = _distribution(GRID).log()[:, None].expand(-1, positions + 1, -1)
    tokens = torch.zeros(len(GRID), positions, dtype=torch.long)
    q = _Q.log().expand(len(GRID), positions, -1)
    return Verification(tokens, logits, q, do_sample, Quantiles(), **more)


def _distribution(p_x: Tensor) -> Tensor:
    return torch.stack([p_x, 0.7 * (1 - p_x), 0.3 * (1 - p_x)], dim=-1)


def _under_dropout(name: str, formula: Formula, settings: Mapping[str, Any], width: int = 64) -> Tensor:
    """Return how often DropMatch keeps x, over draws of the masks, with a head whose clean logits are log p."""
    rule = acceptors.REGISTRY[name](**settings)
    randomness = Randomness(seed=0)
    # A head whose clean logits are log p: its rows differ in how they spread them over the units.
    rows = torch.randn(3, width, generator=randomness.generator(torch.device("cpu")))
    rows = rows - rows.mean(-1, keepdim=True)
    masks = randomness.keep_mask((rule.num_paths, _DRAWS, width), rule.dropout, rows)
    noise = (masks @ rows.T) / width**0.5
    clean = _distribution(GRID).log()[:, None, None] * masks.mean(-1)[None, :, :, None]
    dropped = clean + noise[None]
    v = _verification(_DRAWS, False, dropped_logits=dropped, centroid_logits=dropped.mean(1))
    return rule.keep(v).float().mean(-1)


def _before_matches(name: str, formula: Formula, settings: Mapping[str, Any]) -> Tensor:
    """Return whether FLy keeps x where the rest of its window matches."""
    rule = acceptors.REGISTRY[name](**settings)
    v = _verification(rule.window, formula.do_sample)
    logits = v.logits.clone()
    logits[:, 1:] = _distribution(torch.tensor(0.99)).log()
    return rule.keep(Verification(v.tokens, logits)).float()[:, 0]


def _by_a_head(name: str, formula: Formula, settings: Mapping[str, Any]) -> Tensor:
    """Return how often the judge keeps a token with p(x) = 0.2, by the bundled head's probability."""
    head = JudgeHead.from_pretrained(hub_cards() / "arithmetic-judge")
    states = (GRID.logit() - head.bias)[:, None] * head.weight / head.weight.square().sum()
    p = _distribution(torch.tensor(0.2)).log().expand(len(GRID), _DRAWS + 1, -1)
    v = _verification(_DRAWS, True, hidden=states[:, None].expand(-1, _DRAWS + 1, -1))
    rule = acceptors.REGISTRY[name](head, **settings)
    return rule.keep(Verification(v.tokens, p, v.draft_logits, True, Quantiles(), hidden=v.hidden)).float().mean(-1)


def _run_lengths(name: str, formula: Formula, settings: Mapping[str, Any]) -> Tensor:
    """Return how many tokens SPRINTER commits in a run whose first eight are acceptable."""
    return theory.sprinter_expected_run_length(GRID, settings["false_positive_rate"], r=8, max_draft=64)


def _label(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.replace('_', ' ')} = {value}" for key, value in settings.items())


_LABELS = {"lossless": "lossless"}
_SPECIAL: Mapping[str, tuple[Curve, str]] = {
    "dropmatch": (_under_dropout, _GREEDY),
    "fly": (_before_matches, _GREEDY),
    "judge": (_by_a_head, "P(important) by the bundled head, where p(x) = 0.2 and q(x) = 0.5"),
    "sprinter": (_run_lengths, "the head's true-positive rate, where the first 8 drafted tokens are acceptable"),
}
"""The curves of rules that read more than p, q and x, each with the label of its x axis."""
