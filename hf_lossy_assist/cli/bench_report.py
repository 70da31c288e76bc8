"""What ``lossy-assist bench`` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..bench.contenders import StockAssisted, TargetAlone
from ..bench.plots import Point
from ..bench.predictions import Prediction
from ..bench.quality import Quality
from ..bench.roofline import Roofline
from ..bench.standings import ACCEPTANCE_QUANTILES, Standing
from .bench_match import REFERENCE, Results

ALONE, STOCK = TargetAlone().label, StockAssisted().label

Column = Callable[[Any], str]


def show(screen: Console, results: Results, origin: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Print all tables, and what they say in a few lines."""
    marks = {mark.label: mark for mark in results.qualities}
    screen.print(speed_table(results.standings, marks, title(origin)))
    screen.print(time_table(results.standings))
    screen.print(request_table(results.standings))
    if results.predictions:
        screen.print(prediction_table(results.predictions))
    for line in (*findings(results.standings), *limits(results.roofline), *notes):
        screen.print(line, style="dim", soft_wrap=True)


def title(origin: Mapping[str, Any]) -> str:
    """Return what was measured, in one line."""
    target, draft = (origin["models"][role]["parameters"] for role in ("target", "draft"))
    decoding = "greedy" if origin["temperature"] is None else f"T = {origin['temperature']:g}"
    grown = " (grown)" if origin["grow"] else ""
    machine = origin.get("gpu") or f"{origin['cpu']}, {origin['threads']} thread{'s' * (origin['threads'] > 1)}"
    machine += ", CPU time" if origin["clock"] == "cpu" else ""
    batch = f", batch {origin['batch']}" if origin["batch"] > 1 else ""
    return (
        f"{_count(draft)} → {_count(target)}{grown}, {origin['dtype']}, {origin['prompts']} prompts{batch}, "
        f"γ = {origin['gamma']}, {decoding}; {machine}"
    )


def points(results: Results) -> tuple[list[Point], str]:
    """Return what the picture shows: speed against accuracy, or against drafted tokens kept where nothing is judged."""
    if results.qualities:
        marks = {mark.label: mark for mark in results.qualities}
        placed = [(row, marks[row.label]) for row in results.standings]
        return [
            Point(row.label, 100 * m.accuracy, 100 * m.low, 100 * m.high, row.tokens_per_second) for row, m in placed
        ], "accuracy (%, bars: 95 % interval)"
    kept = [(row, row.mean_accepted or 0.0) for row in results.standings]
    return [Point(row.label, x, x, x, row.tokens_per_second) for row, x in kept], "drafted tokens kept per round"


def speed_table(rows: Sequence[Standing], marks: Mapping[str, Quality], heading: str) -> Table:
    """Lay out how fast everybody is, and how good."""
    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "tokens/s\n[spread]": _spread,
        "× target\nalone": lambda row: _ratio(row, ALONE),
        "× stock": lambda row: _ratio(row, STOCK),
        "× loss-\nless": lambda row: _ratio(row, REFERENCE),
        "mean\naccepted": lambda row: _number(row.mean_accepted),
        "tokens/\nround": lambda row: _number(row.tokens_per_round),
        "same\ntext": lambda row: _percent(row.same_text),
        "roof-\nline": lambda row: _percent(row.roofline_share),
    }
    if marks:
        columns["accuracy %\n[95 %]"] = lambda row: _accuracy(marks.get(row.label))
        columns["points vs\nlossless"] = lambda row: _difference(marks.get(row.label))
    return _table(rows, columns, heading)


def time_table(rows: Sequence[Standing]) -> Table:
    """Lay out where the time of a round goes."""

    def part(name: str) -> Column:
        return lambda row: "" if row.per_round is None else _ms(getattr(row.per_round, name))

    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "drafting": part("drafting"),
        "verifying": part("verifying"),
        "deciding": part("deciding"),
        "rest": part("rest"),
        "outside\nforwards": part("outside"),
        "one draft\nforward": lambda row: _ms(row.draft_call),
        "one target\nforward": lambda row: _ms(row.target_call),
        "peak\nmemory": lambda row: "" if row.peak_memory is None else f"{row.peak_memory / 2**20:.0f} MiB",
    }
    if any(row.joules_per_token is not None for row in rows):
        columns["J per\ntoken"] = lambda row: _number(row.joules_per_token)
    return _table(rows, columns, "Milliseconds per round, in runs of their own")


