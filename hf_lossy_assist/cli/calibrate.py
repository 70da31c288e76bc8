"""``lossy-assist calibrate``: the fastest setting with a bounded loss, and its certificate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..errors import need
from ..generation.spelling import split
from .console import Console
from .options import read_heads

if TYPE_CHECKING:
    from ..evaluation.tables import Column, NumberTable
    from ..generation.certificate import Certificate


def calibrate(
    *,
    answers: Annotated[Path, Parameter(name="--from", help="A folder that `evaluate` has written.")],
    head: Annotated[list[str], Parameter(help="A trained head, [RULE=]SOURCE. Repeatable.", show_default=False)] = (),
    modes: Annotated[
        str | None, Parameter(help="Settings to test, for each rule from cautious to bold; all by default.")
    ] = None,
    max_loss: Annotated[float, Parameter(help="Points of the score that may be lost on average.")] = 1.0,
    confidence: Annotated[float, Parameter(help="In per cent, of all certified settings together.")] = 95.0,
    out: Annotated[Path, Parameter(help="Folder for the certificate and the generation configuration.")],
) -> None:
    """Certify the fastest setting that loses at most so many points of a task's score [lab].

    The settings of each rule are tested in the given order, by the answers in a
    folder of `evaluate`. OUT gets certificate.json and generation_config.json,
    which `--mode OUT` and `GenerationConfig.from_pretrained(OUT)` read. The
    exit status is 1 if no setting is certified.
    """
    need("lab", "`lossy-assist calibrate`")
    from ..evaluation.calibrating import calibrate as certify_fastest

    screen, chosen = Console(), None if modes is None else [name.strip() for name in split(modes, ",")]
    heads = read_heads(head)
    certificate = certify_fastest(answers, max_loss, confidence, chosen, heads)
    certificate.save(out, heads)
    screen.print(outcome_table(certificate))
    if certificate.chosen is None:
        screen.print(
            f"no setting is certified: evaluate more problems, or allow a larger loss; written: {out}", soft_wrap=True
        )
        raise SystemExit(1)
    screen.print(f"chosen: {certificate.chosen}; written: {out}", soft_wrap=True, markup=False, highlight=False)


def outcome_table(certificate: Certificate) -> NumberTable:
    from ..evaluation.tables import number, table

    columns: dict[str, Column] = {
        "setting": lambda x: x.mode,
        "outcome": lambda x: x.outcome,
        "problems": lambda x: str(x.n),
        "loss\n(points)": lambda x: number(x.loss),
        "surely\nat most": lambda x: number(x.bound),
        "tokens\n/s": lambda x: number(x.tokens_per_second),
    }
    title = f"Is it {certificate.confidence:g} % sure that at most {certificate.max_loss:g} points are lost on average?"
    return table(certificate.tested, columns, title)
