"""``python -m benchmarks.rule_curves``: of the mismatches that a rule keeps, which share changes the answer?

``read`` asks both models about every mismatch that ``mine --labels judge`` has labelled, and writes a line for each.
``show`` puts every rule on one curve, over its own knob, and compares them with a blind choice. ``choose`` and
``transfer`` ask which rule without training and which judge hold elsewhere.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import PairName
from benchmarks.mined_labels import labels_of_mismatches
from benchmarks.quality_table import holm
from benchmarks.rule_orders import (
    DIGITS,
    ENTROPY,
    OPERATORS,
    RATIO,
    TRAINED,
    Rows,
    composed,
    dropped,
    features,
    scores,
    spending,
    unseen,
)  # fmt: skip
from hf_lossy_assist.acceptors import Fly
from hf_lossy_assist.cli.console import CleanCommand, Console, limit_threads, progress
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.training.examples import Examples, read_judged
from hf_lossy_assist.training.judge_training import STRENGTHS, regressions
from hf_lossy_assist.training.validation import area_of, auc_of, cross, deal, fit, gain_of, interval

_ROWS = 64
_DRAWS = 1000
BUDGET = "regret with its budget"
UNSURE = np.linspace(1, 0, 60)
WINDOW = "fly with its window"
_AREA, _GAIN = "{:.3f} ({:.3f} … {:.3f})", "{:+.3f} ({:+.3f} … {:+.3f})"
SHARES = (0.3, 0.5, 0.7)
"""The shares of the mismatches kept at which rules are compared."""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of mismatches, which ``read`` has written."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows of mismatches."""
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)


