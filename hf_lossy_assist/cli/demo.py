"""``lossy-assist demo``: questions answered by the target alone, losslessly and by lossy rules, and a verdict."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Group
from rich.table import Table
from rich.text import Text

from .console import Console, limit_threads
from .options import AT_LEAST_1

if TYPE_CHECKING:
    from ..evaluation.evaluation import Evaluation
    from ..evaluation.result import EvaluationResult

# Rules keep most of 8 drafted tokens, so only longer drafts tell them apart; lossless may be fastest with shorter ones.
MODES = "plain,lossless@4,lossless@8,lossless@12,lossless@16,min_p@16,regret@16,judge@16,typical@16"
_BATCH_SIZE = 10


def demo(
    *,
    limit: Annotated[int, AT_LEAST_1, Parameter(help="Test problems, answered by every mode.")] = 100,
    threads: Annotated[int, AT_LEAST_1, Parameter(help="CPU threads; one is fastest for models this small.")] = 1,
) -> None:
    """Answer questions in several modes on the bundled pair: quality, calls of the target, and a verdict."""
    from transformers.utils.logging import disable_progress_bar

    from .. import pairs
    from ..evaluation.answers import by_mode
    from ..evaluation.evaluation import Evaluation
    from ..evaluation.modes import parse_modes

    limit_threads(threads)
    disable_progress_bar()
    screen, said = Console(), _said()
    pair, modes = pairs.load("arithmetic"), parse_modes(MODES)
    evaluation = Evaluation(pair, modes, reference="plain", limit=limit, batch_size=_BATCH_SIZE)
    screen.print(said["asked"].format(limit=limit, modes=len(modes)), style="dim")
    result = evaluation.complete(None)
    shown, answers = shown_of(result), by_mode(result.answers)
    plain, rule = answers[shown[0]], answers[shown[-1]]
    # Show a question that both answer right, and in which only the lossy rule keeps some tokens.
    known = (i for i in range(limit) if plain[i].score == rule[i].score == 1 and rule[i].lossy)
    screen.print(_side_by_side(evaluation, shown, next(known, 0), colour=screen.color_system is not None))
    for each in result.tables:
        screen.print(each)
    screen.print(said["modes"].format(size=_BATCH_SIZE), style="dim")
    screen.print("Verdict", style="bold")
    screen.print("\n".join(result.verdict), highlight=False)
    if any(row.difference > 0 for row in result.modes.values()):
        screen.print(said["above"], style="dim")
    screen.print(said["real"], style="dim")


def _said() -> dict[str, str]:
    return json.loads(files(__package__).joinpath("demo.json").read_text(encoding="utf-8"))


def shown_of(result: EvaluationResult) -> tuple[str, str, str]:
    """Return the labels of the target alone, the fastest lossless setting, and the fastest rule with no loss shown."""
    plain, lossless, rows = result.reference, result.fastest["lossless"], result.modes
    rules = [label for label in rows if label not in (plain, *result.baselines["lossless"])]
    good = [label for label in rules if rows[label].high >= 0]
    return plain, lossless, max(good or rules, key=lambda label: rows[label].tokens_per_second)


def _side_by_side(evaluation: Evaluation, shown: tuple[str, ...], problem: int, *, colour: bool) -> Group:
    from ..evaluation.requests import batches_of, run_request
    from .rendering import marked, traced_text

    example, pair = evaluation.examples[problem], evaluation.pair
    (batch,) = batches_of([pair.task.encode(example, pair.tokenizer)], device=pair.target.device)
    table = Table(*shown, expand=True)
    texts, verdicts = [], []
    for mode in (mode for mode in evaluation.modes if mode.label in shown):
        response = run_request(pair, mode, batch, evaluation.length)
        (row,), ((calls, *_),) = response.rows, response.work
        trace = response.stats.trace if response.stats else ()
        texts.append(traced_text(pair.tokenizer, row.tolist(), trace, colour=colour))
        right = pair.task.correct(example, pair.tokenizer.decode(row, skip_special_tokens=True))
        verdict = ("right", "green") if right else ("wrong", "red")
        verdicts.append(Text.assemble(verdict, f", {calls} calls of the target"))
    table.add_row(*texts, end_section=True)
    table.add_row(*verdicts)
    legend = Text.assemble(_said()["legend"], marked("marked", colour=colour), ".")
    return Group(Text(example.prompt.strip()), table, legend)
