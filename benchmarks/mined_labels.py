"""``python -m benchmarks.mined_labels``: labels of ``mine`` without the states, which are too large to keep here.

``keep`` writes the labels of a folder to a file. ``restore`` reads the states again, in one forward pass of each model
for each prompt, into a folder with which ``mine`` goes on. A prompt is known by its place among the task's, and by a
checksum of its tokens.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_lossy_assist.cli.console import CleanCommand
from hf_lossy_assist.cli.mine import SETTINGS
from hf_lossy_assist.cli.options import Assistant, Dtype, PairName, Settings, Target, TaskData, read_set
from hf_lossy_assist.cli.setup import Setup
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation.meters import provenance
from hf_lossy_assist.store.folder import append_lines
from hf_lossy_assist.tasks import Task
from hf_lossy_assist.training.judge_labels import JudgeMiner
from hf_lossy_assist.training.label_folder import MINED, Mined, load_mined
from hf_lossy_assist.training.labelling import Labelling, mine
from hf_lossy_assist.training.labels import JudgeLabels
from hf_lossy_assist.training.search import Found, Mismatch, Searched
from hf_lossy_assist.training.writing import Prompt, ResponseCost

Search = tuple[ResponseCost, Found]
_COLUMNS = "prompt_id answer first_response last_response target_tokens retokenised solved".split()


@dataclass(frozen=True)
class Known:
    """The searches that are known, and the checksums of their prompts where these were finished."""

    searches: Mapping[int, Search] = field(default_factory=dict)
    checksums: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownLabels:
    """Stands in for a search: yields the labels that are known, and leaves the other prompts out."""

    known: Known
    task: Task

    def run(self, prompts: Iterable[Prompt]) -> Iterator[Searched]:
        for prompt in prompts:
            if prompt.id not in self.known.searches:
                continue
            if self.known.checksums.get(prompt.id) not in (None, checksum(prompt.tokens)):
                raise LossyValueError(
                    f"`file` has labels of another prompt than {prompt.id} of `task`, "
                    f"{prompt.example.prompt[:80]!r}; give the task and the data that were mined"
                )
            cost, found = self.known.searches[prompt.id]
            if found.solved is None and prompt.example.answer:
                found = replace(found, solved=self.task.equivalent(found.answer, prompt.example.answer))
            yield Searched(prompt, cost, found)


@dataclass(frozen=True)
class RestoredLabels(JudgeLabels):
    """Labels that are known."""

    known: Known = field(default_factory=Known)

    def record(self) -> dict[str, Any]:
        return JudgeLabels().record()  # with which `mine` goes on

    def miner(self, labelling: Labelling) -> JudgeMiner:
        return JudgeMiner(KnownLabels(self.known, labelling.task), labelling.models)


def labels_of_mismatches(argument: str, folder: Path) -> Mined:
    """Read what ``mine --labels judge`` has written; ``argument`` is the name that errors use."""
    mined = load_mined(folder)
    if mined.manifest["kind"] != "judge":
        raise LossyValueError(f"`{argument}` has to be a folder with labels of mismatches, but is {str(folder)!r}")
    return mined


def checksum(tokens: Iterable[int]) -> int:
    return zlib.crc32(" ".join(map(str, tokens)).encode())


def search_of(record: Mapping[str, Any]) -> tuple[int, Search]:
    """Return the prompt and the search of a line, or of a row of ``mine`` with its labels."""
    mismatches = tuple(Mismatch(*values) for values in record["mismatches"])
    first, last = tuple(record["first_response"]), tuple(record["last_response"])
    cost = ResponseCost(record["target_tokens"], record["retokenised"])
    return record["prompt_id"], (cost, Found(first, last, record["answer"], mismatches, record["solved"]))


def read(path: Path) -> Known:
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    checksums = {record["prompt_id"]: record["prompt"] for record in records if "prompt" in record}
    return Known(dict(map(search_of, records)), checksums)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=CleanCommand)
def keep(
    folder: Annotated[Path, typer.Argument(help="What `mine` has written.")],
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    longest: Annotated[
        int | None, typer.Option(help="Leave out prompts with a longer response, whose continuations are cut off.")
    ] = None,
) -> None:
    """Write the labels of a folder, a line for each prompt, without texts and states."""
    mined = labels_of_mismatches("folder", folder)
    names = ("index", "target_token", "draft_token", "important", "weight")
    labels: dict[int, list[list[Any]]] = {}
    for prompt, *values in zip(mined.tokens["prompt_id"], *(mined.tokens[name] for name in names), strict=True):
        labels.setdefault(prompt, []).append(values)
    kept = []
    for row in sorted((row for row in mined.prompts if row["status"] == MINED), key=itemgetter("prompt_id")):
        if longest is None or max(len(row["first_response"]), len(row["last_response"])) <= longest:
            own = labels.get(row["prompt_id"], [])
            # Every mismatch may have been labelled; then none stands for others.
            mismatches = [values if values[-1] != 1 else values[:-1] for values in own]
            record = {name: row[name] for name in _COLUMNS} | {"mismatches": mismatches}
            kept.append(record | {"prompt": checksum(row["prompt_tokens"])})
    out.unlink(missing_ok=True)
    append_lines(out, kept)
    typer.echo(f"{len(kept)} prompts, {sum(len(record['mismatches']) for record in kept)} mismatches")


@app.command(cls=CleanCommand)
def restore(
    file: Annotated[Path, typer.Argument(help="What `keep` has written.")],
    out: Annotated[Path, typer.Option(help="Folder for the labels.")],
    task: Annotated[str, typer.Option(help="The task that was mined.")],
    pair: PairName = None,
    model: Target = None,
    assistant: Assistant = None,
    dtype: Dtype = None,
    data: TaskData = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest response.")] = 160,
    settings: Settings = None,
) -> None:
    """Read the states of known labels anew; `mine` with the same options and folder goes on with other prompts.

    The number of prompts is that of the file.
    """
    given, known = read_set(settings, SETTINGS), read(file)
    setup = Setup.of(pair, model, assistant, dtype, None, given, task=task, data=data, split=given.get("split"))
    loaded = setup.load()
    labelling = Labelling(
        loaded.task, loaded.tokenizer, loaded.target, loaded.draft, RestoredLabels(known=known),
        limit=max(known.searches, default=0) + 1, split=setup.split, max_new_tokens=max_new_tokens,
        settings={"data": data, "task_settings": setup.task_settings},
    )  # fmt: skip
    mine(labelling, out, provenance=provenance(loaded.draft.device))


if __name__ == "__main__":
    app()
