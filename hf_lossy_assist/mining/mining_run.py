"""Mining runs. A run mines its share of a task's prompts into a folder; one plan describes all data of a folder."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.compute
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import LossyValueError
from ..heads.identity import ModelIdentity, differing_models
from ..store.folder import MANIFEST, changes, folder_lock, read_manifest, refuse, write_json
from ..store.process import Process
from ..store.shards import LOCK, TABLES, ShardStore, rows_that_count
from ..tasks import Example, Task
from .prompt_results import FAILED, SKIPPED, Miner, Prompt, PromptResult

if TYPE_CHECKING:
    import datasets

_KINDS = {"kind": str, "task": str, "target": (dict, type(None)), "draft": dict, "settings": dict, "runs": list}


@dataclass(frozen=True)
class MiningPlan:
    """What all runs of a folder have in common. Options that make labels cheaper may change from run to run.

    A ``target`` behind an API is None. ``settings`` has what else may not change. Where its
    ``task_data`` is a file, the manifest stores the file's SHA-256 too.
    """

    kind: str
    task: str
    target: PreTrainedModel | None
    draft: PreTrainedModel
    settings: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        """Return the plan for a manifest."""
        data = Path(self.settings.get("task_data") or "")
        digest = {"task_data_sha256": hashlib.sha256(data.read_bytes()).hexdigest()} if data.is_file() else {}
        target = None if self.target is None else asdict(ModelIdentity.of(self.target))
        draft = asdict(ModelIdentity.of(self.draft))
        return {**vars(self), "target": target, "draft": draft, "settings": {**self.settings, **digest}}

    def differences(self, manifest: Mapping[str, Any]) -> list[str]:
        """Return a sentence for each difference to the plan in a manifest."""
        record = json.loads(json.dumps(self.record()))  # as JSON has it
        found = changes(manifest, record, ("kind", "task")) + changes(manifest["settings"], record["settings"])
        return found + differing_models(manifest, {"target": self.target, "draft": self.draft})


def open_run(folder: Path, plan: MiningPlan, provenance: Mapping[str, Any]) -> None:
    """Add a run to a folder's manifest, or make one; refuse a folder with data of another plan.

    ``provenance`` has the versions, command line, date and machine of the run.
    """
    with folder_lock(folder, LOCK):
        manifest = {**plan.record(), "runs": []}
        if (folder / MANIFEST).exists():
            manifest = read_manifest(folder, "mine", _KINDS)
            try:
                found = plan.differences(manifest)
            except LossyValueError as error:
                raise LossyValueError(f"{str(folder / MANIFEST)!r} names no model: {error}") from error
            refuse(folder, found)
        write_json(folder / MANIFEST, {**manifest, "runs": [*manifest["runs"], dict(provenance)]})


@dataclass(frozen=True)
class Mined:
    """The manifest and the rows of a folder of mined data.

    ``tokens`` has a row for each labelled token, ``prompts`` one for each finished prompt, with labels or without.
    """

    manifest: dict[str, Any]
    tokens: datasets.Dataset
    prompts: datasets.Dataset


def load_mined(folder: str | Path) -> Mined:
    """Read what ``lossy-assist mine`` has written so far."""
    import datasets

    manifest = read_manifest(Path(folder), "mine", _KINDS)
    parts = rows_that_count(Path(folder))
    if not parts:
        raise LossyValueError(
            f"`folder` has to hold mined prompts, but {str(folder)!r} has none yet; repeat the `mine` command"
        )
    return Mined(manifest, *(datasets.Dataset(_joined([part[x] for part in parts])) for x in TABLES))


def _joined(tables: list[pyarrow.Table]) -> pyarrow.Table:
    """Return one table; labels of earlier versions, which have no weight, stand for themselves."""
    whole = pyarrow.concat_tables(tables, promote_options="default")
    at = whole.schema.get_field_index("weight")
    return whole if at < 0 else whole.set_column(at, "weight", pyarrow.compute.fill_null(whole["weight"], 1.0))


# With so many failures and no success, the fault is the task's.
MOST_FAILURES = 10


@dataclass(frozen=True)
class MiningWorkload:
    """The first ``count`` examples of a split as prompts, and this process's share of them.

    Every prompt belongs to one of ``folds`` folds, so that a head can be tested on a fold that it was not trained on.
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

    def prompts(self, finished: Collection[int] = ()) -> list[Prompt]:
        """Return this process's prompts that no run has ``finished``."""
        examples = {i: example for i, example in self.examples().items() if i not in finished}
        return [Prompt(i, one, tuple(self.task.encode(one, self.tokenizer))) for i, one in examples.items()]

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


def mine(
    miner: Miner, workload: MiningWorkload, prompts: Sequence[Prompt], store: ShardStore
) -> Iterator[PromptResult]:
    """Mine prompts of a workload into an open store, and yield each result once it is stored."""
    asked = [(prompt, workload.refusal(prompt)) for prompt in prompts]
    skipped = [PromptResult(prompt, SKIPPED, {}, error=reason) for prompt, reason in asked if reason is not None]
    counts: Counter[str] = Counter()
    for outcome in chain(skipped, miner.outcomes([prompt for prompt, reason in asked if reason is None])):
        row = {
            "prompt_id": outcome.prompt.id,
            "fold": fold_of(outcome.prompt.id, workload.folds),
            "status": outcome.status,
            "error": outcome.error,
            "prompt": outcome.prompt.example.prompt,
            "prompt_tokens": outcome.prompt.tokens,
        }
        store.add(row | dict(outcome.columns), outcome.tokens)
        yield outcome
        counts[outcome.status] += 1
        if counts[FAILED] == counts.total() - len(skipped) == MOST_FAILURES:
            raise LossyValueError(
                f"`task` has to judge responses, but {workload.task.name!r} failed at each of the first "
                f"{MOST_FAILURES} prompts, at last with {outcome.error}"
            )
