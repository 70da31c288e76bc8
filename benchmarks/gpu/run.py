"""A run of the check: its device, its budget, and the lines that it says."""

from __future__ import annotations

import contextlib
import json
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import typer


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
        typer.echo(line)
        if self.out is not None:
            with (self.out / "gpu.jsonl").open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def part(self, body: Callable[[Run], None], budget: float) -> None:
        """Run a part, whose steps begin only within its budget and the whole one's."""
        self.ends = min(self.now + budget, self.budget)
        with self.step(body.__module__.rpartition(".")[2]) as begins:
            if begins:
                body(self)
        if self.cuda:
            torch.cuda.empty_cache()

    @contextlib.contextmanager
    def step(self, name: str, needs: float = 0.0) -> Iterator[bool]:
        """Yield whether there is time for a step; its error is said, and ends only the step."""
        if self.now + needs > self.ends:
            self.say("left out", step=name, seconds_left=round(self.ends - self.now, 1))
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
