"""The best speed that a machine allows for the modes of a ``bench``: bytes over bandwidth, operations over matmul rate.

    python -m benchmarks.roofline overhead/bench.jsonl --threads 1

A forward takes as long as reading its weights and keys, or as computing its operations, whichever is longer. Nothing
else takes any time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor
from transformers import PreTrainedModel

from hf_lossy_assist.cli.bench import Preparation
from hf_lossy_assist.cli.console import limit_threads
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.cli.options import Device, DraftSource, PairInstead, RowsFile, TargetSource, Threads
from hf_lossy_assist.errors import LossyUnsupportedError, LossyValueError
from hf_lossy_assist.evaluation import records
from hf_lossy_assist.evaluation.meters import CLOCKS, Clock, synchronizer
from hf_lossy_assist.evaluation.tables import Column, figure, percent, table
from hf_lossy_assist.theory import DenseDecoder

from . import command

# On the CPU, and on faster devices, where a small working set would show a kernel's launch time instead.
_SMALLEST, _LARGEST, _SQUARE = (1, 2**30), (2**30, 2**33), (1024, 8192)
_MOST_REPEATS = 200
_SECONDS = 0.4


@dataclass(frozen=True)
class Rates:
    """The rates at which a machine can read and compute for one model."""

    bandwidth: float  # bytes per second of a working set as large as the model, so that caches count equally
    flops: float  # operations per second of a large matrix product in the model's precision


@dataclass(frozen=True)
class Cost:
    """The bytes that a forward moves, and the operations that it computes."""

    weight_bytes: int  # weights that every forward reads; it reads few rows of an embedding that is no LM head
    cache_bytes: int  # keys and values of one cached token
    decoder: DenseDecoder  # the model's shape, which counts its operations

    @classmethod
    def of(cls, model: PreTrainedModel) -> Cost:
        """Return the cost of a dense decoder; mixtures of experts and layers without attention are refused."""
        if not isinstance(model, PreTrainedModel):
            raise LossyUnsupportedError(f"a {type(model).__name__} shares its embeddings with the target")
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        read = [p for p in model.parameters() if embedding is head or p is not embedding]
        config = model.config.get_text_config(decoder=True)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            weight_bytes=sum(p.numel() * p.element_size() for p in read),
            cache_bytes=2 * config.num_hidden_layers * heads * width * head.element_size(),
            decoder=DenseDecoder.of_model(model),
        )

    def seconds(self, rates: Rates, tokens: int = 1, context: int = 0, batch: int = 1) -> float:
        """Return the shortest time of a forward over ``tokens`` new tokens per row after ``context`` cached ones."""
        moved = self.weight_bytes + batch * context * self.cache_bytes
        return max(moved / rates.bandwidth, batch * self.decoder.forward(tokens, context).total / rates.flops)


@dataclass(frozen=True)
class Roofline:
    """The machine's limit for a pair of models."""

    target: Cost
    draft: Cost
    target_rates: Rates
    draft_rates: Rates
    context: int  # tokens in the caches, on average
    batch: int = 1

    def tokens_per_second(self, tokens_per_round: float, drafted: float) -> float:
        """Return the best speed of rounds with this number of tokens per row.

        ``drafted`` counts the draft's forwards per round; the target reads one token more. With 0 it decodes alone.
        """
        low, share = int(drafted), drafted - int(drafted)
        verify = sum(
            weight * self.target.seconds(self.target_rates, n + 1, self.context, self.batch)
            for n, weight in ((low, 1 - share), (low + 1, share))
        )
        draft = drafted * self.draft.seconds(self.draft_rates, 1, self.context, self.batch)
        return self.batch * tokens_per_round / (draft + verify)


@dataclass(frozen=True)
class ModeLimit:
    """A measured mode beside the best speed that its tokens per round allow."""

    label: str
    tokens_per_second: float  # measured
    roofline: float  # the best
    share: float


def mode_limits(limit: Roofline, modes: Sequence[Mapping[str, Any]]) -> Iterator[ModeLimit]:
    """Yield the limit of every ``ModeSummary`` of a ``bench`` that has tokens per round."""
    for mode in modes:
        if mode["tokens_per_round"] is not None:
            best = limit.tokens_per_second(mode["tokens_per_round"], mode["draft_calls_per_round"])
            speed = mode["tokens_per_second"]["median"]
            yield ModeLimit(mode["label"], speed, best, speed / best)


