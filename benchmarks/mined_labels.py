"""``python -m benchmarks.mined_labels``: labels of ``mine`` without the states, which are too large to keep here.

``keep`` writes the labels of a folder to a file. ``restore`` reads the states again, in one forward pass of each model
for each prompt, into a folder with which ``mine`` goes on. ``complete`` finds out which changed answers are right, for
labels that do not say it. A prompt is known by its place among the task's, and by a checksum of its tokens.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import write_lines
from hf_lossy_assist.cli.console import CleanCommand, Console, progress
from hf_lossy_assist.cli.mine import SETTINGS
from hf_lossy_assist.cli.options import Assistant, Dtype, PairName, Settings, Target, TaskData, read_set
from hf_lossy_assist.cli.setup import Setup
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation.meters import provenance
from hf_lossy_assist.tasks import Task
from hf_lossy_assist.training.judge_labels import JudgeMiner
from hf_lossy_assist.training.label_folder import MINED, Mined, load_mined
from hf_lossy_assist.training.labelling import Labelling, mine
from hf_lossy_assist.training.labels import JudgeLabels
from hf_lossy_assist.training.search import Ask, Continue, Found, Mismatch, Request, Searched, Searches
from hf_lossy_assist.training.writing import Prompt, ResponseCost

Search = tuple[ResponseCost, Found]
_COLUMNS = "prompt_id answer first_response last_response target_tokens retokenised solved".split()


@dataclass(frozen=True)
class Known:
    """The searches that are known, and the checksums of their prompts where these were finished."""

    searches: Mapping[int, Search] = field(default_factory=dict)
    checksums: Mapping[int, int] = field(default_factory=dict)

    def of(self, prompt: Prompt, task: Task) -> Search:
        """Return the search of a prompt, completed by what its answers say."""
        if self.checksums.get(prompt.id) not in (None, checksum(prompt.tokens)):
            raise LossyValueError(
                f"`file` has labels of another prompt than {prompt.id} of `task`, "
                f"{prompt.example.prompt[:80]!r}; give the task and the data that were mined"
            )
        cost, found = self.searches[prompt.id]
        if found.solved is None and prompt.example.answer:
            found = replace(found, solved=task.equivalent(found.answer, prompt.example.answer))
        labels = tuple(
            replace(one, right=found.solved and not one.important)
            if one.right is None and (found.solved or not one.important)
            else one
            for one in found.mismatches
        )
        return cost, replace(found, mismatches=labels)


@dataclass(frozen=True)
class KnownLabels:
    """Stands in for a search: yields the labels that are known, and leaves the other prompts out."""

    known: Known
    task: Task

    def run(self, prompts: Iterable[Prompt]) -> Iterator[Searched]:
        for prompt in prompts:
            if prompt.id in self.known.searches:
                yield Searched(prompt, *self.known.of(prompt, self.task))


@dataclass(frozen=True)
class RestoredLabels(JudgeLabels):
    """Labels that are known."""

    known: Known = field(default_factory=Known)

    def record(self) -> dict[str, Any]:
        return JudgeLabels().record()  # with which `mine` goes on

    def miner(self, labelling: Labelling) -> JudgeMiner:
        return JudgeMiner(KnownLabels(self.known, labelling.task), labelling.models)


@dataclass(eq=False)
class Completing(Searches):
    """Writes the changed text of each of ``found`` anew, by number, and asks whether its answer is right.

    Each has one mismatch, and its prompt the number, so that no label waits for others of its prompt.
    """

    found: Sequence[Found] = ()

    def search(self, prompt: Prompt) -> Generator[Request, Any, Found]:
        found = self.found[prompt.id]
        (one,) = found.mismatches
        # Nothing before an important mismatch has changed since.
        text = self.decode((yield Continue((*found.last[: one.index], one.draft_token))))
        right = bool((yield Ask(partial(self.task.correct, prompt.example, text))))
        return replace(found, mismatches=(replace(one, right=right),))


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


def _entry(one: Mismatch) -> list[Any]:
    # Every mismatch may have been labelled; then none stands for others.
    values = [*astuple(one)]
    return values if one.right is not None else values[: 4 if one.weight == 1 else 5]


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
    names = [each.name for each in fields(Mismatch) if each.name in mined.tokens.column_names]
    labels: dict[int, list[list[Any]]] = {}
    for prompt, *values in zip(mined.tokens["prompt_id"], *(mined.tokens[name] for name in names), strict=True):
        labels.setdefault(prompt, []).append(_entry(Mismatch(*values)))
    kept = []
    for row in sorted((row for row in mined.prompts if row["status"] == MINED), key=itemgetter("prompt_id")):
        if longest is None or max(len(row["first_response"]), len(row["last_response"])) <= longest:
            record = {name: row[name] for name in _COLUMNS} | {"mismatches": labels.get(row["prompt_id"], [])}
            kept.append(record | {"prompt": checksum(row["prompt_tokens"])})
    write_lines(out, kept)
    typer.echo(f"{len(kept)} prompts, {sum(len(record['mismatches']) for record in kept)} mismatches")


File = Annotated[Path, typer.Argument(help="What `keep` has written.")]
TaskName = Annotated[str, typer.Option(help="The task that was mined.")]
Longest = Annotated[int, typer.Option(min=1, help="Longest response.")]


@app.command(cls=CleanCommand)
def restore(
    file: File,
    out: Annotated[Path, typer.Option(help="Folder for the labels.")],
    task: TaskName,
    pair: PairName = None,
    model: Target = None,
    assistant: Assistant = None,
    dtype: Dtype = None,
    data: TaskData = None,
    max_new_tokens: Longest = 160,
    settings: Settings = None,
) -> None:
    """Read the states of known labels anew; `mine` with the same options and folder goes on with other prompts.

    The number of prompts is that of the file.
    """
    known = read(file)
    labels = RestoredLabels(known=known)
    labelling = _labelling(labels, known, settings, pair, model, assistant, dtype, task, data, max_new_tokens)
    mine(labelling, out, provenance=provenance(labelling.draft.device))


@app.command(cls=CleanCommand)
def complete(
    file: File,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write, with lines in the same order.")],
    task: TaskName,
    pair: PairName = None,
    model: Target = None,
    assistant: Assistant = None,
    dtype: Dtype = None,
    data: TaskData = None,
    max_new_tokens: Longest = 160,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts at once.")] = 32,
    writer_dtype: Annotated[str | None, typer.Option(help="int8 or int4: a rounded copy of the target writes.")] = None,
    settings: Settings = None,
) -> None:
    """Find out which changed answers are right: those at important mismatches of unsolved prompts are written anew.

    A run that ends early goes on with what it has found.
    """
    known = read(out if out.exists() else file)
    labels = JudgeLabels(writer_dtype=writer_dtype)
    labelling = replace(
        _labelling(labels, known, settings, pair, model, assistant, dtype, task, data, max_new_tokens),
        batch_size=batch_size,
    )
    searches = labels.miner(labelling).searches
    given = {each.name: getattr(searches, each.name) for each in fields(searches)}
    prompts = {p.id: p for p in labelling.prompts() if p.id in known.searches}
    found = {i: known.of(p, labelling.task)[1] for i, p in prompts.items()}
    todo = [
        (i, k) for i, each in found.items() if prompts[i].example.answer
        for k, one in enumerate(each.mismatches) if one.right is None
    ]  # fmt: skip
    random.Random(0).shuffle(todo)  # what an interrupted run has found is a sample
    alone = [replace(found[i], mismatches=(found[i].mismatches[k],)) for i, k in todo]
    asked = (replace(prompts[i], id=n) for n, (i, _) in enumerate(todo))
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    _write_found(records, out, found)
    with progress(Console()) as bar:
        for one in bar.track(Completing(**given, found=alone).run(asked), total=len(todo), description="answers"):
            if one.found is None:
                raise one.error
            i, k = todo[one.prompt.id]
            mismatches = list(found[i].mismatches)
            mismatches[k] = one.found.mismatches[0]
            found[i] = replace(found[i], mismatches=tuple(mismatches))
            _write_found(records, out, found)
    rights = [label.right for one in found.values() if not one.solved for label in one.mismatches if label.important]
    typer.echo(f"{len(rights)} changed answers of unsolved prompts, {sum(map(bool, rights))} of them right")


def _write_found(records: Sequence[dict[str, Any]], out: Path, found: Mapping[int, Found]) -> None:
    """Write the records of labels with what is known now."""
    for record in records:
        one = found[record["prompt_id"]]
        record |= {"solved": one.solved, "mismatches": [_entry(label) for label in one.mismatches]}
    write_lines(out, records)


def _labelling(
    labels: JudgeLabels, known: Known, settings: list[str] | None, pair: str | None, model: str | None,
    assistant: str | None, dtype: str | None, task: str, data: str | None, max_new_tokens: int,
) -> Labelling:  # fmt: skip
    given = read_set(settings, SETTINGS)
    setup = Setup.of(pair, model, assistant, dtype, None, given, task=task, data=data, split=given.get("split"))
    loaded = setup.load()
    return Labelling(
        loaded.task, loaded.tokenizer, loaded.target, loaded.draft, labels,
        limit=max(known.searches, default=0) + 1, split=setup.split, max_new_tokens=max_new_tokens,
        settings={"data": data, "task_settings": setup.task_settings},
    )  # fmt: skip


if __name__ == "__main__":
    app()
