"""Tells whether two trees of the package decode alike.

``python -m tests.golden.compare OLD_TREE NEW_TREE`` runs every golden case in both, one after the other, and compares
tokens, statistics and outputs. The status is 1 where they differ in a way that ``changes.toml`` does not list, and
where a listed change no longer occurs. What the old tree gave is kept in the temporary directory, by its commit.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCES = ("__init__.py", "worlds.py", "cases.py", "worker.py")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
FIELDS_PER_CASE = 6
ABSENT = "(absent)"

Outcomes = dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """A field of a case that is not the same in both trees."""

    case: str
    field: str
    old: Any
    new: Any


@dataclass(frozen=True)
class Change:
    """A difference that is meant.

    Attributes
    ----------
    cases, fields
        Patterns of the shell.
    reason
        Why the new behaviour is the right one.
    """

    cases: tuple[str, ...]
    fields: tuple[str, ...]
    reason: str

    def covers(self, difference: Difference) -> bool:
        return _matches(difference.case, self.cases) and _matches(difference.field, self.fields)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def read_changes(path: Path) -> list[Change]:
    """Read the list of differences that are meant."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("change", [])
    return [Change(*(_tuple(entry[name]) for name in ("cases", "fields")), entry["reason"]) for entry in entries]


def _tuple(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def differences(names: Sequence[str], old: Outcomes, new: Outcomes) -> Iterator[Difference]:
    """Compare the outcomes of the same cases field by field; a case that did not run is a difference."""
    for case in names:
        if case not in old or case not in new:
            yield Difference(case, "ran", case in old, case in new)
            continue
        a, b = (dict(_flat("", x[case])) for x in (old, new))
        for field in dict.fromkeys(["error", "message", *a, *b]):
            x, y = a.get(field, ABSENT), b.get(field, ABSENT)
            if not _same(x, y):
                yield Difference(case, field, x, y)


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Take dicts, and lists of dicts or lists, apart into named leaves."""
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list) and value and isinstance(value[0], dict | list):
        parts = enumerate(value)
    else:
        yield path, value
        return
    for name, part in parts:
        yield from _flat(f"{path}.{name}" if path else str(name), part)


def _same(a: Any, b: Any) -> bool:
    """Compare exactly; only sums of recorded outputs may differ in their last digits."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-3 if abs(a) < 1e4 else 0)
    return a == b and type(a) is type(b)


def _brief(old: Any, new: Any) -> tuple[str, str]:
    """Show two values; of lists only what follows their common beginning."""
    if isinstance(old, list) and isinstance(new, list):
        pairs = enumerate(zip(old, new, strict=False))
        start = next((i for i, pair in pairs if not _same(*pair)), min(len(old), len(new)))
        return tuple(f"[{start}:] {', '.join(map(str, x[start : start + 8]))} (of {len(x)})" for x in (old, new))
    return str(old), str(new)


def run(tree: Path, names: Sequence[str]) -> Outcomes:
    """Run cases in one tree, by the worker that stands beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        # A copy, so that Python finds the worker, and nothing else of the new tree, beside the tree under test.
        package = Path(folder) / "golden"
        package.mkdir()
        for name in SOURCES:
            shutil.copy(HERE / name, package)
        out = Path(folder) / "outcomes.jsonl"
        log = Path(folder) / "log"
        env = os.environ | ONE_THREAD | {"PYTHONPATH": str(tree), "PYTHONWARNINGS": "ignore"}
        env |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": folder + "/modules"}
        with log.open("w") as stream:
            done = subprocess.run(
                [sys.executable, "-m", "golden.worker", str(tree), str(out), *names],
                cwd=folder, env=env, stdout=stream, stderr=stream, check=False,
            )  # fmt: skip
        if done.returncode:
            sys.stderr.write(f"the worker ended with {done.returncode} in {tree}:\n{log.read_text()[-4000:]}\n")
        return _read(out)


def _read(path: Path) -> Outcomes:
    if not path.is_file():
        return {}
    return dict(map(json.loads, path.read_text(encoding="utf-8").splitlines()))


def run_kept(tree: Path, names: Sequence[str]) -> Outcomes:
    """Run cases in a tree without changes of its own, or take what they gave before on this machine."""
    if (key := _key(tree)) is None:
        return run(tree, names)
    kept = Path(tempfile.gettempdir()) / "hf_lossy_assist_golden" / f"{key}.jsonl"
    known = _read(kept)
    if missing := [name for name in names if name not in known]:
        found = run(tree, missing)
        known |= found
        kept.parent.mkdir(exist_ok=True)
        written = kept.with_suffix(f".{os.getpid()}")
        written.write_text("".join(json.dumps(item) + "\n" for item in known.items()), encoding="utf-8")
        written.replace(kept)
    return {name: known[name] for name in names if name in known}


def _key(tree: Path) -> str | None:
    """Return what the outcomes in a tree depend on; None where the tree is not exactly a commit."""

    def git(*command: str) -> str | None:
        done = subprocess.run(["git", "-C", str(tree), *command], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    commit, status = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", "hf_lossy_assist")
    if commit is None or status:
        return None
    information = Path("/proc/cpuinfo")
    cpu = information.read_text().split("\n\n")[0] if information.is_file() else platform.processor()
    cpu = "\n".join(line for line in cpu.splitlines() if line.startswith(("model name", "flags", "Features")))
    parts = [commit, cpu, version("torch"), version("transformers"), *((HERE / x).read_text() for x in SOURCES)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def case_names(only: str | None = None) -> list[str]:
    """Return the names of all cases, or of those that a text is in."""
    from .cases import all_cases

    return [name for name in all_cases() if only is None or only in name]


def report(found: Sequence[Difference], changes: Sequence[Change], cases: int, whole: bool) -> tuple[str, bool]:
    """Return a table of what differs and is not listed, and whether all is well."""
    listed = [next((change for change in changes if change.covers(x)), None) for x in found]
    bad = [x for x, change in zip(found, listed, strict=True) if change is None]
    groups = {case: list(group) for case, group in itertools.groupby(bad, lambda x: x.case)}
    lines = []
    for case, group in groups.items():
        for x in group[:FIELDS_PER_CASE]:
            old, new = _brief(x.old, x.new)
            lines += [f"{case} | {x.field}", f"    old {old[:200]}", f"    new {new[:200]}"]
        if len(group) > FIELDS_PER_CASE:
            lines.append(f"    … and {len(group) - FIELDS_PER_CASE} more fields of {case}")
    stale = [x for x in changes if whole and x not in listed]
    lines += [f"listed, and does not occur: {x.cases} {x.fields}: {x.reason}" for x in stale]
    lines.append(
        f"{cases} cases: {len(groups)} differ in {len(bad)} fields, as listed in {len(found) - len(bad)} fields; "
        f"{len(stale)} listed changes do not occur"
    )
    return "\n".join(lines), not bad and not stale


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.compare", description=__doc__)
    parser.add_argument("old_tree", type=Path, nargs="?")
    parser.add_argument("new_tree", type=Path, nargs="?")
    parser.add_argument("--only", metavar="TEXT", help="cases that this text is in")
    parser.add_argument("--list", action="store_true", help="show the names of the cases and do nothing")
    parser.add_argument("--expected", type=Path, default=HERE / "changes.toml", metavar="FILE")
    args = parser.parse_args(arguments)
    names = case_names(args.only)
    if args.list:
        sys.stdout.write("\n".join(names) + "\n")
        return 0
    if args.new_tree is None:
        parser.error("OLD_TREE and NEW_TREE are needed")
    old, new = run_kept(args.old_tree.resolve(), names), run(args.new_tree.resolve(), names)
    found = list(differences(names, old, new))
    text, well = report(found, read_changes(args.expected), len(names), whole=args.only is None)
    sys.stdout.write(text + "\n")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
