"""What labels cost, side by side: ``python -m benchmarks.label_costs``. Its options are those of ``mine``.

The same prompts are mined several times in one process: with every text written to its end, and with texts that come
back to old ones. Seconds are the CPU's, of everything from a prompt to its labels and states.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import typer
from rich.console import Console

from hf_lossy_assist.cli.console import CleanCommand, flattened, limit_threads
from hf_lossy_assist.cli.mine import MiningOptions
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation.tables import table
from hf_lossy_assist.mining.judge_labels import JudgeMiner
from hf_lossy_assist.mining.mining_run import MiningWorkload
from hf_lossy_assist.mining.prompt_results import Prompt
from hf_lossy_assist.mining.rejoining import Rejoining
from hf_lossy_assist.mining.search import UnfinishedSearches

WAYS: Mapping[str, tuple[int | None, int | None]] = {
    "--look-up 0": (None, None),
    "--look-up 4": (4, None),
    "--look-up 4 --stop-equal 16": (4, 16),
    "--look-up 4 --stop-equal 8": (4, 8),
}
_HEADINGS = ("options", "labels", "target tokens a label", "draft tokens", "seconds", "labels an hour", "agree")
COLUMNS = {name: itemgetter(i) for i, name in enumerate(_HEADINGS)}


@dataclass(frozen=True)
class Cost:
    """The labels of prompts, by prompt, place and both tokens, with their cost."""

    labels: Mapping[tuple[int, ...], bool]
    target_tokens: int
    draft_tokens: int
    seconds: float

    def row(self, name: str, first: Cost) -> tuple[str, ...]:
        n, both = max(1, len(self.labels)), self.labels.keys() & first.labels.keys()
        tokens = f"{self.target_tokens / n:.1f}", f"{self.draft_tokens / n:.1f}"
        pace = f"{self.seconds / n:.2f}", f"{3600 * n / self.seconds:.0f}"
        agree = f"{sum(self.labels[key] == first.labels[key] for key in both)} of {len(both)}"
        return name, f"{len(self.labels)}", *tokens, *pace, "" if self is first else agree


def measure(miner: JudgeMiner, prompts: Sequence[Prompt], look_up: int | None, stop: int | None) -> Cost:
    """Mine the prompts anew; ``look_up`` and ``stop`` are those of :class:`Rejoining`."""
    searches = miner.searches
    writer = replace(searches.writer, rejoining=Rejoining(look_up, stop, searches.decode))
    draft = replace(searches.draft, tokens=0)
    fresh = replace(
        miner, searches=replace(searches, writer=writer, draft=draft, unfinished=UnfinishedSearches()), _read={}
    )
    start, labels, read = time.process_time(), {}, 0
    for one in fresh.outcomes(prompts):
        read += one.columns["target_tokens"]
        names = ("index", "target_token", "draft_token", "important")
        for *key, important in zip(*(one.tokens.get(name, ()) for name in names), strict=True):
            labels[(one.prompt.id, *key)] = important
    return Cost(labels, read, draft.tokens, time.process_time() - start)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=CleanCommand)
@flattened
def main(options: MiningOptions) -> None:
    """Mine the same prompts several times, and print what a label costs."""
    limit_threads(options.threads)
    if options.out is not None or options.labels != "judge" or options.target_api is not None:
        raise LossyValueError("`label_costs` stores nothing, and is about `--labels judge` of a target that runs here")
    options.refuse_conflicts()
    loaded = options.load_all()
    prompts = MiningWorkload(loaded.task, loaded.tokenizer, options.split, options.num_prompts).prompts()
    miner = options.miner(loaded)
    costs = {name: measure(miner, prompts, *how) for name, how in WAYS.items()}
    first = costs[next(iter(costs))]
    Console(soft_wrap=True).print(table([cost.row(name, first) for name, cost in costs.items()], COLUMNS, None))


if __name__ == "__main__":
    app()
