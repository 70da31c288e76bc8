"""``lossy-assist demo``: the same questions, answered by the target alone, losslessly and by lossy rules."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from .. import enabled, pairs
from ..pairs import Pair
from ..tasks import Example
from .console import console, limit_threads, progress
from .contest import SHOWN, Answer, Contender, Tally, answer, contenders_for
from .rendering import marked, traced_text


def demo(
    problems: Annotated[int, typer.Option(min=1, help="Test problems, answered by every mode.")] = 64,
    gamma: Annotated[int, typer.Option(min=1, help="Drafted tokens per round.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; one is fastest for models this small.")] = 1,
) -> None:
    """Answer the same questions with every mode on the bundled pair, and compare quality and speed."""
    limit_threads(threads)
    disable_progress_bar()
    screen = console()
    pair = pairs.load("arithmetic")
    modes = contenders_for(pair)
    tallies = {contender: Tally() for contender in modes}
    shown: tuple[Example, dict[Contender, Answer]] | None = None
    warm_up = pair.task.examples("validation", 1)[0]
    examples = pair.task.examples("test", problems)
    with enabled(pair.target), progress(screen) as bar:
        task = bar.add_task("answering", total=problems * len(modes))
        for contender in modes:
            answer(pair, contender, warm_up, gamma, seed)
        for i, example in enumerate(examples):
            answers = {}
            # All modes answer a question before the next one, each in turn first, so that noise hits them alike.
            for contender in (*modes[i % len(modes) :], *modes[: i % len(modes)]):
                answers[contender] = given = answer(pair, contender, example, gamma, seed + i)
                tallies[contender].add(given)
                bar.advance(task)
            if shown is None or (_differ(answers) and not _differ(shown[1])):
                shown = example, answers
    screen.print(_side_by_side(pair, *shown, colour=screen.color_system is not None))
    screen.print(_results(tallies, problems, gamma))
    screen.print(
        "Mean accepted: drafted tokens kept per round. Tokens per round counts the target's own token too. Speeds are "
        "ratios of tokens/s, greedy modes to greedy ones, sampled modes to sampled ones.",
        style="dim",
    )


def _differ(answers: dict[Contender, Answer]) -> bool:
    """Tell whether the shown modes put one question in different words."""
    return len({answers[contender].text for contender in SHOWN}) == len(SHOWN)


def _side_by_side(pair: Pair, example: Example, answers: dict[Contender, Answer], *, colour: bool) -> Group:
    table = Table(*(contender.title for contender in SHOWN), expand=True)
    given = [answers[contender] for contender in SHOWN]
    table.add_row(*(traced_text(pair.tokenizer, a.tokens, a.trace, colour=colour) for a in given), end_section=True)
    table.add_row(*("[green]right[/]" if a.correct else "[red]wrong[/]" for a in given))
    legend = Text.assemble("Tokens that only the lossy rule let through are ", marked("marked", colour=colour), ".")
    return Group(Text(example.prompt.strip()), table, legend)


def _results(tallies: dict[Contender, Tally], problems: int, gamma: int) -> Table:
    table = Table(title=f"{problems} problems, {gamma} drafted tokens per round, one at a time")
    table.add_column("mode", overflow="fold")
    for heading in ("accuracy", "mean\naccepted", "tokens\nper\nround", "tokens\n/s", "×\nlossless", "×\ntarget"):
        table.add_column(heading, justify="right")
    speeds = {(c.mode, c.sample): tally.tokens_per_second for c, tally in tallies.items()}
    for contender, tally in tallies.items():
        speed = tally.tokens_per_second
        table.add_row(
            contender.title,
            f"{100 * tally.accuracy:.1f} %",
            f"{tally.mean_accepted:.2f}" if tally.rounds else "",
            f"{tally.tokens_per_round:.2f}" if tally.rounds else "",
            f"{speed:.0f}",
            f"{speed / speeds['lossless', contender.sample]:.2f}",
            f"{speed / speeds[None, contender.sample]:.2f}",
            end_section=contender.ends_section,
        )
    return table
