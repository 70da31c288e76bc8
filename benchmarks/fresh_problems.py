"""Settings certified on half the problems, and their loss on the rest: ``python -m benchmarks.fresh_problems FILE``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hf_lossy_assist.calibration import bound, certify

from . import command
from .calibration_power import LIMITS
from .outcome_matrix import by_rule, outcomes


def fresh_table(source: Path) -> Table:
    """Lay out each rule's boldest certified setting for each limit; a rule's settings go from cautious to bold."""
    ids, scores = outcomes(source)
    reference, *labels = scores
    half, rules = len(ids) // 2, by_rule(labels)
    losses = {label: scores[reference] - scores[label] for label in labels}
    table = Table(title=f"{source.stem}: certified on {half} problems with 95 %, measured on {len(ids) - half} others")
    for name in ("limit (points)", "boldest certified", "measured", "at most", "on the others", "those: at most"):
        table.add_column(name, justify="right")
    for limit in LIMITS:
        found = certify(
            {rule: [losses[label][:half] for label in settings] for rule, settings in rules.items()}, limit / 100
        )
        for rule, certified in found.items():
            if not certified:
                table.add_row(f"{limit:g}", f"none of {rule}", "", "", "", "")
                continue
            label = rules[rule][len(certified) - 1]
            own = (
                losses[label][:half].mean(),
                certified[-1][0],
                losses[label][half:].mean(),
                bound(losses[label][half:]),
            )
            table.add_row(f"{limit:g}", label, *(f"{100 * value:.2f}" for value in own))
    return table


def main(
    answers: Annotated[list[Path], typer.Argument(help="Files of outcome_matrix, or folders of `evaluate`.")],
) -> None:
    """Certify on the first half of some answers, and show the loss on the second, which calibration has not seen."""
    for source in answers:
        Console().print(fresh_table(source))


app = command(main)

if __name__ == "__main__":
    app()
