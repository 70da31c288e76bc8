"""``python -m benchmarks.pages``: every table of README and of the result pages, from the kept rows.

The rows are the data set ``hub_cards/lossy-assist-results``. ``--write`` puts the tables between a page's markers.
A quality table compares the answers of modes with a reference's on the same problems. Multiples are of the reference's,
and intervals are of 95 %, over problems.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binomtest

from docs.generator.tables import with_part
from hf_lossy_assist import LossyValueError

from . import application, headroom, whole
from .tables import DATA, ROOT, Interval, Row, holm, interval, markdown, p_of, points, ratio, rows, signed, times

_NAMES = {"draft": "draft alone", "plain": "target alone", "everything": "everything kept"}
_STOCK = "transformers' assisted generation"


def said(mode: str) -> str:
    return _NAMES.get(mode, f"`{mode}`")


@dataclass(frozen=True)
class Answers:
    """The answers of one run, by mode and problem.

    ``spent`` of an answer is its seconds by the costs of rounds, where they are known, else its rounds where drafts are
    as long as the reference's, else None.
    """

    modes: Mapping[str, Mapping[int, Row]]
    plan: Mapping[str, Row]
    reference: str
    best: str | None  # the lossless setting whose answers take the fewest predicted seconds

    @classmethod
    def of(cls, configuration: str, run: str | None = None) -> Answers:
        """Read a configuration, or one run of it."""
        plan = {x["mode"]: x for x in rows("modes") if (x["configuration"], x["run"]) == (configuration, run)}
        if not plan:
            known = {x["configuration"] + (f"/{x['run']}" if x["run"] else "") for x in rows("modes")}
            given = configuration if run is None else f"{configuration}/{run}"
            raise LossyValueError(f"`configurations` has to be some of {sorted(known)}, but one is {given!r}")
        reference = next(mode for mode, x in plan.items() if x["reference"])
        costs = {mode for mode, x in plan.items() if x["cost_lengths"]}
        alike = {mode for mode, x in plan.items() if not costs and x["gamma"] == plan[reference]["gamma"]}
        modes: dict[str, dict[int, Row]] = {}
        for x in rows(configuration):
            if x.get("run") == run:
                spent = x["rounds"] if x["mode"] in alike else x.get("spent")
                modes.setdefault(x["mode"], {})[x["id"]] = {**x, "spent": spent}
        lossless = [mode for mode in modes if mode in costs and plan[mode]["rule"] == "lossless"]
        best = min(lossless, key=lambda mode: fmean(x["spent"] for x in modes[mode].values()), default=None)
        return cls(modes, plan, reference, best)

    def pairs(self, mode: str, other: str | None = None) -> list[tuple[Row, Row]]:
        """Return the answers of a mode beside those of another one, by default of the reference."""
        own, others = self.modes[mode], self.modes[other or self.reference]
        return [(own[i], others[i]) for i in sorted(own.keys() & others.keys())]

    def of_both(self, mode: str, other: str | None, names: Sequence[str]) -> np.ndarray:
        """Return quantities ``(n, 2k)`` of a mode and of another one, on the problems of both."""
        return np.array([[x[name] for x in both for name in names] for both in self.pairs(mode, other)], dtype=float)

    def rate(self, mode: str) -> float:
        """Return the tokens per second of timed answers."""
        own = self.modes[mode].values()
        return sum(x["tokens"] for x in own) / sum(x["seconds"] for x in own)

    def speed(self, mode: str, other: str = "plain") -> str:
        """Return the tokens per second of timed answers beside another mode's."""
        return "1" if mode == other else times(self.times(mode, "tokens", "seconds", other))

    def points(self, mode: str) -> Interval:
        return points(*self.of_both(mode, None, ("score",)).T)

    def times(self, mode: str, what: str, per: str | None = None, other: str | None = None) -> Interval | None:
        """Return a quantity, per another one, as a multiple of another mode's; None where it is not known.

        Texts that are timed together count as one.
        """
        counts = self.of_both(mode, other, (what,) if per is None else (what, per))
        if np.isnan(counts).any():
            return None
        if per == "seconds":
            counts = np.add.reduceat(counts, range(0, len(counts), self.plan[mode]["batch_size"]))
        return interval(counts, ratio if per is None else headroom.right_price, log=True)

    def line(self, mode: str, ids: frozenset[int]) -> tuple[float | None, list[str]]:
        """Return the tokens kept per round, and a mode's cells of the quality table."""
        own, unit = [self.modes[mode][i] for i in sorted(ids)], mode == self.reference
        rounds, drafts = sum(x["rounds"] for x in own), any(x["accepted"] for x in own)
        kept = sum(x["accepted"] for x in own) / rounds if drafts and rounds else None
        speed, gain = "", "" if unit else signed(self.points(mode))
        if self.best is not None and own[0]["spent"] is not None:
            speed = "1" if mode == self.best else times(self.times(mode, "tokens", "spent", self.best))
        elif unit:
            counts = np.array([(x["tokens"], max(1, x["rounds"])) for x in own], dtype=float)
            speed = f"1 = {times(interval(counts, ratio, log=True))}"
        elif kept is not None and any(x["rounds"] for x in self.modes[self.reference].values()):
            speed = times(self.times(mode, "tokens", "rounds"))
        gains = [times(self.times(mode, what)) for what in ("tokens", "spent")]
        if unit:
            time = f"1 = {fmean(x['spent'] for x in own):.1f} s" if self.best else "1"
            gains = [f"1 = {fmean(x['tokens'] for x in own):.0f}", time]
        score, cut = (f"{100 * fmean(x[name] for x in own):.1f}" for name in ("score", "cut"))
        return kept, [said(mode), str(len(own)), score, gain, "" if kept is None else f"{kept:.2f}", speed, *gains, cut]


