"""Labelling: which prompts get labels, by which models; kinds of labels; and the run that stores them in a folder."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from transformers import PreTrainedModel

from ..compat.inputs import ending_tokens
from ..errors import LossyValueError
from ..models.reading import check_readable
from ..pairs import ROLES, Pair
from ..progress import track
from ..store.folder import Process, claimed
from ..store.records import Records
from ..tasks import Example
from ..tasks.api_model import ApiModel
from ..values import ONE_OR_MORE, Checked, Count, Text
from .choice import Choice, GumbelMax
from .writing import Prompt, ResponseLimits

MINED, SKIPPED, FAILED = "mined", "skipped", "failed"


@dataclass(frozen=True)
class PromptLabels(Checked):
    """A finished prompt.

    A ``"skipped"`` prompt can't give labels; at a ``"failed"`` one the task raised an error, and it may be tried again.
    ``error`` says more. ``columns`` are entries that only these labels have.
    """

    id: Count
    status: Text
    error: str | None = None
    prompt: Text = ""
    prompt_tokens: tuple[int, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, prompt: Prompt, status: str, columns: Mapping[str, Any] | None = None, error: str | None = None
    ) -> Self:
        return cls(prompt.id, status, error, prompt.example.prompt, prompt.tokens, columns or {})


Labelled = tuple[PromptLabels, Mapping[str, np.ndarray]]
"""A finished prompt, with the columns ``(n, …)`` of its tokens."""


class LabelFolder(Records[PromptLabels]):
    """Finished prompts; the arrays of each are the columns of its labelled tokens."""

    row_type, command, file, argument = PromptLabels, "mine", "prompts.jsonl", "data"
    kinds = {"kind": str, "task": str, "target": (dict, NoneType), "draft": dict, "settings": dict}  # noqa: RUF012
    growing = frozenset({"problems"})


@dataclass(frozen=True, eq=False)
class Mined:
    """The manifest, the prompts and the labelled tokens ``(N, …)`` of a folder, by column; one is ``"prompt_id"``."""

    manifest: Mapping[str, Any]
    tokens: Mapping[str, np.ndarray]
    prompts: list[PromptLabels]

    def __len__(self) -> int:
        return len(self.tokens["prompt_id"])


def load_mined(folder: str | Path) -> Mined:
    """Read what ``lossy-assist mine`` has written so far."""
    found = LabelFolder(Path(folder))
    if not len(found):
        raise LossyValueError(
            f"`data` has to hold mined prompts, but {str(folder)!r} has none yet; repeat the `mine` command"
        )
    parts = [(row.id, arrays) for row in found if (arrays := found.arrays(row.id))]
    names = [name for name in parts[0][1] if all(name in arrays for _, arrays in parts)] if parts else []
    tokens = {"prompt_id": np.array([id for id, arrays in parts for _ in arrays[names[0]]], dtype=np.int64)}
    tokens |= {name: np.concatenate([arrays[name] for _, arrays in parts]) for name in names}
    return Mined(found.plan, tokens, [*found])


MOST_FAILURES = 10
"""So many prompts may fail before any succeeds; then the task is at fault."""


@dataclass(frozen=True)
class Labels(Checked, ABC):
    """A kind of labels: its settings, and the miner that they describe."""

    name: ClassVar[str]  # of the kind, of the folder, and with it of the heads
    free: ClassVar[tuple[str, ...]] = ()  # settings that may change from run to run of a folder

    temperature = None

    def check(self, labelling: Labelling) -> None:
        """Refuse labels that the target can't give."""
        if labelling.pair.target is None:
            raise LossyValueError(
                f"`labels` {self.name!r} need the target's probabilities, but it is behind an API; give its "
                "`model`, or choose other labels"
            )

    def record(self) -> dict[str, Any]:
        """Return the settings that a continued run has to keep."""
        return {name: value for name, value in asdict(self).items() if name not in (*self.free, "temperature")}

    @abstractmethod
    def miner(self, labelling: Labelling) -> Any:
        """Return what labels prompts: its ``outcomes(prompts)`` are :data:`.labelling.Labelled`, in any order."""


