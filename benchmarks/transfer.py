"""What a judge is worth on the other bundled pair's task, beside that pair's own judge and DropMatch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import command
from hf_lossy_assist import JudgeHead, evaluate, pairs
from hf_lossy_assist.cli.console import limit_threads
from hf_lossy_assist.cli.options import numbers
from hf_lossy_assist.evaluation import records
from hf_lossy_assist.evaluation.modes import DecodingMode
from hf_lossy_assist.evaluation.quality import ModeScore
from hf_lossy_assist.heads import ModelIdentity
from hf_lossy_assist.pairs import Pair

PAIRS = ("arithmetic", "programs")


@dataclass(frozen=True)
class Transfer:
    """A mode's score on one pair's task, with the judge of a pair."""

    task: str
    head: str
    result: ModeScore


def for_pair(head: JudgeHead, pair: Pair) -> JudgeHead:
    """Return a head with the weights of ``head`` that lets itself be used with a pair that it knows nothing of."""
    identities = {"target": ModelIdentity.of(pair.target), "draft": ModelIdentity.of(pair.draft)}
    return JudgeHead(replace(head.config, **identities), head.weight, head.bias)


def transfers(thresholds: Sequence[float], *, problems: int, gamma: int, batch_size: int) -> Iterator[Transfer]:
    """Answer each pair's test problems with each pair's judge; scores are compared with lossless decoding."""
    loaded = {name: pairs.load(name) for name in PAIRS}
    lossless, dropmatch = (DecodingMode(rule, rule, gamma=gamma) for rule in ("lossless", "dropmatch"))
    judges = [DecodingMode(f"judge τ={t}", "judge", {"threshold": t}, gamma) for t in thresholds]
    for task, pair in loaded.items():
        for source, lender in loaded.items():
            result = evaluate(
                pair.target, pair.draft, tokenizer=pair.tokenizer, task=pair.task, limit=problems,
                modes=[lossless, *([dropmatch] if source == task else []), *judges], reference="lossless",
                heads={"judge": for_pair(lender.heads["judge"], pair)}, batch_size=batch_size,
            )  # fmt: skip
            for score in result.modes.values():
                yield Transfer(task, source, score)


def main(
    problems: Annotated[int, typer.Option(min=1, help="Test problems of each task.")] = 300,
    gamma: Annotated[int, typer.Option(min=1, help="Drafted tokens per round.")] = 32,
    thresholds: Annotated[str, typer.Option(help="The judge's, with commas between.")] = "0.05,0.2,0.5",
    batch_size: Annotated[int, typer.Option(min=1, help="Problems at a time.")] = 50,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write all rows to this file, as JSON lines.")] = None,
) -> None:
    """Answer both tasks with both judges."""
    limit_threads(threads)
    wanted = numbers("--thresholds", thresholds, float)
    origin = records.provenance("cpu", problems=problems, gamma=gamma)
    with records.written(out, origin) as write:
        for row in transfers(wanted, problems=problems, gamma=gamma, batch_size=batch_size):
            write(row)
            typer.echo(
                f"{row.task:<11}{row.head:<11}{row.result.label:<14}{100 * row.result.score:6.1f} %  "
                f"{row.result.mean_accepted:6.2f} kept"
            )


app = command(main)

if __name__ == "__main__":
    app()