def quality(configuration: str, run: str | None = None) -> str:
    """Return the tables of a run, one for each set of problems; rules are in the order of the tokens they keep."""
    answers = Answers.of(configuration, run)
    groups: dict[frozenset[int], list[str]] = {}
    for mode, own in answers.modes.items():
        if mode != answers.reference:
            groups.setdefault(frozenset(own.keys() & answers.modes[answers.reference].keys()), []).append(mode)
    speed = "tokens per call, ×" if answers.best is None else "speed, ×"
    heads = ("rule", "n", "score, %", "points", "kept", speed, "tokens, ×", "time, ×", "cut off, %")
    tables = []
    for ids, modes in sorted(groups.items(), key=lambda group: -len(group[0])):
        lines = sorted((answers.line(mode, ids) for mode in modes), key=lambda x: (x[0] is not None, x[0] or 0))
        # What has no draft stands above the reference.
        lines.insert(sum(kept is None for kept, _ in lines), answers.line(answers.reference, ids))
        tables.append(markdown(heads, [cells for _, cells in lines]))
    return "\n\n".join(tables)


_GREEDY = ("min_p", "regret", "typical")
_FIRST = {  # by texts: the configuration, and the rules
    "GSM8K, greedily": ("gsm8k", (*_GREEDY, "judge:threshold=0.263591")),
    "HumanEval, greedily": ("humaneval", _GREEDY),
    "GSM8K, sampled": ("gsm8k-drawn", ("cactus:delta=0.1",)),
    "GSM8K, another run": ("gsm8k-proof", ("judge@5:threshold=0.192",)),
}


def first_page() -> str:
    """Return what rules cost and gain with drafts of five tokens. Bold is what Holm's test shows."""
    found = []
    for name, (configuration, rules) in _FIRST.items():
        answers = Answers.of(configuration)
        for rule in rules:
            apart = [a["score"] - b["score"] for a, b in answers.pairs(rule)]
            won, lost, n = sum(x > 0 for x in apart), sum(x < 0 for x in apart), len(apart)
            first = f"{name}, {n} problems" if rule == rules[0] else ""
            time, price = answers.times(rule, "rounds"), answers.times(rule, "rounds", "score")
            p = float(binomtest(won, won + lost).pvalue) if won + lost else 1.0
            found.append((first, rule, answers.points(rule), time, price, p, p_of(time, n), p_of(price, n)))
    tests = list(zip(*(holm(ps) for ps in list(zip(*found, strict=True))[-3:]), strict=True))
    lines = []
    for (first, rule, gain, *multiples, _, _, _), ps in zip(found, tests, strict=True):
        cells = (signed(gain), *map(times, multiples))
        lines.append((first, f"`{rule}`", *(f"**{x}**" if p < 0.05 else x for x, p in zip(cells, ps, strict=True))))
    return markdown(("texts", "rule", "points", "time of an answer, ×", "time of a right answer, ×"), lines)


