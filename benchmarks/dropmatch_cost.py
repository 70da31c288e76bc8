"""The time that DropMatch adds to a large target's verify forward: from bytes and operations, or from timed parts.

    python -m benchmarks.dropmatch_cost --device cuda

It needs no large weights. A forward over a few tokens consists of matrix products, so timing one slice is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.benchmark import Timer
from transformers import LlamaConfig

from hf_lossy_assist.acceptors import DropMatch
from hf_lossy_assist.cli.console import limit_threads
from hf_lossy_assist.cli.options import Gamma, Threads
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.theory import DenseDecoder

from . import command
from .geometry import PRESETS
from .roofline import Rates

TARGETS: dict[str, tuple[LlamaConfig, float]] = {
    name: (LlamaConfig(**PRESETS[name].config_fields()), bound)
    for name, bound in {"llama-8b": 0.05, "llama-70b": 0.02}.items()
}
"""Geometries, and the share of a verify forward that DropMatch may cost there."""

H200 = Rates(bandwidth=4.8e12, flops=7.9e14)
"""Memory bandwidth by its data sheet, and dense bfloat16 products as they come out in practice."""

# Reads and writes of an entry of the K dropped distributions. As logits: their mean and a conversion. In float32: the
# conversion, argmax, softmax (3), the terms of an entropy and their sum (3), the sum of two distributions (2), and its
# entropy.
_AS_LOGITS, _IN_FLOAT32 = 2, 1 + 1 + 3 + 3 + 2 + 3
# Reads and writes of an entry of the draft's distribution and of the centroid, all in float32.
_BESIDE_PATHS = 3 + 3 + 3 + 3 + 3 + 3
# Kernels on a GPU, greedily, most of them over few numbers; and the kernels that drop the inputs.
_KERNELS, _MASK_KERNELS = 42, 4


@dataclass(frozen=True)
class Round:
    """One verify forward.

    Attributes
    ----------
    decoder
        The target's shape.
    hidden, vocabulary
        d and V.
    gamma, paths
        Drafted tokens, and K.
    dtype
        Of weights and logits.
    """

    decoder: DenseDecoder
    hidden: int
    vocabulary: int
    gamma: int = 5
    paths: int = 5
    dtype: torch.dtype = torch.bfloat16

    @classmethod
    def of(cls, config: LlamaConfig, **settings: int) -> Round:
        """Return a round of the model that a configuration describes."""
        return cls(DenseDecoder.of_config(config), config.hidden_size, config.vocab_size, **settings)

    @property
    def rows(self) -> int:
        """Positions whose logits the lossless rule needs."""
        return self.gamma + 1

    @property
    def dropped_rows(self) -> int:
        """Rows that go through the head besides."""
        return self.paths * self.gamma

    @property
    def itemsize(self) -> int:
        """Bytes of an entry."""
        return self.dtype.itemsize

    @property
    def weights(self) -> int:
        """Entries of all matrices that a forward reads."""
        return self.decoder.block_weights + self.decoder.head_weights


@dataclass(frozen=True)
class DropMatchCost:
    """Seconds of a verify forward, and of what DropMatch adds to it.

    Attributes
    ----------
    forward
        The forward, over γ + 1 tokens.
    head
        Dropped rows in the head's usual call.
    masks
        Dropping the head's inputs.
    divergence
        Majority and Jensen–Shannon divergences.
    """

    forward: float
    head: float
    masks: float
    divergence: float

    @property
    def share(self) -> float:
        """DropMatch's share of the forward."""
        return (self.head + self.masks + self.divergence) / self.forward


def divergence_bytes(round: Round) -> int:
    """Return the bytes that majority and divergences move, one kernel after another."""
    of_paths = round.dropped_rows * (_AS_LOGITS * round.itemsize + _IN_FLOAT32 * 4)
    return round.vocabulary * (of_paths + round.gamma * _BESIDE_PATHS * 4)