def measure_rates(model: PreTrainedModel, clock: Clock = time.perf_counter) -> Rates:
    """Measure this machine's rates for a model, with torch's current number of threads; takes about two seconds."""
    return Rates(
        bandwidth=measure_bandwidth(Cost.of(model).weight_bytes, model.dtype, model.device, clock),
        flops=measure_flops(model.dtype, model.device, clock),
    )


def measure_bandwidth(size: int, dtype: torch.dtype, device: torch.device, clock: Clock = time.perf_counter) -> float:
    """Return bytes per second of the fastest way to go through ``size`` bytes, again and again.

    It tries the sum of a vector, a copy (which reads and writes), and a product of a matrix and a vector: which one is
    fastest depends on the machine and the precision.
    """
    itemsize = torch.empty((), dtype=dtype).element_size()
    width = 1024
    fast = device.type != "cpu"
    rows = max(1, min(max(size, _SMALLEST[fast]), _LARGEST[fast]) // itemsize // width)
    matrix = torch.empty(rows, width, dtype=dtype, device=device).normal_()
    vector = torch.empty(width, dtype=dtype, device=device).normal_()
    half = matrix.view(-1)[: matrix.numel() // 2]
    ways = (
        lambda: torch.mv(matrix, vector),
        matrix.sum,
        lambda: matrix.view(-1)[-len(half) :].copy_(half),
    )
    return rows * width * itemsize / min(_fastest(way, device, clock) for way in ways)


def measure_flops(dtype: torch.dtype, device: torch.device, clock: Clock = time.perf_counter) -> float:
    """Return operations per second of a product of large square matrices."""
    n = _SQUARE[device.type != "cpu"]
    a, b = (torch.empty(n, n, dtype=dtype, device=device).normal_() for _ in range(2))
    return 2 * n**3 / _fastest(lambda: a @ b, device, clock)


def _fastest(action: Callable[[], Tensor], device: torch.device, clock: Clock) -> float:
    synchronize = synchronizer(device)
    action()
    best, begin = float("inf"), time.perf_counter()
    for _ in range(_MOST_REPEATS):
        synchronize()
        started = clock()
        action()
        synchronize()
        best = min(best, clock() - started)
        if time.perf_counter() - begin > _SECONDS:
            break
    return best


def main(
    prepared: typer.Context,
    measured: Annotated[Path, typer.Argument(help="A bench.jsonl of these models on this machine.")],
    model: TargetSource = None,
    assistant: DraftSource = None,
    pair: PairInstead = None,
    context: Annotated[int, typer.Option(min=0, help="Tokens in the caches, on average.")] = 128,
    device: Device = "cpu",
    threads: Threads = None,
    out: RowsFile = None,
) -> None:
    """Measure this machine's rates, and compare measured modes with its best."""
    limit_threads(threads)
    if not measured.is_file():
        raise LossyValueError(f"`MEASURED` has to be a bench.jsonl that is there, but is {str(measured)!r}")
    origin, *rows = (json.loads(line) for line in measured.read_text(encoding="utf-8").splitlines())
    pair = "arithmetic" if model is None and pair is None else pair
    options = ModelOptions(pair, model, assistant, origin["dtype"], device)
    options.check()
    models = (prepared.obj or Preparation()).change(options.load().models)
    costs = Cost.of(models.target), Cost.of(models.draft)
    rates = (measure_rates(each, CLOCKS[origin["clock"]]) for each in (models.target, models.draft))
    limit = Roofline(*costs, *rates, context, origin["batch"])
    found = list(mode_limits(limit, [row for row in rows if row["table"] == "ModeSummary"]))
    with records.written(out, records.provenance(device, measured=str(measured), context=context)) as write:
        for row in (limit, *found):
            write(row)
    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "tokens/s": lambda row: figure(row.tokens_per_second),
        "best": lambda row: figure(row.roofline),
        "share\n(%)": lambda row: percent(row.share),
    }
    screen = Console()
    screen.print(table(found, columns, "Measured speed, and the best for each mode's tokens per round"))
    for name, cost, rate in zip(("target", "draft"), costs, (limit.target_rates, limit.draft_rates), strict=True):
        screen.print(
            f"{name}: weights {cost.weight_bytes / 2**20:.0f} MiB, {rate.bandwidth / 1e9:.1f} GB/s, matmul "
            f"{rate.flops / 1e12:.3g} TFLOP/s",
            style="dim",
        )


app = command(main)

if __name__ == "__main__":
    app()