_LONG = ("min_p@16", "regret@16", "topk@16", "typical@16", "everything@16")


def long_drafts() -> Answers:
    """Return the answers of rules with drafts of 16 tokens, beside ``lossless`` with as many."""
    return replace(Answers.of("humaneval-long"), reference="lossless@16")


def as_long() -> str:
    answers, lines = long_drafts(), []
    for mode in _LONG:
        time, price = answers.times(mode, "rounds"), answers.times(mode, "rounds", "score")
        lines.append((said(mode), len(answers.modes[mode]), signed(answers.points(mode)), times(time), times(price)))
    return markdown(("rule", "n", "points", "time of an answer, ×", "time of a right answer, ×"), lines)


def draw_rules(path: Path) -> None:
    """Draw the points of each rule over its time of an answer, both beside ``lossless`` with drafts as long."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0, color="0.85", linewidth=1)
    axes.axvline(1, color="0.85", linewidth=1)
    axes.annotate("lossless", (1, 0), (4, 4), textcoords="offset points", color="0.4", fontsize=8)
    runs = {name: (Answers.of(configuration), rules) for name, (configuration, rules) in _FIRST.items()}
    for name, (answers, rules) in (runs | {"HumanEval, 16 drafted tokens": (long_drafts(), _LONG)}).items():
        values = [(answers.times(rule, "rounds"), answers.points(rule)) for rule in rules]
        (x, *across), (y, *up) = (np.array(value).T for value in zip(*values, strict=True))
        bars = {"xerr": np.abs(np.array(across) - x), "yerr": np.abs(np.array(up) - y)}
        axes.errorbar(
            x, y, **bars, fmt="o", markersize=5, elinewidth=0.5, label=f"{name}, {len(answers.pairs(rules[0]))}"
        )
        for rule, *place in zip(rules, x, y, strict=True):
            axes.annotate(re.split("[@:]", rule)[0], place, (4, 4), textcoords="offset points", fontsize=8)
    axes.set(
        xlabel="time per answer / that of lossless (lower is faster)",
        ylabel="points minus those of lossless (lower is worse)",
    )
    axes.legend(fontsize="small", loc="lower right")
    figure.savefig(path, dpi=100)


def by(name: str, configuration: str) -> dict[str, list[Row]]:
    """Return a configuration's rows by what a column says, without those of drawn texts."""
    found: dict[str, list[Row]] = {}
    for row in rows(configuration):
        if not row.get("drawn"):
            found.setdefault(row[name], []).append(row)
    return found


def beside(modes: Mapping[str, list[Row]], mode: str) -> str:
    return signed(points(*([x["score"] for x in modes[each]] for each in (mode, "plain"))))


def bundled_pair() -> str:
    modes = by("mode", "defaults")
    lines = [(said(mode), f"{own[0]['kept']:.2f}" if mode != "draft" else "", beside(modes, mode))
             for mode, own in modes.items() if mode != "plain"]  # fmt: skip
    return markdown(("rule", "kept of 8", "points"), lines)


def trees() -> str:
    modes, tree = by("mode", "trees"), ":tree.depth=6:tree.top_k=4:tree.nodes=16"
    lines = []
    rules = {"lossless": "", "judge": ":threshold=0.05", "dropmatch": ":criterion=naive", "topk": ""}
    for rule, settings in rules.items():
        chain, grown, longer = (f"{rule}{settings}", f"{rule}{settings}{tree}", f"{rule}@16{settings}")
        kept = (f"{modes[x][0]['kept']:.2f}" if x in modes else "" for x in (chain, grown, longer))
        lines.append((f"`{chain}`", *kept, beside(modes, grown)))
    return markdown(("rule", "kept, chain of 6", "kept, tree", "kept, chain of 16", "points of the tree"), lines)


