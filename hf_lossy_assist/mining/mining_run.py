"""Mining runs: a share of a task's prompts, mined and stored one by one."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import LossyValueError
from ..tasks import Example, Task
from .prompt_results import FAILED, SKIPPED, Miner, Prompt, PromptResult
from .storage import Store

_PREFIXES = ("PMI_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_")


@dataclass(frozen=True)
class Process:
    """One of the processes that share the work: its number, from 0 on, their count, and its number on this machine."""

    number: int = 0
    count: int = 1
    local: int = 0


def this_process() -> Process:
    """Return this process as the environment describes it; a single one where it says nothing.

    Nothing is sent between the processes, so none has to wait for another.
    """
    from accelerate.utils import get_int_from_env

    def read(name: str, mpi: str, default: int) -> int:
        return get_int_from_env([name, *(prefix + mpi for prefix in _PREFIXES)], default)

    return Process(read("RANK", "RANK", 0), read("WORLD_SIZE", "SIZE", 1), read("LOCAL_RANK", "LOCAL_RANK", 0))


class MiningReport(Protocol):
    """The interface of what shows a run's progress."""

    def begin(self, finished: int, total: int) -> None:
        """Show how many of this process's prompts earlier runs finished, and how many there are."""

    def add(self, outcome: PromptResult) -> None:
        """Show a finished prompt."""


# So many failures and no success mean that the task is wrong, and not one of its problems.
MOST_FAILURES = 10


@dataclass(frozen=True)
class MiningWorkload:
    """The prompts of a run, the first ``count`` examples of a split, and this process's share of them.

    Every prompt is put into one of ``folds`` folds, for heads that are tested on what they were not trained on. Prompts
    of more than ``longest`` tokens are skipped.
    """

    task: Task
    tokenizer: PreTrainedTokenizerBase
    split: str
    count: int
    folds: int = 5
    process: Process = field(default_factory=Process)
    longest: int | None = None

    def size(self) -> int:
        """Return how many prompts all processes have together."""
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
        """Return the prompt of an example, with the tokens that the models see."""
        return Prompt(id, example, tuple(self.task.encode(example, self.tokenizer)))

    def refusal(self, prompt: Prompt) -> str | None:
        """Say why a prompt can't be mined, or None where it can."""
        if not prompt.tokens:
            return "the prompt has no tokens"
        if self.longest is not None and len(prompt.tokens) > self.longest:
            return (
                f"the prompt has {len(prompt.tokens)} tokens, and the models and `max_new_tokens` leave {self.longest}"
            )
        return None


def fold_of(prompt: int, folds: int) -> int:
    """Return the fold that a prompt belongs to, the same in every run.

    Examples
    --------
    >>> from collections import Counter
    >>> sorted(Counter(fold_of(prompt, 5) for prompt in range(1000)).values())[0] > 170
    True
    """
    return zlib.crc32(str(prompt).encode()) % folds


def longest_prompt(models: Iterable[PreTrainedModel], max_new_tokens: int) -> int | None:
    """Return how many tokens a prompt may have, so that its response fits into the models' positions."""
    configs = [model.config.get_text_config(decoder=True) for model in models]
    limits = [limit for config in configs if (limit := getattr(config, "max_position_embeddings", None))]
    return min(limits) - max_new_tokens if limits else None


def mine(miner: Miner, workload: MiningWorkload, store: Store, report: MiningReport) -> None:
    """Mine what is not finished of a workload into an open store; ``report`` hears of each stored result."""
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
