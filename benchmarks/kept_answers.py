"""``python -m benchmarks.kept_answers FOLDER NAME``: keep a folder of ``evaluate`` as a configuration of the data set.

Answers may quote their data set, so a checksum stands for each text. The card says what was asked, and where. With the
pair and the task's file, each answer has the places at which drafts of any length end.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from hf_lossy_assist import pairs, tasks

from . import application, pages, tables

_TIMED = ("repeats", "ids")
"""What answers have beside the columns that are kept."""


def main(
    folder: Path, name: str, *, question: str, machine: str, pair: str | None = None, data: str | None = None
) -> None:
    """Keep the answers of an evaluation without their texts, and say on the card what they are of.

    Parameters
    ----------
    folder
        What `evaluate` has written.
    name
        The configuration's name; one that is there is replaced.
    question
        What the study asks.
    machine
        Where it ran: the CPU or the GPU.
    pair, data
        The pair that answered and the task's file, to keep where its draft would have written another token.
    """
    plan = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    answers = [json.loads(line) for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    plan["measure"] = None if answers[0]["score"] is None else "task"
    order = [*plan["modes"]]
    answers.sort(key=lambda answer: (order.index(answer["mode"]), answer["id"]))
    ends = [{}] * len(answers)
    if pair is not None:
        loaded = replace(pairs.load(pair, dtype=plan["dtype"]), task=tasks.load(plan["task"], data))
        examples = loaded.task.examples(plan["split"], 1 + max(x["id"] for x in answers))
        prompts = [loaded.task.encode(example, loaded.tokenizer) for example in examples]
        ends = [{"refused": refused(loaded, prompts[x["id"]], x)} for x in answers]
    texts = ({"text": f"crc32:{zlib.crc32(x['text'].encode()):08x}"} for x in answers)  # equal ones of equal texts
    kept = ({key: value for key, value in x.items() if key not in _TIMED} for x in answers)
    write(name, [x | text | own for x, text, own in zip(kept, texts, ends, strict=True)])
    runs = [run.get("argv") or [] for run in plan["runs"]]
    about = {
        "configuration": name, "question": question, "command": shlex.join(runs[-1]),
        "commit": commit(), "machine": machine, "n": len({x["id"] for x in answers}),
        "date": plan["runs"][-1]["date"][:10],
    }  # fmt: skip
    own = [mode_row(name, label, config, plan) for label, config in plan["modes"].items()]
    for table, new in (("studies", [about]), ("modes", own)):
        others = [x for x in tables.rows(table) if x["configuration"] != name]
        write(table, sorted([*others, *new], key=lambda x: x["configuration"]))
    tables.rows.cache_clear()
    card = tables.DATA / "README.md"
    card.write_text(pages.card(card.read_text(encoding="utf-8")), encoding="utf-8")


@torch.inference_mode()
def refused(pair: pairs.Pair, prompt: Sequence[int], answer: Mapping[str, Any]) -> list[int]:
    """Return where a greedy draft would have written another token than an answer's: there its drafts end."""
    own = answer["ids"] or pair.tokens_of(answer["text"], answer["cut"])
    said = pair.draft(torch.tensor([[*prompt, *own]]), logits_to_keep=len(own) + 1).logits[0, :-1].argmax(-1)
    return (said != torch.tensor(own)).nonzero().flatten().tolist()


def mode_row(name: str, label: str, config: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mode's row of the configuration ``modes``."""
    rule, gamma = config.get("lossy_mode"), config.get("num_assistant_tokens")
    settings = {key: value for key, value in config.items() if key not in ("lossy_mode", "num_assistant_tokens")}
    return {
        "configuration": name, "mode": label, "rule": json.dumps(rule) if isinstance(rule, list) else rule,
        "settings": json.dumps(settings), "gamma": None if gamma is None else str(gamma),
        "reference": label == plan["reference"], "task": plan["task"], "measure": plan["measure"],
        "batch_size": plan["batch_size"], "max_new_tokens": plan["max_new_tokens"],
    }  # fmt: skip


def commit() -> str:
    """Return the checkout's commit."""
    command = ["git", "-C", str(tables.ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def write(name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a configuration; columns that are empty are left out."""
    rows = list(rows)
    columns = {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}
    table = pa.table({key: values for key, values in columns.items() if any(x is not None for x in values)})
    pq.write_table(table, tables.DATA / "data" / f"{name}.parquet", compression="zstd")


app = application(main)

if __name__ == "__main__":
    app()
