"""``lossy-assist dropmatch-cost``: what DropMatch adds to a verify forward of a large target."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.table import Table

from ..errors import LossyValueError
from .console import console, limit_threads


def dropmatch_cost(
    gamma: Annotated[int, typer.Option(min=1, help="Drafted tokens per round.")] = 5,
    paths: Annotated[int, typer.Option(min=1, help="Dropped heads.")] = 5,
    device: Annotated[str, typer.Option(help="Where the parts are timed.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's choice by default.")] = None,
    bandwidth: Annotated[float, typer.Option(min=1, help="Bytes per second of the machine to compute for.")] = 4.8e12,
    flops: Annotated[float, typer.Option(min=1, help="Operations per second of its bfloat16 products.")] = 7.9e14,
    launch: Annotated[float, typer.Option(min=0, help="Seconds that each kernel of the rule takes besides.")] = 2e-6,
    seconds: Annotated[float, typer.Option(min=0.001, help="How long each part is timed.")] = 0.3,
) -> None:
    """Tabulate DropMatch's share of a verify forward, by the geometry of the target: computed, and timed in parts."""
    from ..bench.dropmatch_cost import TARGETS, Round, computed, measured
    from ..bench.roofline import Rates

    limit_threads(threads)
    try:
        place = torch.device(device)
    except RuntimeError:
        raise LossyValueError(f"`--device` has to be a device of torch, but is {device!r}") from None
    table = Table(title=f"DropMatch with {paths} heads on {gamma} drafted tokens, bfloat16: share of a verify forward")
    for name in ("target", "", "forward, ms", "head", "masks", "divergence", "all", "bound"):
        table.add_column(name, justify="left" if name in ("target", "") else "right")
    for name, (config, bound) in TARGETS.items():
        round = Round.of(config, gamma=gamma, paths=paths)
        costs = {
            "computed": computed(round, Rates(bandwidth, flops), launch),
            f"timed on {device}": measured(round, place, seconds=seconds),
        }
        for how, cost in costs.items():
            parts = (cost.head, cost.masks, cost.divergence)
            shares = (f"{part / cost.forward:.2%}" for part in parts)
            table.add_row(name, how, f"{cost.forward * 1000:.2f}", *shares, f"{cost.share:.2%}", f"{bound:.0%}")
    console().print(table)