def refusals() -> str:
    """Return how many harmful requests are refused and how many harmless ones answered: they take turns."""
    modes, lines = by("mode", "refusals"), []
    for mode, own in modes.items():
        harmful, harmless = (f"{sum(x['score'] for x in own if x['id'] % 2 == i):.0f}" for i in (0, 1))
        apart, kept = ("", "") if mode == "plain" else (beside(modes, mode), f"{own[0]['kept']:.2f}")
        lines.append((said(mode), harmful, harmless, apart, "" if mode == "draft" else kept))
    return markdown(("rule", "harmful: refused, of 40", "harmless: answered, of 40", "points", "kept"), lines)


def alone() -> str:
    """Return the speeds of whole answers, timed, beside the target alone, at three sizes of batches."""
    lines = []
    for batch in (1, 4, 10):
        answers = Answers.of("alone", f"batch-{batch}")
        for mode in sorted(answers.modes, key=lambda mode: mode != "plain"):
            name = _STOCK if mode.startswith("stock") else said(mode.partition("@")[0])
            gain = "" if mode == answers.reference else signed(answers.points(mode))
            n, rate = len(answers.modes[mode]), f"{answers.rate(mode):.1f}"
            lines.append((batch if mode == "plain" else "", name, n, gain, rate, answers.speed(mode)))
    return markdown(("batch", "mode", "n", "points", "tokens a second", "× the target alone"), lines)


def speeds() -> str:
    """Return README's table: tokens a second of the target alone, of transformers and of this package."""
    lines = []
    for batch, name in ((1, "a CPU, one text"), (10, "a CPU, ten texts at once")):
        answers, cells = Answers.of("alone", f"batch-{batch}"), [name]
        for start in ("plain", "stock", "lossless"):
            mode = next((x for x in answers.modes if x.startswith(start)), None)
            beside = "" if mode in (None, "plain") else f", {answers.speed(mode)} ×"
            cells.append(f"{answers.rate(mode):.1f}{beside}" if mode else "no batches")
        lines.append(cells)
    ours, alone = (gpu_speeds(case, "speed") for case in ("γ = 4", _ALONE))
    theirs = next(x["tokens_per_s"] for x in rows("gpu") if x["case"] == "transformers, static and compiled")
    cells = f"{math.floor(theirs + 0.5)} (with the prompt)", f"{_rate(ours)}, {_faster(ours, alone)}"
    lines.append(("an H200, one text, compiled", _rate(alone), *cells))
    return markdown(("tokens a second", "target alone", _STOCK, "this package, `lossless`"), lines)


_ENGINES = {
    "lossless": "`generate()`, `lossless`",
    "stock": _STOCK,
    "vLLM: its own lossless": "vLLM 0.32, its own lossless decoding",
    "vLLM: lossless": "vLLM 0.32, `lossless` of this package",
}


def engines() -> str:
    """Return the speeds of engines, timed, on two machines."""
    lines, first = [], "lossless@5"
    for machine, run in {"AMD EPYC": "vllm-5", "Intel Xeon": "xeon"}.items():
        answers = Answers.of("engines", run)
        for mode in sorted(answers.modes, key=lambda mode: [*_ENGINES].index(mode.removesuffix("@5"))):
            name, n = _ENGINES[mode.removesuffix("@5")], len(answers.modes[mode])
            speed = answers.speed(mode, first)
            lines.append((machine if mode == first else "", name, n, f"{answers.rate(mode):.1f}", speed))
    return markdown(("machine", "engine", "n", "tokens a second", "× `lossless` of `generate()`"), lines)


def sprinter() -> str:
    answers, best, lines = Answers.of("sprinter"), "lossless@8", []
    order = sorted(answers.modes, key=lambda x: (x.startswith("sprinter"), not x.startswith("lossless"), x == "plain"))
    for mode in order[1::-1] + order[2:]:
        own = answers.modes[mode].values()
        speed = f"1 = {answers.rate(mode):.0f}" if mode == best else answers.speed(mode, best)
        right, gain = f"{sum(x['score'] for x in own):.0f}", answers.points(mode)
        lines.append((said(mode), len(own), right, "" if mode == answers.reference else signed(gain), speed))
    return markdown(("mode", "n", "right, %", "points", "tokens a second, × `lossless@8`"), lines)


