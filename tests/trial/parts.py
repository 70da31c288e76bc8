"""The parts of the trial: each yields seeded cases, by the generators that the tests use."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from hf_lossy_assist import JudgeHead, LossyError, LossyValueError, VerifierHead
from hf_lossy_assist.heads import Head
from hf_lossy_assist.tasks.sandbox import Sandbox, isolation
from hf_lossy_assist.training.label_folder import load_mined
from tests.acceptors.fixtures import HEADS
from tests.tasks.sandbox.programs import CHEATS, ENDLESS, assert_no_cheat
from tests.tiny_models import noisy_copy, tiny
from tests.training.parts import labelling, run, tiny_parts

from .breaking import interruptions
from .calls import Call
from .files import files
from .junk import junk
from .laws import laws

Case = tuple[str, Callable[[], str]]
"""A name, and what returns the outcome or raises."""


def calls(seed: int, count: int) -> Iterator[Case]:
    """Calls of ``generate()``; the oracle is plain ``generate()``."""
    for number in range(count):
        call = Call.draw(seed, number)
        yield f"{call!r}", call.check


def heads(seed: int, count: int) -> Iterator[Case]:
    """Damaged and hostile folders of heads: a head that is finite, or our error."""
    generator = random.Random(seed)
    target = tiny()
    draft = noisy_copy(target)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        originals: list[dict[str, bytes]] = []
        for kind in HEADS:
            HEADS[kind](target, draft).save_pretrained(folder / kind)
            originals.append({path.name: path.read_bytes() for path in (folder / kind).iterdir()})

        def check(files: Mapping[str, bytes]) -> str:
            for path, content in files.items():
                (folder / path).write_bytes(content)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return read_head(folder)

        for number in range(count):
            files = hostile_head(generator.choice(originals), generator)
            yield f"{seed}.{number}", lambda files=files: check(files)


def hostile_head(files: Mapping[str, bytes], generator: random.Random) -> dict[str, bytes]:
    """Return a head's files with something wrong, in what its configuration says or in the bytes."""
    config = json.loads(files["config.json"])
    if generator.random() < 0.7:
        config.pop("weights_sha256", None)
    changed = dict(files)
    if (kind := generator.choice(["value", "value", "value", "bytes", "weights", "header"])) == "value":
        places = [(config, key) for key in config]
        places += [(inner, key) for inner in config.values() if isinstance(inner, dict) for key in inner]
        place, key = generator.choice(places)
        place[key] = generator.choice(STRANGE)
    text = json.dumps(config).replace('"~deep~"', "[" * 5000 + "]" * 5000).replace('"~long~"', "1" + "0" * 400)
    changed["config.json"] = text.encode("utf-8", "surrogatepass")
    if kind in ("bytes", "weights"):
        name = "config.json" if kind == "bytes" else "model.safetensors"
        changed[name] = damaged(changed[name], generator)
    if kind == "header":
        weights = changed["model.safetensors"]
        header = weights[8 : 8 + int.from_bytes(weights[:8], "little")].decode()
        header = header.replace("F32", generator.choice(["F8_E4M3", "F4", "F64", "I64", "BOOL", "C64", "X"]))
        header = header.replace("[", "[" * generator.choice([1, 1, 900])).encode()
        changed["model.safetensors"] = len(header).to_bytes(8, "little") + header + weights[-200:]
    return changed


STRANGE = (
    None, True, -1, 0, 2**63, 0.5, -1e300, float("nan"), float("inf"), "", "x", "\ud800", "~deep~", "~long~", [], [[]],
    [None], {}, {"a": {"b": 1}}, "../../x", "~nosuchuser/x", "A" * 100_000, [1] * 10_000,
)  # fmt: skip


def read_head(folder: Path) -> str:
    """Read a folder as a head of any kind, and say what came of it."""
    outcomes = set()
    for read in (Head.from_pretrained, JudgeHead.from_pretrained, VerifierHead.from_pretrained):
        try:
            head = read(folder)
        except LossyError:
            outcomes.add("refused by name")
        else:
            assert head.weight.isfinite().all()
            assert head.bias.isfinite()
            outcomes.add("a head, finite")
    return min(outcomes)  # a head of one kind is refused as another


