"""Decodes with every architecture of transformers: ``python -m tests.sweep [ARCHITECTURE ...] [--out FILE]``.

A tiny random model of each decodes in double precision, and its texts are compared with plain ``generate()``'s. What
is in FILE already is not run again. The status is 1 where a text is wrong, a call crashes, or a refusal comes late.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table

from tests.architectures import ARCHITECTURES

from .cases import BAD, rows_of

SECONDS = 600
"""After which an architecture is given up."""


def run(name: str, seed: int, out: Path) -> None:
    """Append an architecture's rows to a file, from a process of its own: some crash, and some never end."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        torch.set_num_threads(1)
        rows = rows_of(name, seed)
        with out.open("a", encoding="utf-8") as file:
            file.write("".join(f"{json.dumps(row)}\n" for row in rows))
        os._exit(0)
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        row = {"architecture": name, "seed": seed, "case": "all", "outcome": "crashed", "reason": f"status {status}"}
        with out.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(row)}\n")


def known(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.is_file() else []


def table(rows: list[dict[str, Any]]) -> Table:
    """Return a line for each architecture that is not right throughout, and the counts of all."""
    shown = Table("architecture", "case", "outcome", "reason")
    for row in rows:
        if row["outcome"] != "right":
            shown.add_row(*(str(row[name]) for name in ("architecture", "case", "outcome", "reason")))
    shown.add_section()
    for outcome, count in Counter(row["outcome"] for row in rows).most_common():
        shown.add_row(str(len({row["architecture"] for row in rows if row["outcome"] == outcome})), str(count), outcome)
    return shown


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("architectures", nargs="*", metavar="ARCHITECTURE", default=ARCHITECTURES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="FILE", default=Path("sweep.jsonl"), help="one line a case")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    done = {(row["architecture"], row["seed"]) for row in known(args.out)}
    for name in args.architectures:
        if (name, args.seed) not in done:
            run(name, args.seed, args.out)
    rows = [row for row in known(args.out) if row["architecture"] in args.architectures and row["seed"] == args.seed]
    Console(width=200).print(table(rows))
    return 1 if any(row["outcome"] in BAD for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
