"""``python -m benchmarks.quality_table FOLDER``: what rules cost and gain beside ``lossless``, on the same problems.

A round costs the same under every rule with as many drafted tokens. So tokens per call of the target say how much
faster a rule decodes, and calls per answer how long an answer takes. Left out are the rules' own arithmetic, which
only ``dropmatch`` has much of, and the reading of the prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer

from hf_lossy_assist.evaluation.answers import Answer, by_mode, load_answers
from hf_lossy_assist.evaluation.quality import Interval, bootstrap_sums, middle, paired_interval, tokens_per_call

from . import command

_NAMES = {"draft": "draft alone", "plain": "target alone", "everything": "everything kept"}
_ROWS = Path(__file__).parent / "qwen-coder"
_FIRST_PAGE = {  # by rule, the folder of its answers and its label there: HumanEval, then GSM8K
    "lossless": (("humaneval", "lossless"), ("gsm8k", "lossless")),
    "min_p": (("humaneval", "min_p"), ("gsm8k", "min_p")),
    "regret": (("humaneval", "regret"), ("gsm8k", "regret")),
    "judge": (None, ("gsm8k", "judge:threshold=0.263591")),
    "topk": (("humaneval", "topk"), ("gsm8k", "topk")),
    "typical": (("humaneval", "typical"), ("gsm8k", "typical")),
    "everything": (("humaneval", "everything"), ("gsm8k", "everything")),
}


@dataclass(frozen=True)
class Row:
    """A mode beside the reference, on the problems that both have answered."""

    n: int
    score: float  # the mean, in %
    points: Interval  # more than the reference, in %
    kept: float | None  # drafted tokens per round; None without a draft
    tokens_per_call: Interval | None  # as a multiple of the reference's, as is all that follows
    tokens: Interval
    time: Interval | None
    cut: float  # % of the answers that ended at the limit of their length

    @classmethod
    def of(cls, own: Mapping[int, Answer], reference: Mapping[int, Answer], cost: float | None = 1.0) -> Row:
        """Compare two modes; ``cost`` is that of a round, beside the reference's, or None if it is not known.

        Examples
        --------
        >>> plain = {i: Answer("lossless", i, 1.0, 60, 12, 48, None, "") for i in range(2)}
        >>> topk = {i: Answer("topk", i, i, 60, 10, 50, None, "", cut=not i) for i in range(2)}
        >>> row = Row.of(topk, plain)
        >>> row.points[0], row.kept, row.tokens_per_call[0], row.time[0], row.cut
        (-50.0, 5.0, 1.2, 0.8333333333333334, 50.0)
        """
        pairs = [(own[i], reference[i]) for i in sorted(own.keys() & reference.keys())]
        counts = np.array([[(x.tokens, x.rounds) for x in pair] for pair in pairs], dtype=float)
        sums = bootstrap_sums(counts)  # (draws, own or not, tokens or rounds)
        drafts = any(x.accepted for x, _ in pairs) and bool(sums[0, 0, 1])
        tokens = sums[:, 0, 0] / sums[:, 1, 0]
        calls = sums[:, 0, 1] / sums[:, 1, 1]
        return cls(
            n=len(pairs),
            score=100 * sum(x.score for x, _ in pairs) / len(pairs),
            points=points(pairs),
            kept=float(sum(x.accepted for x, _ in pairs) / sums[0, 0, 1]) if drafts else None,
            tokens_per_call=middle(tokens / calls) if drafts else None,
            tokens=middle(tokens),
            time=middle(cost * calls) if drafts and cost is not None else None,
            cut=100 * sum(x.cut for x, _ in pairs) / len(pairs),
        )


def points(pairs: Sequence[tuple[Answer, Answer]]) -> Interval:
    """Return the mean difference of scores in %, with its interval."""
    own, reference = ([answer.score for answer in side] for side in zip(*pairs, strict=True))
    return tuple(100 * value for value in paired_interval(own, reference))


def round_costs(bench: Path) -> dict[int, float]:
    """Return the seconds of a round by its γ drafted tokens: γ forwards of the draft, one of the target, and the rest.

    Each is the median over the answers of every rule without dropped heads, whose own forwards are measured.
    """
    drafted: list[float] = []
    others: dict[int, list[float]] = {}
    for row in map(json.loads, bench.read_text(encoding="utf-8").splitlines()):
        split, gamma = row.get("split"), re.search(r"@(\d+)", row.get("label", ""))
        if split and gamma and "dropmatch" not in row["label"]:
            drafted.append(split["draft_call"])
            own = (split["deciding"] + split["rest"]) / split["target_calls"]
            others.setdefault(int(gamma[1]), []).append(split["target_call"] + own)
    return {gamma: gamma * median(drafted) + median(seconds) for gamma, seconds in others.items()}


def rows_of(folder: Path, bench: Path | None = None) -> tuple[str, dict[str, Row]]:
    """Return the reference of a folder of ``evaluate``, and its modes by their labels."""
    plan, answers = load_answers(folder)
    modes, reference = by_mode(answers), plan["reference"]
    gammas = {label: plan["modes"][label].get("num_assistant_tokens") for label in modes}
    costs = {gammas[reference]: 1.0}
    if bench is not None:
        measured = round_costs(bench)
        costs = {gamma: seconds / measured[gammas[reference]] for gamma, seconds in measured.items()}
    return reference, {label: Row.of(own, modes[reference], costs.get(gammas[label])) for label, own in modes.items()}


def line(label: str, row: Row, unit: Sequence[str] | None = None) -> str:
    """Return a mode's line of the table; the reference's has the units of the multiples."""
    cells = [_NAMES.get(label, f"`{label}`"), str(row.n), f"{row.score:.1f}", "" if unit else _signed(row.points)]
    cells.append("" if row.kept is None else f"{row.kept:.2f}")
    cells += unit or map(_times, (row.tokens_per_call, row.tokens, row.time))
    return f"| {' | '.join([*cells, f'{row.cut:.1f}'])} |"


def _signed(value: Interval) -> str:
    return "{:+.1f} ({:+.1f} … {:+.1f})".format(*value)


def _times(value: Interval | None) -> str:
    return "" if value is None else "{:.2f} ({:.2f} … {:.2f})".format(*value)


def table(folder: Path, bench: Path | None = None) -> str:
    """Return the tables of a folder, one for each set of problems; rules are in the order of the tokens they keep.

    Rules that answered fewer problems stand in a table of their own, beside the reference on the same problems.
    """
    plan, answers = load_answers(folder)
    reference, known = plan["reference"], by_mode(answers)
    rows = rows_of(folder, bench)[1]
    groups: dict[frozenset[int], list[str]] = {}
    for label, own in known.items():
        if label != reference:
            groups.setdefault(frozenset(own.keys() & known[reference].keys()), []).append(label)
    heads = ("rule", "n", "score, %", "points", "kept", "tokens per call, ×", "tokens, ×", "time, ×", "cut off, %")
    tables = []
    for ids, labels in sorted(groups.items(), key=lambda group: -len(group[0])):
        own = {i: known[reference][i] for i in ids}
        length = sum(answer.tokens for answer in own.values()) / len(own)
        unit = (f"1 = {_times(tokens_per_call(own.values()))}", f"1 = {length:.0f}", "1")
        order = sorted(labels, key=lambda label: (rows[label].kept is not None, rows[label].kept or 0))
        first = sum(rows[label].kept is None for label in labels)  # what has no draft stands above the reference
        lines = [line(label, rows[label]) for label in order]
        lines.insert(first, line(reference, Row.of(own, own), unit))
        tables.append("\n".join([f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *lines]))
    return "\n\n".join(tables)


def first_page() -> str:
    """Return README's table: points and gains of the recommended rules on HumanEval and GSM8K, at one setting."""
    known = {name: rows_of(_ROWS / name)[1] for name in ("humaneval", "gsm8k")}
    full = [known[name]["lossless"].n for name in ("humaneval", "gsm8k")]
    heads = ["rule"]
    for name, n in zip(("HumanEval", "GSM8K"), full, strict=True):
        heads += [f"{name}, {n} problems: points", "tokens per call", "time of an answer"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for rule, places in _FIRST_PAGE.items():
        cells = [_NAMES.get(rule, f"`{rule}`")]
        for place, n in zip(places, full, strict=True):
            row = known[place[0]][place[1]] if place else None
            if rule == "lossless":
                cells += ["0", "1", "1"]
            elif row is None or row.n < n:  # fewer problems are another table
                cells += ["", "", ""]
            else:
                cells += [_signed(row.points), _times(row.tokens_per_call), _times(row.time)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(
    folder: Annotated[Path | None, typer.Argument(help="What `evaluate` has written; README's table without.")] = None,
    bench: Annotated[
        Path | None, typer.Option(help="bench.jsonl, for what rounds of several draft lengths cost.")
    ] = None,
) -> None:
    """Print a table of scores, tokens and time, with 95 % intervals, beside the reference on the same problems.

    Gains are multiples of the reference's, with intervals of a bootstrap over problems.
    """
    typer.echo(first_page() if folder is None else table(folder, bench))


app = command(main)
if __name__ == "__main__":
    app()