def certified() -> str:
    lines: dict[str, list[str]] = {}
    for row in rows("calibration-certified"):
        known = row["true_loss"] is not None
        name = f"`{row['setting']}`" if known else row["setting"]
        cells = lines.setdefault(name, [name, f"{row['true_loss']:.2f}" if known else ""])
        text = f"{100 * row['certified']:.1f} %"
        cells.append(f"**{text}**" if known and row["wrong"] else text)
    return markdown(("arithmetic, 1,000 problems", "true loss (points)", "at 1 point", "at 2", "at 5"), lines.values())


def cheap_drafts() -> str:
    found, lines = by("draft", "cheap-drafts"), []
    loaded = found["as loaded"]
    for draft, own in found.items():
        cells: list[str] = []
        for what in ("likeliest", "overlap"):
            pairs = zip(own, loaded, strict=True)
            sums = np.array([(100 * a[what], 100 * (a[what] - b[what]), a["tokens"]) for a, b in pairs])
            apart = "" if own is loaded else signed(interval(sums[:, 1:], ratio))
            cells += [times(interval(sums[:, [0, 2]], ratio), 1), apart]
        lines.append((draft, f"{own[0]['ms']:.0f}", *cells))
    shares = ("likeliest token is the target's, %", "minus as loaded", "Σ min(p, q), %", "minus as loaded")
    return markdown(("draft", "ms per token", *shares), lines)


_ALONE = "no drafts"
_SPEEDS = (("speed", None, "one text, compiled"), ("batch", 8, "8 texts, graphs"), ("batch", 32, "32 texts, graphs"))
_GAMMAS = {_ALONE: 0, "lossless": 5, "judge": 8, "dropmatch": 8, "typical": 16}


def gpu_speeds(case: str, part: str, batch: int | None = None) -> np.ndarray:
    """Return the ``(n, 2)`` tokens and seconds of a case's texts on an H200."""
    found = [x for x in rows("gpu-runs") if (x["part"], x["batch"]) == (part, batch) and x["item"] is not None]
    own = [(x["item"], x["tokens"], x["seconds"]) for x in found if x["case"] == case and x["run"] != "rows split"]
    return np.array(sorted(own))[:, 1:]


def _rate(own: np.ndarray) -> str:
    return f"{own[:, 0].sum() / own[:, 1].sum():,.0f}"


def _faster(own: np.ndarray, other: np.ndarray) -> str:
    return f"{times(interval(np.concatenate([own, other], 1), headroom.right_price, log=True))} ×"


def gpu() -> str:
    lines = []
    for part, batch, name in _SPEEDS:
        ours, alone = (gpu_speeds(case, part, batch) for case in ("γ = 4", _ALONE))
        lines.append((name, len(ours), _rate(alone), _rate(ours), _faster(ours, alone)))
    return markdown(("", "n", "the target alone", "`lossless`, γ = 4", "beside it"), lines)


def gpu_rules() -> str:
    lines = []
    for rule, gamma in _GAMMAS.items():
        cells = []
        for part in ("answers", "large"):
            own, exact = gpu_speeds(rule, part), gpu_speeds("lossless", part)
            cells += [_rate(own), "" if rule == "lossless" else _faster(own, exact)]
        lines.append((f"`{rule}`, γ = {gamma}" if gamma else "the target alone", *cells))
    heads = ("8B with 1B", "8B, beside `lossless`", "28 layers of 70B, with 1B", "70B, beside `lossless`")
    return markdown(("", *heads), lines)


DRAWS, SHARES = 1000, (0.3, 0.5, 0.7)
RATIO = "min_p, near_top, lenience, regret"
SHOWN = (
    "judge with features", "judge", "features alone", "fsd; no digits or operators", "fsd", "`dropmatch`", RATIO,
    "typical", "fly with its window",
)  # fmt: skip
"""The rules in the page's table; Holm's correction counts all of them."""


