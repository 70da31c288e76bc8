"""Mining runs: a share of a task's prompts, mined and stored one by one."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import LossyValueError
from ..store.process import Process
from ..store.shards import ShardStore
from ..tasks import Example, Task
from .prompt_results import FAILED, SKIPPED, Miner, Prompt, PromptResult


class MiningReport(Protocol):
    """A display of a run's progress."""

    def begin(self, finished: int, total: int) -> None:
        """Show how many of this process's prompts earlier runs finished, and how many there are."""

    def add(self, outcome: PromptResult) -> None:
        """Show a finished prompt."""


# With so many failures and no success, the fault is the task's.
MOST_FAILURES = 10


@dataclass(frozen=True)
class MiningWorkload:
    """The first ``count`` examples of a split as prompts, and this process's share of them.

    Every prompt belongs to one of ``folds`` folds, for heads that are tested on a fold that they were not trained on.
    Prompts of more than ``longest`` tokens are skipped.
    """

    task: Task
    tokenizer: PreTrainedTokenizerBase
    split: str
    count: int
    folds: int = 5
    process: Process = field(default_factory=Process)
    longest: int | None = None

    def size(self) -> int:
        """Return the number of prompts of all processes."""
        return len(self.task.examples(self.split, self.count))

    def examples(self) -> dict[int, Example]:
        """Return this process's examples by their ids."""
        examples = self.task.examples(self.split, self.count)
        if not examples:
            raise LossyValueError(
                f"`split` has to be one with examples, but {self.split!r} of {self.task.name!r} has none"
            )
        return {i: example for i, example in enumerate(examples) if i % self.process.count == self.process.number}

    def prompt(self, id: int, example: Example) -> Prompt:
        return Prompt(id, example, tuple(self.task.encode(example, self.tokenizer)))

    def refusal(self, prompt: Prompt) -> str | None:
        """Say why a prompt can't be mined; None if it can."""
        if not prompt.tokens:
            return "the prompt has no tokens"
        if self.longest is not None and len(prompt.tokens) > self.longest:
            return (
                f"the prompt has {len(prompt.tokens)} tokens, and the models and `max_new_tokens` leave {self.longest}"
            )
        return None


def fold_of(prompt: int, folds: int) -> int:
    return zlib.crc32(str(prompt).encode()) % folds


def longest_prompt(models: Iterable[PreTrainedModel], max_new_tokens: int) -> int | None:
    """Return the length of the longest prompt whose response fits into the models' positions."""
    configs = [model.config.get_text_config(decoder=True) for model in models]
    limits = [limit for config in configs if (limit := getattr(config, "max_position_embeddings", None))]
    return min(limits) - max_new_tokens if limits else None


def mine(miner: Miner, workload: MiningWorkload, store: ShardStore, report: MiningReport) -> None:
    """Mine the unfinished prompts of a workload into an open store, and report each result."""
    examples = workload.examples()
    finished = store.finished()
    wanted = [workload.prompt(i, example) for i, example in examples.items() if i not in finished]
    report.begin(len(examples) - len(wanted), len(examples))
    counts: Counter[str] = Counter()
    for outcome in _outcomes(miner, workload, wanted):
        row = {
            "prompt_id": outcome.prompt.id,
            "fold": fold_of(outcome.prompt.id, workload.folds),
            "status": outcome.status,
            "error": outcome.error,
            "prompt": outcome.prompt.example.prompt,
            "prompt_tokens": outcome.prompt.tokens,
        }
        store.add(row | dict(outcome.columns), outcome.tokens)
        report.add(outcome)
        counts[outcome.status] += 1
        if counts[FAILED] == counts.total() == MOST_FAILURES:
            raise LossyValueError(
                f"`task` has to judge responses, but {workload.task.name!r} failed at each of the first "
                f"{MOST_FAILURES} prompts, at last with {outcome.error}"
            )


def _outcomes(miner: Miner, workload: MiningWorkload, prompts: Sequence[Prompt]) -> Iterator[PromptResult]:
    possible = []
    for prompt in prompts:
        if (reason := workload.refusal(prompt)) is not None:
            yield PromptResult(prompt, SKIPPED, {}, error=reason)
        else:
            possible.append(prompt)
    yield from miner.outcomes(possible)
