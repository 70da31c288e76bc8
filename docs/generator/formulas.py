"""What the page of rules has besides the rules' own docstrings: their formulas, and the settings that are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_RESIDUAL = r"\operatorname{norm}\left([p - q]_+\right)"
_BEST = r"\operatorname{argmax} p"
_TARGET = r"p; \qquad \text{greedy: } " + _BEST
_LOSSLESS = _RESIDUAL + r"; \qquad \text{greedy: } " + _BEST


@dataclass(frozen=True)
class Formula:
    """A rule in LaTeX.

    Attributes
    ----------
    keep
        Which drafted tokens x are kept.
    correction
        Where the token that replaces x is taken from.
    drawn
        Settings to draw the rule at; empty where it has none.
    do_sample
        Whether it is drawn for sampling, or for greedy decoding.
    """

    keep: str
    correction: str
    drawn: tuple[Mapping[str, Any], ...] = ({},)
    do_sample: bool = True


FORMULAS = {
    "lossless": Formula(
        r"u \le \frac{p(x)}{q(x)}; \qquad \text{greedy: } x = " + _BEST,
        _LOSSLESS,
    ),
    "dropmatch": Formula(
        r"\operatorname{JS}(q \,\|\, \bar P) \le \max_k \operatorname{JS}(P_k \,\|\, \bar P)"
        r"\ \text{ or } x \text{ is the majority of } y_1, \dots, y_K;"
        r"\qquad \text{naive: } x \in \{y_1, \dots, y_K\}",
        _TARGET,
        (
            {"criterion": "naive", "dropout": 0.1},
            {"criterion": "naive", "dropout": 0.3},
            {"criterion": "js", "dropout": 0.3},
        ),
        do_sample=False,
    ),
    "ears": Formula(
        r"\frac{p(x)}{q(x)} \ge \max\left(u - \beta\,(1 - \max p),\, 0\right)",
        _RESIDUAL,
        ({"beta": 0.1}, {"beta": 0.2}, {"beta": 1.0}),
    ),
    "topk": Formula(
        r"\left|\{v : p(v) > p(x)\}\right| < k \ \text{ and } \log p(x) \ge \log \max p - \text{tolerance}",
        _LOSSLESS,
        ({"k": 1}, {"k": 2}, {"k": 3, "tolerance": 2.0}),
        do_sample=False,
    ),
    "typical": Formula(
        r"p(x) > \min\left(\varepsilon,\ \delta\, e^{-H(p)}\right)",
        _TARGET,
        ({}, {"epsilon": 0.2}, {"epsilon": 0.5, "delta": 1.0}),
        do_sample=False,
    ),
    "relaxed": Formula(
        r"\left|\{v : p(v) > p(x)\}\right| < N \ \text{ and } p(x) \ge \max p - \Delta",
        _BEST,
        ({"top_n": 10, "delta": 0.2}, {"top_n": 10, "delta": 0.6}, {"top_n": 2, "delta": 0.6}),
        do_sample=False,
    ),
    "ensemble": Formula(
        r"u \le 1 - w + w\,\frac{p(x)}{q(x)}; \qquad \text{greedy: } x = \operatorname{argmax}(w\,p + (1 - w)\,q)",
        _RESIDUAL + r"; \qquad \text{greedy: } \operatorname{argmax}(w\,p + (1 - w)\,q)",
        ({"weight": 0.8}, {"weight": 0.5}),
    ),
    "thresholds": Formula(
        r"u \le \frac{p(x)}{t_\text{acc}} \ \text{ or } p(x) \ge t_\text{single};"
        r"\qquad \text{greedy: } x = \operatorname{argmax} p \ \text{ or } p(x) \ge t_\text{single}",
        r"\operatorname{norm}(p \text{ without } x); \qquad \text{greedy: } " + _BEST,
        ({}, {"threshold_single": 0.3}, {"threshold_acc": 0.5}),
    ),
    "near_top": Formula(
        r"p(x) \ge (1 - \alpha)\,\max p \ \text{ or } u \le \frac{p(x)}{q(x)}",
        _LOSSLESS,
        ({"alpha": 0.2}, {"alpha": 0.5}),
    ),
    "lenience": Formula(
        r"u \le \frac{p(x)}{\ell\, q(x)}; \qquad \text{greedy: } p(x) \ge \ell\,\max p",
        r"\operatorname{norm}\left([p - \ell q]_+\right); \qquad \text{greedy: } " + _BEST,
        ({"factor": 0.5}, {"factor": 0.3}),
    ),
    "fsd": Formula(
        r"D(p \,\|\, q) \le T, \qquad D \in \{\operatorname{JS}, \operatorname{KL}, \operatorname{TV}\}",
        _TARGET,
        ({"threshold": 0.02}, {"threshold": 0.1}, {"threshold": 0.1, "divergence": "kl"}),
    ),
    "fly": Formula(
        r"x \text{ matches, or } \frac{H(p_{\text{top } k})}{\ln k} \ge \theta"
        r" \text{ and the next } W - 1 \text{ drafted tokens match}",
        _LOSSLESS,
        ({}, {"theta": 0.6}, {"theta": 0.9}),
        do_sample=False,
    ),
    "cactus": Formula(
        r"u \le \frac{h(x)}{q(x)}, \qquad h(x) = \min\left(1,\ p(x) + \sqrt{2\delta\,p(x)\,(1 - p(x))}\right)",
        r"\operatorname{norm}\left([h - q]_+\right), \quad h(v) = p(v)\,\frac{1 - h(x)}{1 - p(x)} \text{ for } v \ne x",
        ({"delta": 0.01}, {"delta": 0.1}),
    ),
    "margin": Formula(
        r"x = \operatorname{argmax} p, \text{ or } x \text{ is second and } \frac{z_{(2)}}{z_{(1)}} > \theta;"
        r"\qquad \text{gap: } \log p_{(1)} - \log p_{(2)} < \text{gap}",
        _LOSSLESS,
        ({"gap": 0.5}, {"gap": 2.0}),
        do_sample=False,
    ),
    "regret": Formula(
        r"r_i \le g\,(\gamma - i), \quad \sum r \le B, \quad \text{at most } m \text{ mismatches a round};"
        r"\qquad r_i = \max z - z(x_i)",
        _BEST,
        ({}, {"local_regret": 1.0}, {"local_regret": 2.0}),
        do_sample=False,
    ),
    "judge": Formula(
        r"\text{the base rule keeps } x, \text{ or } \sigma(w \cdot h + b) < \tau",
        r"\text{the base rule's}",
        ({"threshold": 0.05}, {"threshold": 0.5}, {"threshold": 0.9}),
    ),
    "sprinter": Formula(
        r"\sigma(w \cdot h_\text{draft} + b) > \tau \text{ commits } x \text{ unseen; the target decides the first"
        r" that it does not}",
        r"\text{the base rule's; no bonus token}",
        ({"false_positive_rate": 0.2}, {"false_positive_rate": 0.5}, {"false_positive_rate": 0.8}),
    ),
}
"""For every rule of the package, in the registry's order."""