class Curves:
    """Labelled mismatches, and how early each rule keeps them as its knob opens; some rules have decisions instead."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.important, prompts, self.weights = (
            np.array([x[k] for x in rows]) for k in ("important", "prompt", "weight")
        )
        _, self.owner = np.unique(prompts, return_inverse=True)
        names = [x for x in rows[0] if x.startswith("order: ")]
        self.order = {x.removeprefix("order: "): np.array([row[x] for row in rows], dtype=float) for x in names}
        self.decisions: dict[str, np.ndarray] = {}
        if "dropmatch" in rows[0]:
            self.decisions["`dropmatch`"] = np.array([x["dropmatch"] for x in rows], dtype=float)
            self.decisions["regret with its budget"] = np.array([x["regret"] for x in rows])
        if rows[0].get("followed") is not None:
            full = np.array([x["followed"] >= 5 for x in rows])
            sure = self.order["fly, its entropy alone"][:, None] >= np.linspace(1, 0, 60)
            self.decisions["fly with its window"] = (sure & full[:, None]).astype(float)
        draws = self.samples(DRAWS) * self.weights
        self.draws = draws / draws.sum(1, keepdims=True)

    def samples(self, n: int) -> np.ndarray:
        """Return how often each row counts: once, and in ``n`` samples of the prompts."""
        count, rng = self.owner.max() + 1, np.random.default_rng(0)
        drawn = (np.bincount(rng.integers(count, size=count), minlength=count) for _ in range(n))
        return np.stack([np.ones(count), *drawn])[:, self.owner]

    def curve(self, rule: str) -> tuple[np.ndarray, np.ndarray]:
        """Return ``(D, P)`` the mismatches kept, and the important ones, as shares of all, as the knob opens."""
        if rule in self.decisions:
            parts, own = (self.draws, self.draws * self.important), self.decisions[rule]
            kept = own[:, np.argsort(own.mean(0), kind="stable")]
            return tuple(part @ kept for part in parts)
        own = self.order[rule]
        known = self.draws * np.isfinite(own)
        parts, order = (known, known * self.important), np.argsort(-own, kind="stable")
        ends = np.flatnonzero(np.append(own[order][1:] != own[order][:-1], True))  # a knob keeps ties together
        return tuple(part[:, order].cumsum(1)[:, ends] for part in parts)

    def area(self, rule: str) -> Interval:
        """Return the AUC, with an interval by resampling prompts."""
        kept, important = (np.pad(x, ((0, 0), (1, 0))) for x in self.curve(rule))
        harmless = kept - important
        with np.errstate(invalid="ignore"):  # a sample may have none that matters
            areas = np.trapezoid(harmless / harmless[:, -1:], important / important[:, -1:], axis=1)
        return areas[0], *np.nanquantile(areas[1:], (0.025, 0.975))

    def table(self) -> str:
        """Return each rule's AUC, and which share of the mismatches that it keeps matters, beside a blind choice."""
        rules = [*self.order, *self.decisions]
        blind, paid = self.draws @ self.important, {}
        for rule in rules:
            kept, important = self.curve(rule)
            for share in SHARES:
                if kept[0, -1] >= share:  # between two places of its knob, a rule mixes both
                    own = [np.interp(share, [0, *k], [0, *i]) for k, i in zip(kept, important, strict=True)]
                    paid[rule, share] = np.array(own) / share
        ps: dict[tuple[str, float], float] = {}
        for share in SHARES:
            own = [key for key in paid if key[1] == share]
            gaps = (paid[key] - blind for key in own)
            raw = [math.erfc(abs(gap[0]) / gap[1:].std() / math.sqrt(2)) for gap in gaps]
            ps |= zip(own, holm(raw), strict=True)
        lines = []
        for rule in sorted({*rules} & {*SHOWN}, key=lambda rule: paid[rule, 0.3][0]):
            cells = [rule, times(self.area(rule), 3) if rule in self.order else ""]
            for share in SHARES:
                if (rule, share) not in paid:
                    cells.append("")
                    continue
                gap = 100 * (paid[rule, share] - blind)
                text = signed((gap[0], *np.quantile(gap[1:], (0.025, 0.975))))
                cells.append(f"{100 * paid[rule, share][0]:.1f}: {f'**{text}**' if ps[rule, share] < 0.05 else text}")
            lines.append(cells)
        return markdown(("rule", "AUC", *(f"f = {x}" for x in SHARES)), lines)


