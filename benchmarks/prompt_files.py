"""The prompts of SmolLM2's tables, from files of data sets: ``python -m benchmarks.prompt_files --help``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from hf_lossy_assist.tasks.task_data import Row, prompt_of, read_jsonl

from . import command

LONG = ("summarization", "rag")
"""Categories of Spec-Bench that ask about a text."""
GROUPS = ("chat", "translation", "qa", "math_reasoning")
"""Those that do not; the first stands for the eight of MT-bench, which is part of it."""


def short(rows: Iterable[Row], characters: int = 300) -> list[Row]:
    """Return the questions whose first turn has at most that many characters."""
    return [row for row in rows if len(prompt_of(row)) <= characters]


def spec_bench_prompts(rows: list[Row], each: int = 15) -> list[Row]:
    """Return the first short questions of each group."""
    by_group: dict[str, list[Row]] = {group: [] for group in (*GROUPS, *LONG)}
    for row in rows:
        by_group.get(row["category"], by_group["chat"]).append(row)
    return [row for group in GROUPS for row in short(by_group[group])[:each]]


def summaries(rows: list[Row]) -> list[Row]:
    """Return the texts to summarise, the shortest first."""
    return sorted((row for row in rows if row["category"] == "summarization"), key=lambda row: len(prompt_of(row)))


def main(
    spec_bench: Annotated[Path, typer.Option(help="Spec-Bench's question.jsonl.")],
    mt_bench: Annotated[Path, typer.Option(help="MT-bench's question.jsonl.")],
    out: Annotated[Path, typer.Option(help="Folder for the prompts.")],
) -> None:
    """Write the files that the commands of docs/results/smollm2.md read."""
    questions, chats = read_jsonl(spec_bench, ("category",)), read_jsonl(mt_bench, ())
    files = {
        "spec-bench": [{"prompt": prompt_of(row)} for row in spec_bench_prompts(questions)],
        "summarization": summaries(questions)[:40],
        "mt-bench": [{"prompt": prompt_of(row)} for row in short(chats, 250)[:40]],
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (out / f"{name}.jsonl").write_text(text, encoding="utf-8")


app = command(main)

if __name__ == "__main__":
    app()