def damaged(good: bytes, generator: random.Random) -> bytes:
    """Return a file of which a few bytes have changed."""
    content = bytearray(good)
    for _ in range(generator.randint(1, 4)):
        content[generator.randrange(len(content))] = generator.randrange(256)
    return bytes(content)


def kills(seed: int, count: int) -> Iterator[Case]:
    """Mining that is killed at any moment: what was finished stays as it is, and the rest is mined once."""
    generator = random.Random(seed)
    parts = tiny_parts(seed=3)
    prompts = 6
    with tempfile.TemporaryDirectory() as name:
        run(Path(name) / "whole", labelling(parts, prompts))
        whole = _mined(Path(name) / "whole")

        def check(folder: Path, seconds: list[float]) -> str:
            killed = 0
            for wait in seconds:
                killed += _run_and_kill(lambda: run(folder, labelling(parts, prompts)), wait)
                with contextlib.suppress(LossyValueError):  # nothing is there yet
                    rows = _mined(folder)
                    assert all(whole[prompt] == row for prompt, row in rows.items()), "a row has changed"
            run(folder, labelling(parts, prompts))
            assert _mined(folder) == whole
            return "killed, whole after it" if killed else "ended first"

        for number in range(count):
            seconds = [generator.uniform(0.05, 1.5) for _ in range(generator.randint(1, 3))]
            yield f"{seed}.{number}", lambda n=number, s=seconds: check(Path(name) / str(n), s)


def _mined(folder: Path) -> dict[int, Any]:
    mined = load_mined(folder)
    labels = Counter(mined.tokens["prompt_id"])
    assert all(labels[row.id] == row.columns["mismatches"] for row in mined.prompts)
    responses = ("first_response", "last_response")
    rows = {row.id: (row.status, *(row.columns[name] for name in responses)) for row in mined.prompts}
    assert len(rows) == len(mined.prompts)
    return rows


def _run_and_kill(work: Callable[[], Any], seconds: float) -> bool:
    """Run ``work`` in a process of its own, and kill that after some time; tell whether it was still at work."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            torch.set_num_threads(1)
            work()
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def sandbox(seed: int, count: int) -> Iterator[Case]:
    """Programs that cheat or never end, isolated where that can be had, and else refused; and without, on demand."""
    generator = random.Random(seed)
    programs = {**CHEATS, **{f"endless: {program[:30]}": program for program in ENDLESS}}
    limits = {"cpu_seconds": 1, "wall_seconds": 3.0, "memory_mb": 256, "disk_mb": 4}
    user = "root" if os.geteuid() == 0 else "a user"

    def check(program: str, unsafe: bool) -> str:
        if not unsafe and isolation.unavailable() is not None:
            try:
                Sandbox(**limits)
            except LossyError:
                return f"refused: no isolation, {user}"
            raise AssertionError("not refused")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            box = Sandbox(**limits, unsafe_no_isolation=unsafe)
        started = time.monotonic()
        assert_no_cheat(box, program)
        assert time.monotonic() - started < 3 + 2 + 20, "held the caller"
        return f"not passed, {'without isolation' if unsafe else 'isolated'}, {user}"

    for number in range(count):
        key, unsafe = generator.choice(sorted(programs)), generator.random() < 0.5
        yield f"{seed}.{number} {key}", lambda key=key, unsafe=unsafe: check(programs[key], unsafe)


PARTS: Mapping[str, tuple[Callable[[int, int], Iterator[Case]], int]] = {
    "calls": (calls, 5000),
    "junk": (junk, 1000),
    "laws": (laws, 3000),
    "interruptions": (interruptions, 1000),
    "heads": (heads, 800),
    "files": (files, 2000),
    "kills": (kills, 100),
    "sandbox": (sandbox, 200),
}
"""From a part's name to its cases, and how many a whole trial has."""
