"""Runs the trial: ``python -m tests.trial [PART ...] [--count N] [--seed S] [--json FILE]``.

Without parts, all of them run, with some thousand cases together. The status is 1 where a case has failed. What
``--json`` names is written after every part, and parts that it already holds for the same seed are not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table

from .parts import PARTS


def run(part: str, seed: int, count: int) -> dict[str, Any]:
    """Run one part, or as much of it as there is until Ctrl-C; return its counts and its failures."""
    cases, started = PARTS[part][0](seed, count), time.monotonic()
    outcomes: Counter[str] = Counter()
    failures = []
    with contextlib.suppress(KeyboardInterrupt):
        for name, check in cases:
            try:
                outcomes[check()] += 1
            except Exception:
                failures.append({"case": name, "error": traceback.format_exc()})
    return {
        "seed": seed,
        "cases": sum(outcomes.values()) + len(failures),
        "outcomes": dict(outcomes.most_common()),
        "failures": failures,
        "seconds": round(time.monotonic() - started, 1),
    }


def table(results: dict[str, dict[str, Any]]) -> Table:
    """Return a table of the parts' counts."""
    shown = Table("part", "seed", "cases", "outcomes", "failures", "seconds")
    for part, result in results.items():
        outcomes = "\n".join(f"{count} {outcome}" for outcome, count in result["outcomes"].items())
        numbers = result["seed"], result["cases"], outcomes, len(result["failures"]), result["seconds"]
        shown.add_row(part, *map(str, numbers), end_section=True)
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.trial", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; all by default")
    parser.add_argument("--count", type=int, help="cases of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the results here")
    args = parser.parse_args(arguments)
    if unknown := sorted(set(args.parts) - set(PARTS)):
        parser.error(f"no such part: {', '.join(unknown)}")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    known = json.loads(args.json.read_text(encoding="utf-8")) if args.json and args.json.is_file() else {}
    for part in args.parts or PARTS:
        if known.get(part, {}).get("seed") == args.seed:
            continue
        known[part] = run(part, args.seed, PARTS[part][1] if args.count is None else args.count)
        if args.json:
            args.json.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    for part, result in known.items():
        for failure in result["failures"]:
            sys.stdout.write(f"{part}: {failure['case']}\n{failure['error']}\n")
    Console().print(table(known))
    return 1 if any(result["failures"] for result in known.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