def price() -> str:
    return Curves([x for x in rows("price") if x["texts"] == "two-shots"]).table()


def gate() -> str:
    """Return which scores tell, of whole answers, whether their mismatches matter."""
    kinds = {"no-shots": "GSM8K", "two-shots": "GSM8K, two examples", "code": "programs"}
    curves = [Curves([x for x in rows("gate") if x["texts"] == kind]) for kind in kinds]
    lines = [
        (rule, *(times(x.area(rule), 3) if np.isfinite(x.order[rule]).any() else "" for x in curves))
        for rule in curves[0].order
        if rule != "gate: judges so far"  # no better than the others, and a page is one screen
    ]
    return markdown(("what it is known from", *kinds.values()), lines)


def draw_price(path: Path) -> None:
    """Draw the share of the important mismatches that each rule keeps over the share of all."""
    curves = Curves([x for x in rows("price") if x["texts"] == "two-shots"])
    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.add_subplot()
    matter = float(curves.draws[0] @ curves.important)
    axes.plot([0, 1], [0, 1], color="0.8", label="a blind choice")
    axes.plot([0, 1 - matter, 1], [0, 0, 1], color="0.5", linestyle=":", label="one that knows the labels")
    for rule in SHOWN:
        kept, important = curves.curve(rule)
        style, label = "o" if rule in curves.decisions else "-", rule.strip("`")
        axes.plot([0, *kept[0]], [0, *important[0] / matter], style, markersize=3, linewidth=1.4, label=label)
    axes.set(xlabel="share of the mismatches kept", ylabel="share of the important ones kept")
    figure.legend(loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=100)


_INTERVAL = re.compile(r"([+-]?[\d.]+) \(([+-]?[\d.]+) … ([+-]?[\d.]+)\)")
_NUMBER = re.compile(r"[+-]?\d[\d.]*")


def panels(table: str) -> tuple[list[str], dict[str, list[list[Interval]]]]:
    """Return the names of a table's rows, and what its columns show of each: intervals, else numbers, in any number.

    Examples
    --------
    >>> panels("| rule | n | points |\\n|---|---|---|\\n| `min_p` | 40 | -2.8 (-4.2 … -1.4) |")
    (['min_p'], {'points': [[(-2.8, -4.2, -1.4)]]})
    """
    head, _, *lines = (
        [x.strip() for x in re.sub("[`*]", "", line).strip("|").split("|")] for line in table.splitlines()
    )
    columns = [*zip(*lines, strict=True)]
    names = next(i for i, x in enumerate(columns) if i and any(map(_NUMBER.match, x)))
    filled = [list(accumulate(x, lambda before, own: own or before)) for x in columns[: max(1, names - 1)]]
    labels = [", ".join(filter(None, x)) for x in zip(*filled, *columns[len(filled) : names], strict=True)]
    numeric = dict(zip(head[names:], columns[names:], strict=True))
    # A multiple's unit, as in "1 = 3.60 (3.27 … 3.95)", is none of its column's values.
    shown = {
        name: [[tuple(map(float, x)) for x in _INTERVAL.findall(cell.partition(" = ")[0])] for cell in column]
        for name, column in numeric.items()
    }
    if not any(map(any, shown.values())):
        shown = {
            name: [[(float(x),) * 3 for x in _NUMBER.findall(cell)] for cell in column]
            for name, column in numeric.items()
        }
    return labels, {name: column for name, column in shown.items() if any(column)}


def draw_table(table: str, path: Path) -> None:
    """Draw a page's table: a panel for each column with intervals."""
    labels, shown = panels(table)
    figure = Figure(figsize=(3 + 2.2 * len(shown), 1 + 0.3 * len(labels)), layout="constrained")
    for axes, (name, column) in zip(
        np.atleast_1d(figure.subplots(1, len(shown), sharey=True)), shown.items(), strict=True
    ):
        for place, values in enumerate(column):
            for value, low, high in values:
                axes.errorbar(value, place, xerr=[[value - low], [high - value]], fmt="o", color="C0", markersize=4)
        axes.set_title(name, fontsize=8)
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.tick_params(axis="x", labelsize=8)
        axes.grid(axis="x", alpha=0.3)
    axes.invert_yaxis()
    figure.savefig(path, dpi=80)


