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
from ..bench.standings import ACCEPTANCE_QUANTILES, LATENCY_QUANTILES, Standing
from .bench_match import Results, reference

ALONE, STOCK = TargetAlone().label, StockAssisted().label
_SHOWN = (0.1, 0.5, 0.9)

Column = Callable[[Any], str]


def show(screen: Console, results: Results, origin: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Print all tables, and what they say in a few lines."""
    screen.print(speed_table(results.standings, title(origin)))
    screen.print(text_table(results.standings))
    if results.qualities:
        screen.print(answer_table(results.qualities))
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


def speed_table(rows: Sequence[Standing], heading: str) -> Table:
    """Lay out how fast everybody is."""
    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "tokens/s": lambda row: f"{row.tokens_per_second.median:.4g}",
        "least–largest": lambda row: f"{row.tokens_per_second.low:.4g}–{row.tokens_per_second.high:.4g}",
    }
    others = {"× target\nalone": ALONE, "× stock": STOCK, "× loss-\nless": reference(rows)}
    columns |= {name: _times(other) for name, other in others.items() if other in {row.label for row in rows}}
    if any(row.roofline is not None for row in rows):
        columns["roofline\n(%)"] = lambda row: _percent(row.roofline_share)
    return _table(rows, columns, heading)


def text_table(rows: Sequence[Standing]) -> Table:
    """Lay out what the text is made of."""
    at = {q: i for i, q in enumerate(ACCEPTANCE_QUANTILES)}

    def rates(row: Standing) -> str:
        return "" if row.acceptance_rates is None else "–".join(_percent(row.acceptance_rates[at[q]]) for q in _SHOWN)

    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "mean\naccepted": lambda row: _number(row.mean_accepted),
        "tokens/\nround": lambda row: _number(row.tokens_per_round),
        "accepted (%)\np10–50–90": rates,
        "same\ntext (%)": lambda row: _percent(row.same_text),
    }
    return _table(rows, columns, "Drafted tokens kept per round, and their share by request")


def answer_table(rows: Sequence[Quality]) -> Table:
    """Lay out how good the answers are."""
    columns: dict[str, Column] = {
        "mode": lambda mark: mark.label,
        "right": lambda mark: f"{mark.correct} of {mark.problems}",
        "accuracy (%)": lambda mark: f"{100 * mark.accuracy:.1f}",
        "95 %": lambda mark: f"{100 * mark.low:.1f}–{100 * mark.high:.1f}",
        "points against\nlossless": _difference,
    }
    return _table(rows, columns, "Answers")


def time_table(rows: Sequence[Standing]) -> Table:
    """Lay out where the time of a round goes."""

    def part(name: str) -> Column:
        return lambda row: "" if row.per_round is None else _ms(getattr(row.per_round, name))

    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "draft-\ning": part("drafting"),
        "veri-\nfying": part("verifying"),
        "decid-\ning": part("deciding"),
        "rest": part("rest"),
        "outside\nforwards": part("outside"),
        "a draft\nforward": lambda row: _ms(row.draft_call),
        "a target\nforward": lambda row: _ms(row.target_call),
    }
    return _table(rows, columns, "Milliseconds per round, in runs of their own")


def request_table(rows: Sequence[Standing]) -> Table:
    """Lay out what a request takes."""
    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        **{f"p{100 * q:.0f}": _latency(i) for i, q in enumerate(LATENCY_QUANTILES)},
        "first\ntoken": lambda row: _ms(row.first_token),
        "peak\nmemory": lambda row: "" if row.peak_memory is None else f"{row.peak_memory / 2**20:.0f} MiB",
    }
    if any(row.joules_per_token is not None for row in rows):
        columns["J per\ntoken"] = lambda row: _number(row.joules_per_token)
    return _table(rows, columns, "Milliseconds per request, and memory")


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
    alone, stock, ours = (by_label.get(label) for label in (ALONE, STOCK, reference(rows)))
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
            f"stock's); {ours.label} is {ours.ratios[STOCK]:.2f} × stock"
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
        table.add_column(
            name, justify="left" if is_mode else "right", no_wrap=not is_mode, overflow="fold", min_width=is_mode * 14
        )
    for row in rows:
        table.add_row(*(column(row) for column in columns.values()))
    return table


def _count(parameters: int) -> str:
    unit, name = next(((u, n) for u, n in ((1e9, "B"), (1e6, "M")) if parameters >= u), (1e3, "k"))
    return f"{parameters / unit:.3g}{name}"


def _latency(i: int) -> Column:
    return lambda row: _ms(row.latencies[i])


def _times(other: str) -> Column:
    return lambda row: f"{row.ratios[other]:.2f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.4g}"


def _difference(mark: Quality) -> str:
    return "" if mark.difference is None else f"{100 * mark.difference:+.1f} ± {100 * mark.margin:.1f}"
