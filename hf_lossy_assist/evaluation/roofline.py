"""The best speed that a machine allows: bytes over its bandwidth, operations over its matmul rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LossyUnsupportedError
from ..theory import DenseDecoder
from .meters import Clock, synchronizer

# Of the CPU, and of anything faster: there a small working set shows how long a kernel takes to start.
_SMALLEST, _LARGEST, _SQUARE = (1, 2**30), (2**30, 2**33), (1024, 8192)
_MOST_REPEATS = 200
_SECONDS = 0.4


@dataclass(frozen=True)
class Rates:
    """The rates at which a machine can read and compute for one model."""

    # Bytes per second, read from a working set of the model's size, so that caches count as they do for it.
    bandwidth: float
    flops: float  # operations per second of a large matrix product in the model's precision


@dataclass(frozen=True)
class Cost:
    """The bytes that a forward pass has to move, and the operations that it has to compute."""

    weight_bytes: int  # weights that every pass reads; of an embedding that is no LM head only rows are read
    cache_bytes: int  # keys and values of one cached token
    decoder: DenseDecoder  # the model's shape, which counts its operations

    @classmethod
    def of(cls, model: PreTrainedModel) -> Cost:
        """Return the cost of a dense decoder.

        Raises
        ------
        LossyUnsupportedError
            For mixtures of experts, and for layers that are not attention.
        """
        if not isinstance(model, PreTrainedModel):
            raise LossyUnsupportedError(f"a {type(model).__name__} shares its embeddings with the target")
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        looked_up = [] if embedding is head else [embedding]
        read = [p for p in model.parameters() if not any(p is other for other in looked_up)]
        config = model.config.get_text_config(decoder=True)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(
            weight_bytes=sum(p.numel() * p.element_size() for p in read),
            cache_bytes=2 * config.num_hidden_layers * heads * width * head.element_size(),
            decoder=DenseDecoder.of_model(model),
        )

    def seconds(self, rates: Rates, tokens: int = 1, context: int = 0, batch: int = 1) -> float:
        """Return the shortest time of a pass over ``tokens`` new tokens per row after ``context`` cached ones."""
        moved = self.weight_bytes + batch * context * self.cache_bytes
        return max(moved / rates.bandwidth, batch * self.decoder.forward(tokens, context).total / rates.flops)


@dataclass(frozen=True)
class Roofline:
    """The hardware's limit for a pair of models."""

    target: Cost
    draft: Cost
    target_rates: Rates
    draft_rates: Rates
    context: int  # tokens in the caches, on average
    batch: int = 1

    def tokens_per_second(self, tokens_per_round: float, drafted: float) -> float:
        """Return the best speed at which rounds of so many tokens per row can come.

        ``drafted`` are the passes of the draft per round; the target reads one token more, and 0 is the target alone.
        """
        low, share = int(drafted), drafted - int(drafted)
        verify = sum(
            weight * self.target.seconds(self.target_rates, n + 1, self.context, self.batch)
            for n, weight in ((low, 1 - share), (low + 1, share))
        )
        draft = drafted * self.draft.seconds(self.draft_rates, 1, self.context, self.batch)
        return self.batch * tokens_per_round / (draft + verify)


def measure_rates(model: PreTrainedModel, clock: Clock = time.perf_counter) -> Rates:
    """Measure what this machine, with as many threads as torch uses now, can do for a model; about two seconds."""
    cost = Cost.of(model)
    return Rates(
        bandwidth=measure_bandwidth(cost.weight_bytes, model.dtype, model.device, clock),
        flops=measure_flops(model.dtype, model.device, clock),
    )


def measure_bandwidth(size: int, dtype: torch.dtype, device: torch.device, clock: Clock = time.perf_counter) -> float:
    """Return bytes per second of the fastest way to go through ``size`` bytes, again and again.

    The sum of a vector, a copy (which reads and writes), and a product of a matrix and a vector: which one is
    fastest depends on the machine and the precision.
    """
    itemsize = torch.empty((), dtype=dtype).element_size()
    width = 1024
    fast = device.type != "cpu"
    rows = max(1, min(max(size, _SMALLEST[fast]), _LARGEST[fast]) // itemsize // width)
    matrix = torch.empty(rows, width, dtype=dtype, device=device).normal_()
    vector = torch.empty(width, dtype=dtype, device=device).normal_()
    moved = rows * width * itemsize
    best = moved / _fastest(lambda: torch.mv(matrix, vector), device, clock)
    best = max(best, moved / _fastest(matrix.sum, device, clock))
    half = matrix.view(-1)[: matrix.numel() // 2]
    return max(best, moved / _fastest(lambda: matrix.view(-1)[-len(half) :].copy_(half), device, clock))


def measure_flops(dtype: torch.dtype, device: torch.device, clock: Clock = time.perf_counter) -> float:
    """Return operations per second of a product of large square matrices."""
    n = _SQUARE[device.type != "cpu"]
    a, b = (torch.empty(n, n, dtype=dtype, device=device).normal_() for _ in range(2))
    return 2 * n**3 / _fastest(lambda: a @ b, device, clock)


def _fastest(action: Callable[[], Tensor], device: torch.device, clock: Clock) -> float:
    """Return the seconds of the fastest of many calls."""
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
