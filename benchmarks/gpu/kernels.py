"""What each way of compiling makes of a layer: milliseconds, error, and every kernel by name.

Twins of four and of eight layers are measured; half of their difference is two layers, so a whole forward is the small
twin and the layers that it lacks.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from statistics import fmean, median
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel, StaticCache

from hf_lossy_assist.compat.caches import cache_name
from hf_lossy_assist.compat.kernels import FOLDED, folding
from hf_lossy_assist.models.quantised import WeightOnlyInt8Linear, sharing_copy, with_replaced

from .growing import PRESETS, Geometry
from .known_texts import TINY, built
from .run import Run, median_interval, rounded

LAYERS, FEW_LAYERS = (4, 8), (1, 2)
"""The twins', and those of a tiny run."""
BEFORE, SLOTS = 64, 256
"""Tokens before the measured ones, and slots of the cache."""


@dataclass(frozen=True)
class Case:
    """A forward over ``tokens``; ``aim`` is for all layers, in milliseconds."""

    size: str
    tokens: int
    aim: float | None = None


ONE, TWO, FIVE = Case("llama-1b", 1, 0.82), Case("llama-1b", 2), Case("llama-8b", 5, 4.2)


def folded(model: PreTrainedModel) -> PreTrainedModel:
    """Let the heads that share keys be more queries of these, which are then not copied, as the package compiles."""
    folding(model.config, "cuda")  # makes it known
    model.set_attn_implementation(FOLDED)
    return model


class RowByRow(nn.Module):
    """Multiplies few rows one by one, which Inductor joins to a kernel that reads the weights once."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 8:
            return linear(x, self.weight)
        return torch.cat([torch.mm(x[:, i], self.weight.t())[:, None] for i in range(x.shape[1])], 1)


def split(model: PreTrainedModel) -> PreTrainedModel:
    return with_replaced(model, lambda module: RowByRow(module) if type(module) is nn.Linear else None)


def int8(model: PreTrainedModel) -> PreTrainedModel:
    """Round the weights as ``quantize_draft`` does on CUDA."""
    return with_replaced(
        model, lambda module: WeightOnlyInt8Linear(module.weight, None) if type(module) is nn.Linear else None
    )


class Joined(nn.Module):
    """Multiplies by the weights of several layers at once; each of them returns its share."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([x.weight for x in layers]), requires_grad=False)
        self.sizes = [x.out_features for x in layers]
        self.results: list[Tensor] = []


class Share(nn.Module):
    def __init__(self, joined: Joined, i: int) -> None:
        super().__init__()
        self.joined, self.i = joined, i

    def forward(self, x: Tensor) -> Tensor:
        joined = self.joined
        if self.i == 0:
            joined.results[:] = linear(x, joined.weight).split(joined.sizes, -1)
        return joined.results[self.i]


def fused(model: PreTrainedModel) -> PreTrainedModel:
    """Join the weights of queries, keys and values, and of gate and up."""
    for layer in model.model.layers:
        for part, names in ((layer.self_attn, "qkv"), (layer.mlp, ("gate", "up"))):
            joined = Joined([getattr(part, f"{name}_proj") for name in names])
            for i, name in enumerate(names):
                setattr(part, f"{name}_proj", Share(joined, i))
    return model