@dataclass(frozen=True, eq=False)
class Curves:
    """The mismatches of problems, and how early each rule keeps them; some rules have decisions instead."""

    examples: Examples
    order: Rows
    decisions: Rows  # ``(N, R)``, by dropout, local regret or threshold

    @classmethod
    def read(cls, path: Path) -> Curves:
        """Read what ``read`` has written."""
        rows = read_rows(path)
        important, prompts, weights, solved = (
            np.array([row[name] for row in rows]) for name in ("important", "prompt", "weight", "solved")
        )
        states = {"features": np.array([row["features"] for row in rows], dtype=np.float32)}
        examples = Examples(states, important, prompts, weights=weights, solved=solved)
        order = {name: np.array([row["order"][name] for row in rows], dtype=float) for name in rows[0]["order"]}
        dropmatch = np.array([row["dropmatch"] for row in rows], dtype=float)
        decisions = {"dropmatch": dropmatch, BUDGET: spending(order[RATIO], prompts, weights)}
        if "followed" in rows[0]:
            full = np.array([row["followed"] >= Fly().window - 1 for row in rows])
            decisions[WINDOW] = ((order[ENTROPY][:, None] >= UNSURE) & full[:, None]).astype(float)
        return cls(examples, order, decisions)

    def where(self, mask: NDArray[np.bool_]) -> Curves:
        """Return the curves of some of the mismatches."""
        order, decisions = ({name: own[mask] for name, own in of.items()} for of in (self.order, self.decisions))
        return Curves(self.examples.where(mask), order, decisions)

    @cached_property
    def draws(self) -> NDArray[np.float64]:
        """``(D, N)`` weights: first all problems once, then bootstrap samples of problems; each row's sum is 1."""
        _, owner = np.unique(self.examples.prompts, return_inverse=True)
        count, rng = owner.max() + 1, np.random.default_rng(0)
        samples = (np.bincount(rng.integers(count, size=count), minlength=count) for _ in range(_DRAWS))
        weights = np.stack([np.ones(count), *samples])[:, owner] * self.examples.weights
        return weights / weights.sum(1, keepdims=True)

    @property
    def blind(self) -> NDArray[np.float64]:
        """``(D,)`` the share of all mismatches that matter: of those that a blind choice keeps."""
        return self.draws @ self.examples.labels

    @cached_property
    def curves(self) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """By rule ``(D, P)`` the mismatches kept, and the important ones, as shares of all, as the knob opens."""
        important, found = self.draws * self.examples.labels, {}
        for name, own in self.order.items():
            order = np.argsort(-own, kind="stable")
            ends = np.flatnonzero(np.append(own[order][1:] != own[order][:-1], True))  # a knob keeps ties together
            found[name] = tuple(part[:, order].cumsum(1)[:, ends] for part in (self.draws, important))
        for name, own in self.decisions.items():
            kept = own[:, np.argsort(own.mean(0), kind="stable")]
            found[name] = tuple(part @ kept for part in (self.draws, important))
        return found

    def paid(self, rule: str, share: float) -> NDArray[np.float64] | None:
        """Return ``(D,)`` the share of the kept mismatches that matter, where a rule keeps a ``share`` of all.

        Between two places of its knob, a rule mixes both. None where no place keeps as many.
        """
        kept, important = self.curves[rule]
        if kept[0, -1] < share:
            return None
        return np.array([np.interp(share, [0, *k], [0, *i]) for k, i in zip(kept, important, strict=True)]) / share

    def rows(self) -> Iterator[list[str]]:
        """Yield a row for each rule: its AUC, and at each share what it pays and how far that is from a blind choice.

        **Bold** is shown: p < 0.05 after Holm's correction for the rules, at each share.
        """
        paid = {rule: [self.paid(rule, share) for share in SHARES] for rule in self.curves}
        apart = {rule: [None if x is None else x - self.blind for x in own] for rule, own in paid.items()}
        shown: dict[tuple[str, int], bool] = {}
        for i in range(len(SHARES)):
            rules = [rule for rule in apart if apart[rule][i] is not None]
            ps = [_p_of(apart[rule][i]) for rule in rules]
            shown |= {(rule, i): p < 0.05 for rule, p in zip(rules, holm(ps), strict=True)}
        for rule in sorted(paid, key=lambda rule: math.inf if paid[rule][0] is None else paid[rule][0][0]):
            own = self.order.get(rule)
            name = f"`{rule}`" if rule == "dropmatch" else rule
            cells = [name, "" if own is None else _AREA.format(*self._area(own))]
            for i, (cost, gap) in enumerate(zip(paid[rule], apart[rule], strict=True)):
                if cost is None:
                    cells.append("")
                    continue
                low, high = interval(100 * gap[1:])
                text = f"{100 * gap[0]:+.1f} ({low:+.1f} … {high:+.1f})"
                cells.append(f"{100 * cost[0]:.1f}: {f'**{text}**' if shown[rule, i] else text}")
            yield cells

    def beside_the_judge(self) -> Iterator[str]:
        """Yield the AUC of the other judges, and of the best rule without training, less that of the judge."""
        levels = {rule: _level(own) for rule, own in self.order.items()}
        free = max(levels.keys() - {*TRAINED}, key=lambda rule: auc_of(self.examples, levels[rule]))
        for rule in (*TRAINED[1:], free):
            gain = gain_of(self.examples, levels[rule], levels[TRAINED[0]], 0)
            yield f"{rule}: the judge's AUC {_GAIN.format(*gain)}"

    def _area(self, own: NDArray[np.floating]) -> tuple[float, ...]:
        return tuple(area_of(self.examples, _level(own), seed=0).values())


def _level(order: NDArray[np.floating]) -> NDArray[np.floating]:
    # Areas are of numbers; what is never kept comes last.
    return np.unique(-order, return_inverse=True)[1].astype(float)


def _p_of(draws: NDArray[np.float64]) -> float:
    """Return the two-sided p of no difference, with the bootstrap's standard error."""
    return math.erfc(abs(draws[0]) / draws[1:].std() / math.sqrt(2))


