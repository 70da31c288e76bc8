"""``lossy-assist demo``: questions answered by the target alone, losslessly and by lossy rules, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    from ..evaluation.result import score_table

    limit_threads(threads)
    disable_progress_bar()
    screen = Console()
    evaluation = Evaluation(
        pairs.load("arithmetic"), parse_modes(MODES), reference="plain", limit=limit, batch_size=_BATCH_SIZE
    )
    screen.print(f"{limit} problems, each answered in {len(evaluation.modes)} modes", style="dim")
    result = evaluation.complete(None)
    verdict = Verdict.of(result)
    answers = by_mode(result.answers)
    plain, rule = (answers[label] for label in (verdict.shown[0], verdict.shown[-1]))
    # Show a question that both answer right, and in which only the lossy rule keeps some tokens.
    known = (i for i in range(limit) if plain[i].score == rule[i].score == 1 and rule[i].lossy)
    screen.print(_side_by_side(evaluation, verdict.shown, next(known, 0), colour=screen.color_system is not None))
    screen.print(score_table([*result.modes.values()], evaluation.reference))
    screen.print(
        f"plain: the target alone. RULE@N: the rule, with N drafted tokens a round. {_BATCH_SIZE} texts at a time.",
        style="dim",
    )
    screen.print(f"[bold]Verdict:[/] {verdict.words}", highlight=False, markup=True)
    screen.print(
        "These models are tiny, and made for this task. Real ones gain less, and some rules cost them right answers: "
        "measure yours by `lossy-assist evaluate`.",
        style="dim",
    )


@dataclass(frozen=True)
class Verdict:
    """Which rule to take, in words, and the labels of the modes that it is about: reference, lossless, rule."""

    shown: tuple[str, str, str]
    words: str

    @classmethod
    def of(cls, result: EvaluationResult) -> Verdict:
        """Compare the fastest rule that is not shown to lose points with the fastest lossless setting.

        All modes answer a batch before any answers the next, so speeds are compared batch by batch.
        """
        plain, rows = result.reference, result.modes
        settings = [label for label in rows if label.partition("@")[0] == "lossless"]
        rules = [label for label in rows if label not in (plain, *settings)]
        good = [label for label in rules if rows[label].high >= 0]
        lossless, rule = (max(labels, key=lambda x: rows[x].tokens_per_second) for labels in (settings, good or rules))
        times = rows[rule].speed.times
        speed = (
            f"{rule} is the fastest rule{' that is not shown to lose points' if good else ''}: "
            f"{times['lossless']} × as fast as {lossless}, the fastest lossless setting, and "
            f"{times['plain']} × as fast as the target alone (in brackets: a 95 % interval over the "
            "batches)."
        )
        slow = ""
        if times["lossless"][1] <= 1:
            slow = f"No rule is shown to be faster than {lossless}, the fastest lossless setting."
        bad = "" if good else "Every rule is shown to lose points."
        return cls((plain, lossless, rule), " ".join(filter(None, (slow, bad, speed, _loss(result, rule)))))


def _loss(result: EvaluationResult, rule: str) -> str:
    """Say how far a rule's score is from the target's, and why it may be above it."""
    from ..evaluation.answers import by_mode
    from ..evaluation.result import points

    score, answers = result.modes[rule], by_mode(result.answers)
    own, target = answers[rule], answers[result.reference]
    mended, broken = (sum(a[i].score > b[i].score for i in own) for a, b in ((own, target), (target, own)))
    said = (
        f"Its score differs from that of the target alone by {points(score)} points, with 95 % confidence: it answers "
        f"{mended} problems right that the target alone gets wrong, and {broken} the other way round."
    )
    if not mended:
        return said
    return (
        f"{said} A token that a rule keeps may lead to another solution, without the target's error or with one of "
        "its own, so a lossy rule may score above its target; do not count on it."
    )


def _side_by_side(evaluation: Evaluation, shown: Sequence[str], problem: int, *, colour: bool) -> Group:
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
    legend = Text.assemble("Tokens kept only by the lossy rule are ", marked("marked", colour=colour), ".")
    return Group(Text(example.prompt.strip()), table, legend)