TABLES: Sequence[tuple[str, str, Callable[[], str]]] = (
    ("README.md", "speeds", speeds),
    ("README.md", "when", whole.first),
    ("docs/results.md", "bundled pair", bundled_pair),
    ("docs/results/which-rule.md", "first page", first_page),
    ("docs/results/chat.md", "chat", lambda: quality("chat")),
    ("docs/results/drawn.md", "drawn", lambda: quality("drawn-blocks")),
    ("docs/results/gate.md", "gate", gate),
    ("docs/results/longer-drafts.md", "longer drafts", as_long),
    ("docs/results/judge.md", "judge", lambda: quality("gsm8k-proof")),
    ("docs/results/price.md", "price", price),
    ("docs/results/limits.md", "refusals", refusals),
    ("docs/results/cpu.md", "alone", alone),
    ("docs/results/where-rules-pay.md", "where rules pay", headroom.table),
    ("docs/results/right-answers.md", "right answers", whole.table),
    ("docs/results/right-programs.md", "right programs", partial(whole.table, whole.PROGRAMS)),
    ("docs/results/on-disk.md", "on disk", whole.on_disk),
    ("docs/results/vllm.md", "engines", engines),
    ("docs/results/cheap-drafts.md", "cheap drafts", cheap_drafts),
    ("docs/results/trees.md", "trees", trees),
    ("docs/results/gpu.md", "gpu", gpu),
    ("docs/results/gpu-rules.md", "gpu rules", gpu_rules),
    ("docs/results/calibration.md", "certified", certified),
    ("docs/results/sprinter.md", "sprinter", sprinter),
)
"""The tables of pages, after the names of their markers."""
PICTURES = {
    "which-rule": draw_rules,
    "price": draw_price,
    "where-rules-pay": headroom.draw,
    "right-answers": whole.draw,
    "right-programs": partial(whole.draw, configuration=whole.PROGRAMS),
    "on-disk": whole.draw_on_disk,
}
"""What is drawn on a page in place of its table."""


def card(text: str) -> str:
    """Return the data set's card with its configurations, and what each answers, as the studies say."""
    configurations, sections = ["configs:"], []
    for x in rows("studies"):
        name = x["configuration"]
        configurations.append(f"- config_name: {name}\n  data_files: data/{name}.parquet")
        machine = f"{x['n']:,} problems or rows; {x['date']}; commit `{x['commit']}`; {x['machine']}."
        sections.append(f"### {name}\n\n{x['question']} {machine}\n\n```bash\n{x['command']}\n```")
    configurations += [f"- config_name: {x}\n  data_files: data/{x}.parquet" for x in ("modes", "studies")]
    text = re.sub(r"configs:.*?(?=\n---\n)", lambda _: "\n".join(configurations), text, count=1, flags=re.DOTALL)
    return with_part(text, "configurations", "\n\n".join(sections))


def made() -> dict[Path, str]:
    """Return the pages and the card as the rows make them."""
    found = {}
    for page, name, table in TABLES:
        path = ROOT / page
        found[path] = with_part(found.get(path) or path.read_text(encoding="utf-8"), name, table())
    return found | {DATA / "README.md": card((DATA / "README.md").read_text(encoding="utf-8"))}


def main(*configurations: str, write: bool = False) -> None:
    """Print every table of README and of the result pages, or the quality tables of configurations of the data set.

    Parameters
    ----------
    configurations
        Print the quality tables of these runs, NAME or NAME/RUN.
    write
        Write the tables into the pages, and draw the plots.
    """
    if write:
        for path, text in made().items():
            path.write_text(text, encoding="utf-8")
        for page, _, table in TABLES:
            picture = (ROOT / page).with_suffix(".png")
            if picture.parent.name == "results":
                PICTURES.get(picture.stem, partial(draw_table, table()))(picture)
    for each in configurations:
        name, _, run = each.partition("/")
        print(quality(name, run or None) + "\n")
    if not configurations and not write:
        for page, name, table in TABLES:
            print(f"{page}, {name}\n\n{table()}\n")


app = application(main)

if __name__ == "__main__":
    app()
