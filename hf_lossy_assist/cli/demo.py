"""``lossy-assist demo``: the same questions, answered by the target alone, losslessly and by lossy rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from .. import pairs
from ..errors import LossyValueError
from ..evaluation.answers import AnswerStore
from ..evaluation.comparison import run_comparison, texts_of, warm_up
from ..evaluation.evaluate import Evaluation
from ..evaluation.modes import TARGET_ALONE, DecodingMode, Models
from ..evaluation.quality import ModeScore
from ..evaluation.requests import Response, batches_of
from ..evaluation.summary import ModeSummary, summarise
from ..heads import Head
from ..pairs import Pair
from ..tasks import Example
from .console import limit_threads, progress
from .options import Gamma, PairName
from .rendering import marked, traced_text

TEMPERATURE = 0.9
_GREEDY = (
    DecodingMode(),
    DecodingMode("lossless", "lossless"),
    DecodingMode("dropmatch", "dropmatch"),
    DecodingMode("topk (k=2)", "topk", {"k": 2}),
    DecodingMode("typical", "typical"),
    DecodingMode("judge (threshold=0.2)", "judge", {"threshold": 0.2}),
)
_SAMPLED = tuple(
    DecodingMode(f"{rule or TARGET_ALONE} (T={TEMPERATURE})", rule, temperature=TEMPERATURE)
    for rule in (None, "lossless", "ears")
)
SHOWN = tuple(_GREEDY[i].label for i in (0, 2, 3))
"""The modes whose answers to one question the demo prints in full."""


def demo_modes(heads: Mapping[str, Head], gamma: int) -> list[DecodingMode]:
    """Return the modes that the demo compares: those with a head only where there is one."""
    able = (mode for mode in _GREEDY + _SAMPLED if mode.rule != "judge" or mode.rule in heads)
    return [mode if mode.rule is None else replace(mode, gamma=gamma) for mode in able]


def demo(
    pair: PairName = "arithmetic",
    problems: Annotated[int, typer.Option(min=1, help="Test problems, answered by every mode.")] = 20,
    gamma: Gamma = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; one is fastest for models this small.")] = 1,
) -> None:
    """Answer the same questions with every mode on a bundled pair, and compare quality and speed."""
    limit_threads(threads)
    disable_progress_bar()
    screen = Console()
    if pairs.task_of(pair) is None:
        raise LossyValueError(f"`--pair` has to be one that has a task, but is {pair!r}")
    screen.print("loading the bundled pair", style="dim")
    loaded = pairs.load(pair)
    models, length = Models(loaded.target, loaded.draft, loaded.rule_heads), loaded.task.max_new_tokens
    modes = demo_modes(models.heads, gamma)
    examples = loaded.task.examples("test", problems)
    first, *batches = (
        batches_of([loaded.task.encode(example, loaded.tokenizer)], seed=seed + max(0, i))[0]
        for i, example in enumerate([*loaded.task.examples("validation", 1), *examples], start=-1)
    )
    screen.print(f"answering {problems} problems in {len(modes)} modes each", style="dim")
    warm_up(models, modes, first, 16, strict=True)
    with progress(screen) as bar:
        records, responses = run_comparison(models, modes, batches, length, repeats=1, meter=False, track=bar.track)
    texts = {label: texts_of(answers) for label, answers in responses.items()}
    store, evaluation = AnswerStore(), Evaluation(models, loaded.tokenizer, loaded.task, modes, TARGET_ALONE, problems)
    evaluation.take(responses, store)
    # A question that the shown modes answer in different words shows most.
    differ = [len({tuple(texts[label][i]) for label in SHOWN}) == len(SHOWN) for i in range(problems)]
    shown = differ.index(True) if any(differ) else 0
    answers = [(label, responses[label][shown], store.known[label, shown].score == 1) for label in SHOWN]
    screen.print(_side_by_side(loaded, examples[shown], answers, colour=screen.color_system is not None))
    screen.print(_results(modes, summarise(modes, records), list(evaluation.result(store).modes.values()), gamma))
    screen.print(
        "Mean accepted: drafted tokens kept per round. Tokens per round counts the target's own token too. Speeds are "
        "ratios of tokens/s, greedy modes to greedy ones, sampled modes to sampled ones.",
        style="dim",
    )


def _side_by_side(
    pair: Pair, example: Example, answers: Sequence[tuple[str, Response, bool]], *, colour: bool
) -> Group:
    table = Table(*(label for label, _, _ in answers), expand=True)
    texts = (
        traced_text(
            pair.tokenizer, response.rows[0].tolist(), response.stats.trace if response.stats else (), colour=colour
        )
        for _, response, _ in answers
    )
    table.add_row(*texts, end_section=True)
    table.add_row(*("[green]right[/]" if right else "[red]wrong[/]" for _, _, right in answers))
    legend = Text.assemble("Tokens that only the lossy rule let through are ", marked("marked", colour=colour), ".")
    return Group(Text(example.prompt.strip()), table, legend)


def _results(
    modes: Sequence[DecodingMode], rows: Sequence[ModeSummary], marks: Sequence[ModeScore], gamma: int
) -> Table:
    title = f"{marks[0].n} problems, {gamma} drafted tokens per round, one at a time"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("mode", overflow="fold")
    for heading in ("accuracy", "mean\naccepted", "tokens\nper\nround", "tokens\n/s", "×\nlossless", "×\ntarget"):
        table.add_column(heading, justify="right")
    by_decoding = {(mode.rule, mode.temperature): mode.label for mode in reversed(modes)}
    for i, (mode, row, mark) in enumerate(zip(modes, rows, marks, strict=True), 1):
        table.add_row(
            mode.label,
            f"{100 * mark.score:.1f} %",
            "" if row.mean_accepted is None else f"{row.mean_accepted:.2f}",
            "" if row.tokens_per_round is None else f"{row.tokens_per_round:.2f}",
            f"{row.tokens_per_second.median:.0f}",
            *(f"{row.ratios[by_decoding[rule, mode.temperature]]:.2f}" for rule in ("lossless", None)),
            end_section=[mode.temperature] != [other.temperature for other in modes[i : i + 1]],
        )
    return table