@dataclass(frozen=True)
class Variant:
    """A way to compile: Inductor's ``options``, after ``changes`` to a copy of the model.

    ``speed`` may take the options of one that is ``for_calls``.
    """

    cases: tuple[Case, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[Callable[[PreTrainedModel], PreTrainedModel], ...] = ()
    for_calls: bool = True


TUNING = {"coordinate_descent_tuning": True}
TUNED = TUNING | {"combo_kernels": True}
VARIANTS = {
    "base": Variant((ONE, FIVE, TWO), dict.fromkeys(TUNED, False)),
    "tuning": Variant((ONE,), TUNING),
    "tuning, combo, fold": Variant((ONE, FIVE), TUNED, (folded,)),
    "tuning, combo, fold, split": Variant((FIVE, TWO), TUNED, (folded, split)),
    "tuning, combo, fold, split, PDL": Variant((ONE, FIVE, TWO), TUNED | {"triton.enable_pdl": True}, (folded, split)),
    "autotuned, combo, fold, fused": Variant((FIVE, ONE), TUNED | {"max_autotune_gemm": True}, (folded, fused), False),
    "tuning, combo, fold, int8": Variant((ONE,), TUNED, (int8, folded), False),
}


def kernels(run: Run) -> None:
    """Measure the card's ceilings, then the variants, those that decide most first."""
    _ceilings(run)
    models: dict[tuple[str, int], PreTrainedModel] = {}
    wanted: dict[tuple[Case, int], tuple[Tensor, Tensor]] = {}
    base: dict[Case, list[Twin]] = {}
    ratios: dict[str, dict[Case, float]] = {}
    try:
        for name, case in ((name, case) for name, variant in VARIANTS.items() for case in variant.cases):
            with run.step(f"{name}, {case.size} x {case.tokens}") as begins, torch.no_grad():
                if not begins:
                    continue
                twins, began = [], run.now
                for layers in _layers(run):
                    if (case.size, layers) not in models:
                        torch.manual_seed(0)
                        models[case.size, layers] = built(run, _shape(run, case, layers))
                    model = models[case.size, layers]
                    if (case, layers) not in wanted:
                        wanted[case, layers] = _wanted(model, case.tokens)
                    twins.append(Twin(run, model, VARIANTS[name], *wanted[case, layers]))
                row = {"compile_s": round(run.now - began, 1)}
                row |= _compared(run, case, base.setdefault(case, twins), twins)
                ratios.setdefault(name, {})[case] = row["times_base"][0]
                run.say("kernels", variant=name, model=case.size, tokens=case.tokens, **row)
    finally:
        if run.options is None and ratios:
            known, means = {}, {}  # where a variant has no case of its own, that of the one before counts
            for name in (name for name in ratios if VARIANTS[name].for_calls):
                known |= ratios[name]
                means[name] = fmean(known.values())
            best = min(means, key=means.get)
            run.options = VARIANTS[best].options
            run.say("kernels", best_for_calls=best, options=dict(run.options))


def _layers(run: Run) -> tuple[int, int]:
    return FEW_LAYERS if run.tiny else LAYERS


def _shape(run: Run, case: Case, layers: int | None = None) -> Geometry:
    shape = TINY[case.size == ONE.size] if run.tiny else PRESETS[case.size]
    return shape if layers is None else dataclasses.replace(shape, layers=layers)


def _ceilings(run: Run) -> None:
    """Say the rates, in bytes a second, of a copy, and of a product that reads a large matrix once."""
    rows = 256 if run.tiny else 2**17
    matrix, vector = torch.randn(rows + 1, 8192, device=run.device, dtype=run.dtype).split([rows, 1])
    other, out = torch.empty_like(matrix), matrix.new_empty(rows)
    size = matrix.numel() * matrix.element_size() / 1e12
    for what, moved, body in (
        ("copy", 2 * size, lambda: other.copy_(matrix)),
        ("product", size, lambda: torch.mv(matrix, vector[0], out=out)),
    ):
        body()
        rates = [moved / run.seconds(body)[0] for _ in range(10)]
        run.say("ceilings", what=what, tb_per_s=rounded(median_interval(rates)), n=len(rates))


def _wanted(model: PreTrainedModel, tokens: int) -> tuple[Tensor, Tensor]:
    """Return a text, and the logits of its last tokens in float32, without a cache."""
    text = torch.randint(model.config.vocab_size, (1, BEFORE + tokens), device=model.device)
    return text, copy.deepcopy(model).float()(text, logits_to_keep=tokens).logits


class Twin:
    """A compiled forward over the last tokens of a text, whose kernels :meth:`__call__` launches as one graph."""

    def __init__(self, run: Run, model: PreTrainedModel, variant: Variant, text: Tensor, wanted: Tensor) -> None:
        model = reduce(lambda changed, change: change(changed), variant.changes, sharing_copy(model))
        cache = StaticCache(config=model.config, max_cache_len=SLOTS)
        inputs = {cache_name(model): cache, "use_cache": True}
        model(text[:, :BEFORE], **inputs)
        lengths = [layer.cumulative_length for layer in cache.layers]
        before = [torch.full_like(x, BEFORE) for x in lengths]
        positions = torch.arange(BEFORE, text.shape[1], device=text.device)[None]
        ids, self.logits = torch.zeros_like(text[:, BEFORE:]), torch.full_like(wanted, float("nan"))
        how = {"options": dict(variant.options)} if run.cuda else {"backend": "eager"}

        def forward() -> Tensor:
            return model(ids, position_ids=positions, **inputs).logits

        code = forward.__code__.replace()  # torch would count all variants as compilations of one
        forward = FunctionType(code, forward.__globals__, closure=forward.__closure__)
        compiled = torch.compile(forward, dynamic=False, **how)

        def body() -> None:
            torch._foreach_copy_(lengths, before)
            self.logits.copy_(compiled())

        for _ in range(2):
            body()
        self.body = _recorded(body) if run.cuda else body
        self.source = body  # a graph holds no tensor that it reads
        # Neither compiling nor recording has seen these tokens.
        ids.copy_(text[:, BEFORE:])
        self.body()
        self.error = float((self.logits - wanted).norm() / wanted.norm())


def _recorded(body: Callable[[], None]) -> Callable[[], None]:
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        body()
    return graph.replay


def _compared(run: Run, case: Case, base: list[Twin], own: list[Twin]) -> dict[str, Any]:
    """Return a variant's times beside the base's, measured in turn, its errors, and its kernels."""
    times, replays = (3, 1) if run.tiny else (15, 10)
    less, more = _layers(run)
    missing = _shape(run, case).layers - less
    layers, wholes = ([], []), ([], [])
    for i in range(times):
        for which in (0, 1) if i % 2 else (1, 0):
            few, many = (
                1000 * run.seconds(lambda twin=twin: [twin.body() for _ in range(replays)])[0] / replays
                for twin in (base, own)[which]
            )
            layers[which].append((many - few) / (more - less))
            wholes[which].append(few + missing * layers[which][-1])
    few, many = (run.kernels(twin.body) for twin in own)
    a_layer = {name: (count - few.get(name, (0, 0))[0]) / (more - less) for name, (count, _) in many.items()}
    return {
        "layer_us": rounded(median_interval([1000 * x for x in layers[1]]), 2),
        "whole_ms": round(median(wholes[1]), 3), "aim_ms": case.aim,
        "times_base": rounded(median_interval([x / y for x, y in zip(wholes[1], wholes[0], strict=True)])), "n": times,
        "error": {str(x): round(twin.error, 6) for x, twin in zip((less, more), own, strict=True)},
        "kernels_a_layer": round(sum(a_layer.values()), 2), "a_layer": {x: n for x, n in a_layer.items() if n},
        f"kernels_of_{more}": many,
    }  # fmt: skip
