"""``lossy-assist demo``: questions answered by the target alone, losslessly and by lossy rules."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from .. import pairs
from ..evaluation.answers import AnswerStore
from ..evaluation.evaluate import Evaluation, named_modes
from ..evaluation.modes import Models
from ..evaluation.requests import batches_of, run_request
from .console import limit_threads
from .evaluate import answer_all, score_table
from .rendering import marked, traced_text

# On `arithmetic` the lossless rule is fastest with 8 drafted tokens. Every rule keeps most of 8; with 16 they differ.
MODES = "plain,lossless@8,lossless@16,min_p@16,regret@16,judge@16,typical@16"
SHOWN = ("plain", "lossless@16", "min_p@16")
"""The modes that answer one question side by side."""
_BATCH_SIZE = 20


def demo(
    problems: Annotated[int, typer.Option(min=1, help="Test problems, answered by every mode.")] = 100,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; one is fastest for models this small.")] = 1,
) -> None:
    """Answer questions in several modes on the bundled pair: quality, and calls of the target."""
    limit_threads(threads)
    disable_progress_bar()
    screen = Console()
    loaded = pairs.load("arithmetic")
    evaluation = Evaluation(
        Models(loaded.target, loaded.draft, loaded.rule_heads), loaded.tokenizer, loaded.task, named_modes(MODES),
        reference="plain", limit=problems, batch_size=_BATCH_SIZE,
    )  # fmt: skip
    screen.print(f"{problems} problems, each answered in {len(evaluation.modes)} modes", style="dim")
    store = AnswerStore()
    result = answer_all(evaluation, store, screen)
    # Show a question that both answer right, and in which only the lossy rule keeps some tokens.
    known = (
        i
        for i in range(problems)
        if store.known[SHOWN[0], i].score == store.known[SHOWN[-1], i].score == 1 and store.known[SHOWN[-1], i].lossy
    )
    screen.print(_side_by_side(evaluation, next(known, 0), colour=screen.color_system is not None))
    screen.print(score_table(result.modes.values(), evaluation.reference))
    screen.print(
        f"plain: the target alone. RULE@N: the rule, with N drafted tokens a round. {_BATCH_SIZE} texts at a time.\n"
        "These models are tiny, and made for this task. Real ones gain less, and some rules cost them right answers: "
        "measure yours by `lossy-assist evaluate` and `bench`.",
        style="dim",
    )


def _side_by_side(evaluation: Evaluation, problem: int, *, colour: bool) -> Group:
    example, tokenizer = evaluation.examples[problem], evaluation.tokenizer
    (batch,) = batches_of([evaluation.task.encode(example, tokenizer)], device=evaluation.models.target.device)
    table = Table(*SHOWN, expand=True)
    texts, verdicts = [], []
    for mode in (mode for mode in evaluation.modes if mode.label in SHOWN):
        response = run_request(evaluation.models, mode, batch, evaluation.length)
        (row,), ((calls, *_),) = response.rows, response.work
        trace = response.stats.trace if response.stats else ()
        texts.append(traced_text(tokenizer, row.tolist(), trace, colour=colour))
        right = evaluation.task.correct(example, tokenizer.decode(row, skip_special_tokens=True))
        verdicts.append(f"{'[green]right[/]' if right else '[red]wrong[/]'}, {calls} calls of the target")
    table.add_row(*texts, end_section=True)
    table.add_row(*verdicts)
    legend = Text.assemble("Tokens kept only by the lossy rule are ", marked("marked", colour=colour), ".")
    return Group(Text(example.prompt.strip()), table, legend)