def draw(curves: Curves, path: Path, title: str) -> None:
    """Draw the share of the important mismatches that each rule keeps over the share of all."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.add_subplot(aspect="equal")
    axes.set_prop_cycle(color=colormaps["tab20"].colors)
    matter = curves.blind[0]
    axes.plot([0, 1], [0, 1], color="0.8", label="a blind choice")
    axes.plot([0, 1 - matter, 1], [0, 0, 1], color="0.5", linestyle=":", label="one that knows the labels")
    for rule, (kept, important) in curves.curves.items():
        style = "o" if rule in curves.decisions else "-"
        axes.plot([0, *kept[0]], [0, *important[0] / matter], style, markersize=3, linewidth=1.2, label=rule)
    axes.set(xlabel="share of the mismatches kept", ylabel="share of the important ones kept", title=title)
    figure.legend(loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=120)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=CleanCommand)
def read(
    data: Annotated[Path, typer.Argument(help="A folder of `mine --labels judge`, or of `mined_labels restore`.")],
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, .jsonl.gz.")],
    pair: PairName = "qwen-coder",
    threads: Threads = None,
) -> None:
    """Ask both models' heads about each mismatch, by the states that were mined, and judge it out of fold."""
    limit_threads(threads)
    mined = labels_of_mismatches("--data", data)
    loaded = ModelOptions(pair, dtype=mined.manifest["settings"]["dtype"]["target"]).load()
    names = ["target_previous", "draft_previous", "draft_token", "target_token"]
    labels = mined.tokens.select_columns(names).with_format("numpy")[:]
    x, y = (torch.from_numpy(labels[name]).long() for name in names[2:])
    heads = [model.get_output_embeddings() for model in (loaded.target, loaded.draft)]
    words = {i: loaded.tokenizer.decode([i]) for i in {*x.tolist(), *y.tolist()}}
    found: dict[str, list[Tensor]] = {}
    free, decisions = [], []
    with torch.inference_mode(), progress(Console()) as bar:
        for start in bar.track(range(0, len(x), _ROWS), description="reading"):
            rows = slice(start, start + _ROWS)
            laws, states = [], []
            for head, name in zip(heads, names[:2], strict=True):
                states.append(torch.from_numpy(labels[name][rows]).to(head.weight))
                laws.append(head(states[-1]).float().softmax(-1))
            width = min(law.shape[-1] for law in laws)
            p, q = (law[:, :width] for law in laws)
            for name, own in scores(p, q, x[rows]).items():
                found.setdefault(name, []).append(own)
            free.append(features(p, q, x[rows], y[rows], words))
            decisions.append(dropped(heads[0], states[0], laws[1], x[rows]))
    examples = read_judged(data).examples
    order = {name: torch.cat(parts).numpy() for name, parts in found.items()}
    both = [words[a] + words[b] for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    refused = {"no digits": DIGITS, "no digits or operators": DIGITS | OPERATORS}
    refused = {word: np.array([bool(chars & {*text}) for text in both]) for word, chars in refused.items()}
    known = torch.cat(free).numpy()
    judged, learned = unseen(examples, known)
    order |= composed(order, refused) | judged
    dropmatch = torch.cat(decisions).int().tolist()
    rows = (
        {
            "prompt": int(examples.prompts[i]), "solved": bool(examples.solved[i]),
            "weight": float(examples.weights[i]), "important": bool(examples.labels[i]),
            "order": {name: float(f"{own[i]:.5g}") for name, own in order.items()}, "dropmatch": dropmatch[i],
            "features": [float(f"{value:.5g}") for value in known[i]],
        }
        for i in range(len(examples))
    )  # fmt: skip
    write_rows(out, rows)
    for name, areas in learned.items():
        typer.echo(
            f"{name}: " + ", ".join(f"{area:.3f} {key.removeprefix('auc').strip('_')}" for key, area in areas.items())
        )


@app.command(cls=CleanCommand)
def show(
    rows: Annotated[Path, typer.Argument(help="What `read` has written.")],
    solved: Annotated[bool, typer.Option("--solved", help="Only problems that the target solves.")] = False,
    plot: Annotated[Path | None, typer.Option(help="A PNG file to draw.")] = None,
) -> None:
    """Print each rule's AUC, and which share of the mismatches that it keeps matters."""
    curves = Curves.read(rows)
    if solved:
        curves = curves.where(curves.examples.solved)
    one, low, high = curves.blind[0], *interval(curves.blind[1:])
    plain = curves.examples.labels.mean()
    typer.echo(
        f"{len(curves.examples)} mismatches of {len(np.unique(curves.examples.prompts))} problems: {100 * one:.1f} % "
        f"({100 * low:.1f} … {100 * high:.1f}) matter where each counts for those that it stands for, "
        f"{100 * plain:.1f} % of the labels\n"
    )
    heads = ["rule", "AUC", *(f"f = {share}" for share in SHARES)]
    for cells in (heads, ["---"] * len(heads), *curves.rows()):
        typer.echo(f"| {' | '.join(cells)} |".replace("| --- ", "|---").replace("--- |", "---|"))
    typer.echo("\n" + "\n".join(curves.beside_the_judge()))
    if plot is not None:
        draw(curves, plot, rows.name.removesuffix(".jsonl.gz"))


@app.command(cls=CleanCommand)
def choose(
    rows: Annotated[Path, typer.Argument(help="What `read` has written.")],
    others: Annotated[
        list[Path] | None, typer.Argument(help="The same of other tasks, to judge the choice on.")
    ] = None,
) -> None:
    """Choose the best rule without training on half of the problems, and judge it on the other half, then elsewhere.

    The best one pays least in the mean of the shares. It stands beside the judge and a blind choice.
    """
    curves = Curves.read(rows)
    first = np.isin(curves.examples.prompts, np.unique(curves.examples.prompts)[::2])
    known = curves.where(first)
    free = [rule for rule in known.order if rule not in TRAINED]
    best = min(free, key=lambda rule: sum(known.paid(rule, share)[0] for share in SHARES))
    typer.echo(f"chosen on {len(np.unique(known.examples.prompts))} problems: {best}\n")
    typer.echo("| judged on | problems | f | of its kept, these matter, % | minus a blind choice | minus the judge |")
    typer.echo("|---|---|---|---|---|---|")
    for path in (rows, *(others or ())):
        own = curves.where(~first) if path is rows else Curves.read(path)
        for share in SHARES:
            paid = own.paid(best, share)
            gaps = [100 * (paid - other) for other in (own.blind, own.paid(TRAINED[0], share))]
            cells = [f"{gap[0]:+.1f} ({interval(gap[1:])[0]:+.1f} … {interval(gap[1:])[1]:+.1f})" for gap in gaps]
            count = len(np.unique(own.examples.prompts))
            name = path.name.removesuffix(".jsonl.gz")
            typer.echo(f"| {name} | {count} | {share} | {100 * paid[0]:.1f} | {' | '.join(cells)} |")


@app.command(cls=CleanCommand)
def transfer(
    rows: Annotated[Path, typer.Argument(help="What `read` has written, to train on.")],
    others: Annotated[list[Path], typer.Argument(help="The same of other tasks and pairs, to judge.")],
) -> None:
    """Train a judge on the free features of all mismatches of one file, and let it judge others, unchanged."""
    first = Curves.read(rows).examples
    chosen = cross(regressions(STRENGTHS), ["features"], first, deal(first)).chosen
    judge = fit(chosen, ["features"], first)
    typer.echo("| judged | mismatches | AUC | less that of features trained there, out of fold |")
    typer.echo("|---|---|---|---|")
    for path in others:
        there = Curves.read(path)
        examples, said = there.examples, judge.predict_proba(there.examples.features(["features"]))[:, 1]
        area = tuple(area_of(examples, said, seed=0).values())
        gain = gain_of(examples, said, _level(there.order["features alone"]), 0)
        cells = _AREA.format(*area), _GAIN.format(*gain)
        typer.echo(f"| {path.name.removesuffix('.jsonl.gz')} | {len(examples):,} | {' | '.join(cells)} |")


if __name__ == "__main__":
    app()