@dataclass(frozen=True, eq=False)
class Labelling(Checked):
    """A task's prompts, the models that read them, and all that their labels depend on.

    Parameters
    ----------
    pair
        The models, their tokenizer, and the task that the prompts come from. The target may be None if ``api`` writes
        its responses.
    labels
        The kind of labels, with its settings.
    api
        The target behind an OpenAI-compatible API.
    limit
        The number of prompts, of all processes together; a repeated run may raise it.
    split
        The task's split, by default its first.
    batch_size
        Prompts at work at once.
    max_new_tokens
        The longest response. Prompts that leave no room for it in the models' positions are skipped.
    seed
        The seed of all draws.
    settings
        Further settings that a continued run has to keep. ``data`` may name the task's file.
    process
        This process; the prompts are shared among all.
    """

    pair: Pair
    labels: Labels
    api: ApiModel | None = None
    limit: Annotated[int, ONE_OR_MORE] = 1000
    split: str | None = None
    batch_size: Annotated[int, ONE_OR_MORE] = 32
    max_new_tokens: Annotated[int, ONE_OR_MORE] = 160
    seed: Count = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    process: Process = field(default_factory=Process)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pair.target is None and self.api is None:
            raise LossyValueError("`target` has to be a model, or `api` the target behind an API, but neither is given")
        self.labels.check(self)
        for model in self.models.values():
            check_readable(model)
        sizes = {role: model.config.get_text_config(decoder=True).vocab_size for role, model in self.models.items()}
        if min(sizes.values()) < len(self.pair.tokenizer):
            raise LossyValueError(
                f"`draft` has to share the target's tokenizer, but that has {len(self.pair.tokenizer)} tokens, and the "
                f"models have {sizes}"
            )

    @property
    def models(self) -> dict[str, PreTrainedModel]:
        """The models in this process, by role."""
        return {role: model for role in ROLES if (model := getattr(self.pair, role)) is not None}

    @property
    def choice(self) -> Choice:
        temperature = self.labels.temperature
        return Choice() if temperature is None else GumbelMax(self.seed, temperature)

    @property
    def limits(self) -> ResponseLimits:
        ends = ending_tokens((self.pair.target or self.pair.draft).generation_config)
        if self.api is not None and self.pair.tokenizer.eos_token_id is not None:
            # However a text ends behind an API, here it ends with the tokenizer's EOS.
            ends = ends | {self.pair.tokenizer.eos_token_id}
        return ResponseLimits(ends, self.max_new_tokens)

    @cached_property
    def examples(self) -> list[Example]:
        """The examples of all processes."""
        split = self.pair.task.splits[0] if self.split is None else self.split
        examples = self.pair.task.examples(split, self.limit)
        if not examples:
            raise LossyValueError(
                f"`split` has to be one with examples, but {split!r} of {self.pair.task.name!r} has none"
            )
        return examples

    def prompts(self, finished: Collection[int] = ()) -> list[Prompt]:
        """Return this process's prompts that no run has ``finished``."""
        mine = range(self.process.number, len(self.examples), self.process.count)
        chosen = {i: self.examples[i] for i in mine if i not in finished}
        return [Prompt(i, one, tuple(self.pair.task.encode(one, self.pair.tokenizer))) for i, one in chosen.items()]

    def refusal(self, prompt: Prompt) -> str | None:
        """Say why a prompt can't get labels; None if it can."""
        configs = [model.config.get_text_config(decoder=True) for model in self.models.values()]
        positions = [limit for config in configs if (limit := getattr(config, "max_position_embeddings", None))]
        longest = min(positions, default=math.inf) - self.max_new_tokens
        if not prompt.tokens:
            return "the prompt has no tokens"
        if len(prompt.tokens) > longest:
            return f"the prompt has {len(prompt.tokens)} tokens, and the models and `max_new_tokens` leave {longest}"
        return None

    def record(self) -> dict[str, Any]:
        """Return what all runs of a folder have in common, for its manifest.

        A ``target`` behind an API is None. Where the task's ``data`` is a file, the manifest has its SHA-256 too.
        """
        data, temperature = Path(self.settings.get("data") or ""), self.labels.temperature
        digest = {"data_sha256": hashlib.sha256(data.read_bytes()).hexdigest()} if data.is_file() else {}
        settings = {
            "labels": self.labels.name,
            **self.labels.record(),
            "split": self.pair.task.splits[0] if self.split is None else self.split,
            "max_new_tokens": self.max_new_tokens,
            "dtype": {role: str(model.dtype).removeprefix("torch.") for role, model in self.models.items()},
            "decoding": "greedy" if temperature is None else {"temperature": temperature, "seed": self.seed},
            "api_model": self.api and self.api.model,
            **self.settings,
            **digest,
        }
        return {
            "kind": self.labels.name,
            "task": self.pair.task.name,
            **self.pair.identity,
            "settings": settings,
            "problems": [one.digest(self.pair.task.encode(one, self.pair.tokenizer)) for one in self.examples],
        }


def mine(labelling: Labelling, out: str | Path, *, provenance: Mapping[str, Any] | None = None) -> list[PromptLabels]:
    """Label this process's prompts, store each in the folder ``out`` before the next one, and return their rows.

    A repeated run labels what is missing. Read the folder by :func:`.labelling.load_mined`.

    Parameters
    ----------
    labelling
        The prompts and the models.
    out
        A new folder, or that of an earlier run with the same settings.
    provenance
        What the manifest says of this run: versions, command line, date, machine.

    Raises
    ------
    LossyValueError
        If the folder has labels of other settings, or if the task fails at each of the first prompts.
    """
    miner, out = labelling.labels.miner(labelling), Path(out)
    with claimed(out, labelling.process):
        store = LabelFolder(out, {**labelling.record(), "runs": [dict(provenance or {})]})
        prompts = labelling.prompts([id for id in store.done() if store[id].status != FAILED])
        asked = [(prompt, labelling.refusal(prompt)) for prompt in prompts]
        skipped = [
            (PromptLabels.of(prompt, SKIPPED, error=reason), {}) for prompt, reason in asked if reason is not None
        ]
        results = chain(skipped, miner.outcomes([prompt for prompt, reason in asked if reason is None]))
        rows: list[PromptLabels] = []
        for row, tokens in track(results, total=len(prompts), what="mining"):
            store.add(row, **tokens)
            rows.append(row)
            tried = len(rows) - len(skipped)
            if tried == MOST_FAILURES and all(row.status == FAILED for row in rows[-tried:]):
                raise LossyValueError(
                    f"`task` has to judge responses, but {labelling.pair.task.name!r} failed at each of the first "
                    f"{MOST_FAILURES} prompts, at last with {row.error}"
                )
    return rows