def request_table(rows: Sequence[Standing]) -> Table:
    """Lay out what differs from request to request."""
    at = {q: i for i, q in enumerate(ACCEPTANCE_QUANTILES)}

    def rate(q: float) -> Column:
        return lambda row: "" if row.acceptance_rates is None else _percent(row.acceptance_rates[at[q]])

    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "p50": lambda row: _ms(row.latencies[0]),
        "p95": lambda row: _ms(row.latencies[1]),
        "p99": lambda row: _ms(row.latencies[2]),
        "first\ntoken": lambda row: _ms(row.first_token),
        **{f"accepted,\n{name}": rate(q) for q, name in ((0.1, "p10"), (0.5, "median"), (0.9, "p90"))},
    }
    return _table(rows, columns, "Requests: milliseconds, and share of the drafted tokens kept (%)")


def prediction_table(rows: Sequence[Prediction]) -> Table:
    """Lay out measured acceptance beside its closed form."""
    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "positions": lambda row: str(row.positions),
        "kept (%)": lambda row: f"{100 * row.measured:.2f}",
        "closed form (%)": lambda row: f"{100 * row.predicted:.2f} ± {100 * row.margin:.2f}",
        "gain over\nlossless": lambda row: f"{100 * row.gain:.3f}",
        "its bound": lambda row: f"{100 * row.bound:.3f}",
    }
    return _table(rows, columns, "Acceptance per position, measured and predicted from p and q")


def findings(rows: Sequence[Standing]) -> list[str]:
    """Say what the comparison was made for."""
    by_label = {row.label: row for row in rows}
    alone, stock, ours = (by_label.get(label) for label in (ALONE, STOCK, REFERENCE))
    lines = []
    for row in (stock, ours):
        if row is not None and row.same_text is not None:
            lines.append(
                f"{row.label}: {round(row.same_text * row.requests)} of {row.requests} texts are the target's own"
            )
    if ours is not None and ours.draft_call and alone is not None and alone.target_call:
        ratio = alone.target_call / ours.draft_call
        lines.append(f"a forward of the draft to one of the target, over one token each: 1 : {ratio:.1f}")
    if stock is not None and ours is not None and stock.per_round and ours.per_round:
        lines.append(
            f"outside both models' forwards, per round: stock {1000 * stock.per_round.outside:.2f} ms, ours "
            f"{1000 * ours.per_round.outside:.2f} ms ({ours.per_round.outside / stock.per_round.outside:.2f} of "
            f"stock's); lossless is {ours.ratios[STOCK]:.2f} × stock"
        )
    return lines


def limits(roofline: Roofline | None) -> list[str]:
    """Say what the machine can do."""
    if roofline is None:
        return []
    target, draft = (
        f"{name} {cost.weight_bytes / 2**20:.0f} MiB at {rates.bandwidth / 1e9:.1f} GB/s"
        for name, cost, rates in (
            ("target", roofline.target, roofline.target_rates),
            ("draft", roofline.draft, roofline.draft_rates),
        )
    )
    rate = f"{roofline.target_rates.flops / 1e12:.3g} TFLOP/s"
    return [
        f"roofline: weights of the {target}, of the {draft}; matmul {rate}; best speed for each mode's own acceptance"
    ]


def _table(rows: Sequence[Any], columns: Mapping[str, Column], heading: str) -> Table:
    table = Table(title=heading, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        is_mode = name == "mode"
        table.add_column(name, justify="left" if is_mode else "right", no_wrap=not is_mode, overflow="fold")
    for row in rows:
        table.add_row(*(column(row) for column in columns.values()))
    return table


def _count(parameters: int) -> str:
    unit, name = next(((u, n) for u, n in ((1e9, "B"), (1e6, "M")) if parameters >= u), (1e3, "k"))
    return f"{parameters / unit:.3g}{name}"


def _spread(row: Standing) -> str:
    speed = row.tokens_per_second
    return f"{speed.median:.4g} [{speed.low:.4g}–{speed.high:.4g}]"


def _ratio(row: Standing, other: str) -> str:
    return f"{row.ratios[other]:.2f}" if other in row.ratios else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.4g}"


def _accuracy(mark: Quality | None) -> str:
    return "" if mark is None else f"{100 * mark.accuracy:.1f} [{100 * mark.low:.0f}–{100 * mark.high:.0f}]"


def _difference(mark: Quality | None) -> str:
    if mark is None or mark.difference is None:
        return ""
    return f"{100 * mark.difference:+.1f} ± {100 * mark.margin:.1f}"
