"""A run of the check: its device, its budget, and the lines that it says."""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from hf_lossy_assist.evaluation.quality import times_as_fast

Item = TypeVar("Item")
Row: TypeAlias = dict[str, Any]


class TimeIsUp(BaseException):
    """Ends a part; no ``except Exception`` takes it for an error of its own."""


@dataclass(eq=False)
class Run:
    """Says one JSON object per line, as soon as it is known, and keeps to a budget of seconds."""

    device: str
    tiny: bool
    budget: float
    out: Path | None = None
    began: float = field(default_factory=time.perf_counter)
    failed: list[str] = field(default_factory=list)
    ends: float = float("inf")  # when the current part's time is up

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.cuda else torch.float32

    def tokens(self, full: int) -> int:
        """Return how many tokens a text gets: tiny models write few, but on a GPU enough for graphs to be recorded."""
        return full if not self.tiny else 40 if self.cuda else 12

    @property
    def now(self) -> float:
        return time.perf_counter() - self.began

    def say(self, part: str, **row: Any) -> None:
        line = json.dumps({"part": part, "at": round(self.now, 1), **row}, default=str)
        print(line, flush=True)
        if self.out is not None:
            with (self.out / "gpu.jsonl").open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    @property
    def left(self) -> float:
        return self.ends - self.now

    def part(self, name: str, body: Callable[[Run], None], budget: float) -> None:
        """Run a part within its budget and the whole one's; then it is interrupted, whatever it does."""
        self.ends = min(self.now + budget, self.budget)
        with self.step(name) as begins:
            if begins:
                before = signal.signal(signal.SIGALRM, _interrupt)
                signal.setitimer(signal.ITIMER_REAL, self.left)
                try:
                    body(self)
                except TimeIsUp:
                    self.say("left out", step=f"the rest of {name}", seconds_left=0.0)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    signal.signal(signal.SIGALRM, before)
        gc.collect()  # models and their graphs are in circles
        if self.cuda:
            torch.compiler.reset()
            torch.cuda.empty_cache()

    @contextlib.contextmanager
    def step(self, name: str, needs: float = 0.0) -> Iterator[bool]:
        """Yield whether there is time for a step; its error is said, and ends only the step."""
        if needs > self.left:
            self.say("left out", step=name, seconds_left=round(self.left, 1))
            yield False
            return
        try:
            yield True
        except Exception as error:  # whatever a step meets, the others are wanted
            self.fail(name)
            where = traceback.format_exc()[-700:]
            self.say("error", step=name, error=f"{type(error).__name__}: {error}"[:400], where=where)

    def fail(self, name: str) -> None:
        self.failed.append(name)

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, body: Callable[[], Any]) -> tuple[float, Any]:
        """Return the time of a function and what it returns."""
        self.wait()
        start = time.perf_counter()
        result = body()
        self.wait()
        return time.perf_counter() - start, result

    def peak_gb(self) -> float | None:
        """Return the most memory since the last call, in GB."""
        if not self.cuda:
            return None
        peak = torch.cuda.max_memory_allocated() / 1e9
        torch.cuda.reset_peak_memory_stats()
        return round(peak, 2)

    def allocated_gb(self) -> float | None:
        return round(torch.cuda.memory_allocated() / 1e9, 2) if self.cuda else None

    def kernels(self, body: Callable[[], Any]) -> dict[str, tuple[int, float]]:
        """Return every kernel that a function launches: how often, and its milliseconds; operations on a CPU."""
        kind = ProfilerActivity.CUDA if self.cuda else ProfilerActivity.CPU
        with profile(activities=[kind]) as seen:
            body()
            self.wait()
        times = {
            x.key: (x.count, x.self_device_time_total if self.cuda else x.self_cpu_time_total)
            for x in seen.key_averages()
        }
        return {
            name[:120]: (n, round(t / 1000, 4)) for name, (n, t) in sorted(times.items(), key=lambda x: -x[1][1]) if t
        }

    def interleaved(
        self, part: str, cases: Mapping[str, Callable[[Item], Row]], items: Sequence[Item], **common: Any
    ) -> dict[str, list[Row]]:
        """Measure every case on each item, each time another case first, and say every row.

        Items begin as long as there is time for the slowest one so far, and for as much again; the rows of those that
        all cases have answered are returned.
        """
        rows: dict[str, list[Row]] = {case: [] for case in cases}
        slowest = 0.0
        for i, item in enumerate(items):
            with self.step(f"{part}, item {i} of {len(items)} and later", 2 * slowest) as begins:
                if not begins:
                    break
                began, turn, new = self.now, i % max(1, len(cases)), {}
                for case in [*cases][turn:] + [*cases][:turn]:
                    new[case] = cases[case](item)
                    self.say(part, case=case, item=i, **common, **new[case])
                for case, row in new.items():
                    rows[case].append(row)
                slowest = max(slowest, self.now - began)
        return rows

    def compare(self, part: str, found: Mapping[str, list[Row]], plain: str, **common: Any) -> None:
        """Say every case's speed, and how many times as fast as ``plain`` it is on the same texts."""
        texts = {case: _by_text(own) for case, own in found.items()}
        for case, own in texts.items():
            if own:
                tokens, seconds = map(sum, zip(*own, strict=True))
                row = {
                    "tokens_per_s": round(tokens / seconds, 1),
                    "times_plain": rounded(times_as_fast(own, texts[plain])),
                }
                self.say(part, case=case, summary=True, texts=len(own), calls=len(found[case]), **row, **common)


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """Yield what is said inside about settings without an effect."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said += [str(x.message)[:300] for x in caught if "no effect" in str(x.message)]


def _interrupt(*_: Any) -> None:
    raise TimeIsUp


def _by_text(rows: list[Row]) -> list[tuple[float, float]]:
    """Return tokens and seconds of each text: medians over its rows."""
    texts: dict[Any, list[Row]] = {}
    for row in rows:
        texts.setdefault(row["text"], []).append(row)
    return [tuple(median(row[x] for row in own) for x in ("tokens", "seconds")) for own in texts.values()]


def rounded(values: Sequence[float], digits: int = 4) -> list[float]:
    return [round(x, digits) for x in values]
