"""The tables and lines of ``lossy-assist bench``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..evaluation.comparison import ACCEPTANCE_QUANTILES, LATENCY_QUANTILES, ModeSummary
from ..evaluation.modes import TARGET_ALONE, DecodingMode
from ..evaluation.quality import ModeScore
from ..evaluation.tables import (
    Column,
    NumberTable,
    PlotPoint,
    figure,
    interval,
    milliseconds,
    number,
    percent,
    score_columns,
    score_point,
    table,
)
from .console import Console


def reference(modes: Sequence[DecodingMode | ModeSummary]) -> str | None:
    """Return the label of the first mode with the lossless rule alone."""
    return next((mode.label for mode in modes if mode.config.get("lossy_mode") == "lossless"), None)


def fastest(rows: Sequence[ModeSummary], stock: bool = False) -> str | None:
    """Return the label of the fastest mode with the lossless rule alone, or of transformers' assisted generation."""
    own = [row for row in rows if "engine" not in row.config and "num_assistant_tokens" in row.config]
    found = [row for row in own if row.config.get("lossy_mode") == (None if stock else "lossless")]
    return max(found, key=lambda row: row.tokens_per_second.median).label if found else None


def show(
    screen: Console,
    rows: Sequence[ModeSummary],
    marks: Sequence[ModeScore],
    compared: str,
    origin: Mapping[str, Any],
    notes: Sequence[str],
) -> None:
    screen.print(speed_table(rows, title(origin)))
    if (predicted := predicted_table(rows)) is not None:
        screen.print(predicted)
    screen.print(text_table(rows))
    if marks:
        screen.print(table(marks, score_columns(compared), "Answers"))
    screen.print(time_table(rows))
    screen.print(request_table(rows))
    for line in (*findings(rows), *notes):
        screen.print(line, style="dim", soft_wrap=True)


def title(origin: Mapping[str, Any]) -> str:
    target, draft = (origin["models"][role]["parameters"] for role in ("target", "draft"))
    decoding = "greedy" if origin["temperature"] is None else f"T = {origin['temperature']:g}"
    grown = " (grown)" if origin.get("grow") else ""
    machine = origin.get("gpu") or f"{origin['cpu']}, {origin['threads']} thread{'s' * (origin['threads'] > 1)}"
    machine += ", CPU time" if origin["clock"] == "cpu" else ""
    batch = f", batch {origin['batch']}" if origin["batch"] > 1 else ""
    return (
        f"{_count(draft)} → {_count(target)}{grown}, {origin['dtype']}, {origin['prompts']} prompts{batch}, "
        f"γ = {origin['gamma']}, {decoding}; {machine}"
    )


def picture(rows: Sequence[ModeSummary], marks: Sequence[ModeScore]) -> tuple[dict[str, PlotPoint], str, str]:
    """Return points and axes of a plot: speed against accuracy, or against tokens kept if nothing is scored."""
    accuracies = {mark.label: score_point(mark, 0).y for mark in marks}
    points = {}
    for row in rows:
        speed, kept = row.tokens_per_second, (row.mean_accepted or 0.0,) * 3
        points[row.label] = PlotPoint(accuracies.get(row.label, kept), (speed.median, speed.low, speed.high))
    xlabel = "score (%; bars: 95 % interval of the difference)" if marks else "drafted tokens kept per round"
    return points, xlabel, "tokens per second (median; bars: least and largest of the repeats)"


def speed_table(rows: Sequence[ModeSummary], heading: str) -> NumberTable:
    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "tokens/s": lambda row: figure(row.tokens_per_second.median),
        "least–largest": lambda row: "–".join(map(figure, (row.tokens_per_second.low, row.tokens_per_second.high))),
    }
    others = {
        "× target alone": TARGET_ALONE,
        "× best stock": fastest(rows, stock=True),
        "× best\nlossless": fastest(rows),
    }
    columns |= {name: _times(other) for name, other in others.items() if other in {row.label for row in rows}}
    return table(rows, columns, f"{heading}\n×: tokens per second, with 95 % of a bootstrap over the prompts")


def predicted_table(rows: Sequence[ModeSummary]) -> NumberTable | None:
    """Lay out what a request took, beside what follows from its rounds and their cost here."""
    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "n": lambda row: str(row.requests),
        "seconds\n(95 %)": lambda row: interval(row.seconds, ".3g"),
        "predicted\n(95 %)": lambda row: interval(row.predicted, ".3g"),
    }
    known = [row for row in rows if row.predicted is not None]
    if (best := fastest(known)) is not None:
        columns |= {
            "× best\nlossless": lambda row: interval(row.ratios[best]),
            "predicted ×": lambda row: interval(row.predicted_ratios[best]),
            "predicted ×\nover seen": lambda row: interval(row.over_seen[best]),
        }
    title = "Seconds per request, and predicted from its own rounds and their cost here"
    return table(known, columns, title) if known else None


def text_table(rows: Sequence[ModeSummary]) -> NumberTable:
    shown = [ACCEPTANCE_QUANTILES.index(q) for q in (0.1, 0.5, 0.9)]

    def rates(row: ModeSummary) -> str:
        return "" if row.acceptance_rates is None else "–".join(percent(row.acceptance_rates[i]) for i in shown)

    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "mean\naccepted": lambda row: number(row.mean_accepted),
        "tokens/\nround": lambda row: number(row.tokens_per_round),
        "accepted (%)\np10–50–90": rates,
        "same\ntext (%)": lambda row: percent(row.same_text),
    }
    return table(rows, columns, "Drafted tokens kept per round, and their share by request")


def time_table(rows: Sequence[ModeSummary]) -> NumberTable:
    def part(name: str) -> Column:
        return lambda row: "" if row.per_round is None else milliseconds(getattr(row.per_round, name))

    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "draft-\ning": part("drafting"),
        "veri-\nfying": part("verifying"),
        "decid-\ning": part("deciding"),
        "rest": part("rest"),
        "outside\nforwards": part("outside"),
        "a draft\nforward": lambda row: milliseconds(row.draft_call),
        "a target\nforward": lambda row: milliseconds(row.target_call),
    }
    return table(rows, columns, "Milliseconds per round, in runs of their own")


def request_table(rows: Sequence[ModeSummary]) -> NumberTable:
    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        **{f"p{100 * q:.0f}": _latency(i) for i, q in enumerate(LATENCY_QUANTILES)},
        "first\ntoken": lambda row: milliseconds(row.first_token),
        "peak\nmemory": lambda row: "" if row.peak_memory is None else f"{row.peak_memory / 2**20:.0f} MiB",
    }
    if any(row.joules_per_token is not None for row in rows):
        columns["J per\ntoken"] = lambda row: number(row.joules_per_token)
    return table(rows, columns, "Milliseconds per request, and memory")


def findings(rows: Sequence[ModeSummary]) -> list[str]:
    """Compare transformers' assisted generation and the lossless rule with the target alone and each other."""
    by_label = {row.label: row for row in rows}
    alone, stock, ours = (by_label.get(x) for x in (TARGET_ALONE, fastest(rows, stock=True), fastest(rows)))
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
            f"stock's); {ours.label} is {_times(stock.label)(ours)} × {stock.label}"
        )
    return lines


def _count(parameters: int) -> str:
    unit, name = next(((u, n) for u, n in ((1e9, "B"), (1e6, "M")) if parameters >= u), (1e3, "k"))
    return f"{parameters / unit:.3g}{name}"


def _latency(i: int) -> Column:
    return lambda row: milliseconds(row.latencies[i])


def _times(other: str) -> Column:
    return lambda row: interval(row.ratios[other])