def computed(round: Round, rates: Rates, launch: float = 2e-6) -> DropMatchCost:
    """Return the cost where every part takes as long as its bytes or its operations, whichever is longer.

    Parameters
    ----------
    round
        What is computed.
    rates
        What the machine can do.
    launch
        Launch time of every kernel of the rule, in seconds; there are many small ones.

    Examples
    --------
    >>> config, bound = TARGETS["llama-8b"]
    >>> cost = computed(Round.of(config), H200)
    >>> cost.share < bound
    True
    """

    def seconds(moved: float, operations: float) -> float:
        return max(moved / rates.bandwidth, operations / rates.flops)

    def head(rows: int) -> float:
        logits = rows * round.vocabulary
        weights = round.decoder.head_weights
        return seconds((weights + logits) * round.itemsize, 2 * rows * weights)

    blocks = round.decoder.block_weights
    masks = 3 * round.dropped_rows * round.hidden * round.itemsize
    return DropMatchCost(
        forward=seconds(blocks * round.itemsize, 2 * round.rows * blocks) + head(round.rows),
        head=head(round.rows + round.dropped_rows) - head(round.rows),
        masks=seconds(masks, 0) + _MASK_KERNELS * launch,
        divergence=seconds(divergence_bytes(round), 0) + _KERNELS * launch,
    )


def measured(round: Round, device: torch.device, slice_bytes: int = 2**26, seconds: float = 0.3) -> DropMatchCost:
    """Return the cost from parts that are timed here, with as many threads as torch uses now.

    Products with a slice of a matrix are timed for as many rows as a verify forward has, with and without dropped
    ones, and scaled to all weights; everything else is run in full.

    Parameters
    ----------
    round
        What is timed.
    device
        Where.
    slice_bytes
        Size of the slice: larger than caches, smaller than memory.
    seconds
        How long each part is repeated.
    """
    width = max(1, slice_bytes // round.itemsize // round.hidden)
    matrix = torch.randn(width, round.hidden, device=device).to(round.dtype)

    def per_weight(rows: int) -> float:
        states = torch.randn(rows, round.hidden, device=device).to(round.dtype)
        return _time(lambda: torch.nn.functional.linear(states, matrix), seconds) / matrix.numel()

    plain, more = per_weight(round.rows), per_weight(round.rows + round.dropped_rows)
    states = torch.randn(1, 1, round.gamma, round.hidden, device=device).to(round.dtype)
    shape = (1, round.paths, round.gamma, round.hidden)

    def drop() -> Tensor:
        mask = torch.empty(shape, device=device, dtype=round.dtype)
        return (states * mask.bernoulli_(0.7).div_(0.7)).flatten(1, 2)

    rule, v = DropMatch(num_paths=round.paths), _verification(round, device)

    def decide() -> Tensor:
        return rule.keep(replace(v, centroid_logits=v.dropped_logits.mean(1, dtype=torch.float32)))

    return DropMatchCost(
        forward=plain * round.weights,
        head=max(0.0, more - plain) * round.decoder.head_weights,
        masks=_time(drop, seconds),
        divergence=_time(decide, seconds),
    )


def _verification(round: Round, device: torch.device) -> Verification:
    logits = torch.randn(1, round.rows, round.vocabulary, device=device)
    paths = logits[:, None, :-1] + torch.randn(1, round.paths, round.gamma, round.vocabulary, device=device)
    return Verification(
        tokens=logits[:, :-1].argmax(-1),
        logits=logits,
        draft_logits=logits[:, :-1].flip(1),
        dropped_logits=paths.to(round.dtype),
    )


def _time(action: Callable[[], Tensor], seconds: float) -> float:
    timer = Timer("action()", globals={"action": action}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=seconds).median


def main(
    gamma: Gamma = 5,
    paths: Annotated[int, typer.Option(min=1, help="Dropped heads.")] = 5,
    device: Annotated[str, typer.Option(help="Where the parts are timed.")] = "cpu",
    threads: Threads = None,
    bandwidth: Annotated[float, typer.Option(min=1, help="Bytes per second of the machine.")] = 4.8e12,
    flops: Annotated[float, typer.Option(min=1, help="Bfloat16 operations per second of the machine.")] = 7.9e14,
    launch: Annotated[float, typer.Option(min=0, help="Launch time of each kernel of the rule, in seconds.")] = 2e-6,
    seconds: Annotated[float, typer.Option(min=0.001, help="How long each part is timed.")] = 0.3,
) -> None:
    """Tabulate DropMatch's share of a verify forward, by the geometry of the target: computed, and timed in parts."""
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
    Console().print(table)


app = command(main)

if __name__ == "__main__":
    app()
