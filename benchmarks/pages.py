"""``python -m benchmarks.pages``: every table of README and of the result pages, from the kept rows.

The rows are the data set ``hub_cards/lossy-assist-results``. ``--write`` puts the tables between a page's markers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from docs.generator.tables import with_part

from . import application, curves, headroom, whole
from .answers import Answers, as_long, draw_rules, first_page, quality, said
from .tables import DATA, ROOT, Interval, Row, interval, markdown, points, ratio, rows, signed, times

_STOCK = "transformers' assisted generation"


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
    ("docs/results/gate.md", "gate", curves.gate),
    ("docs/results/longer-drafts.md", "longer drafts", as_long),
    ("docs/results/judge.md", "judge", lambda: quality("gsm8k-proof")),
    ("docs/results/price.md", "price", curves.price),
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
    "price": curves.draw,
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
