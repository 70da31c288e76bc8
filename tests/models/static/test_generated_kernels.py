"""How many kernels compiled forwards launch on an H200, by the code that is generated for it: no GPU is needed.

``python -m tests.models.static.test_generated_kernels`` prints the table, and with a part of a way's name its kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cyclopts
import pytest
import torch
from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM, LogitsProcessorList

from hf_lossy_assist.drafting.vocabulary import SAME
from hf_lossy_assist.models import quantised
from hf_lossy_assist.models.static import layerwise
from hf_lossy_assist.models.static.cache_slot import StaticCacheSlot, new_static_cache
from hf_lossy_assist.models.static.fixed import FixedSampler, Widths
from hf_lossy_assist.models.static.forwards import Compiling
from hf_lossy_assist.models.static.graphs import CompiledRecording
from hf_lossy_assist.models.static.runner import StaticCacheRunner

pytest.importorskip("triton", reason="Triton is not installed", exc_type=ImportError)
if torch.version.cuda is None:
    pytest.skip("this torch is no CUDA build", allow_module_level=True)

from tests.generated_kernels import Launches, pretended_h200

SIZES = {
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "head_dim": 64},
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "head_dim": 128},
}
DEPTHS = {"1B": 16, "8B": 32}
SLOTS, TWINS = 256, (2, 4)
CASES = {"1B, one token": ("1B", 1), "1B, two tokens": ("1B", 2), "8B, five tokens": ("8B", 5)}


def _no_folding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(layerwise, "folding", lambda config, _: config)


def _no_splitting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(quantised, "FEW_ROWS", 0)


def _a_counter_a_layer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("hf_lossy_assist.compat.caches.is_counted_once", lambda _: False)
    patch.setattr(layerwise, "is_counted_once", lambda _: False)


@dataclass(frozen=True)
class Way:
    """A way to compile: ``options`` of the user's, None for the package's own, after ``changes`` to the package."""

    options: dict[str, Any] | None = None
    changes: tuple[Callable[[pytest.MonkeyPatch], None], ...] = ()
    whole: bool = False
    cases: tuple[str, ...] = field(default_factory=lambda: (*CASES,))


DRAFT, DRAFTED = "1B, a drafted token", 4
EXTREMES = ("1B, one token", "8B, five tokens")
OFF = {"coordinate_descent_tuning": False}
TUNING = {"coordinate_descent_tuning": True}
WAYS = {
    "base": Way(OFF, (_no_folding, _a_counter_a_layer)),
    "+ folded keys": Way(OFF, (_a_counter_a_layer,), cases=EXTREMES),
    "+ tuning": Way(TUNING, (_a_counter_a_layer, _no_splitting), cases=EXTREMES),
    "+ combo kernels": Way(TUNING | {"combo_kernels": True}, (_a_counter_a_layer, _no_splitting), cases=EXTREMES),
    "+ rows split": Way(None, (_a_counter_a_layer,)),
    "+ one counter: **the default**": Way(),
    "base, whole": Way(OFF, whole=True),
    "tuning and combo kernels, whole": Way(whole=True),
}


def launched(launches: Launches, case: str, way: Way, layers: int, drafts: int = 0) -> Counter[str]:
    """Return the kernels of a forward of so many layers, or of a whole draft, as the package prepares and records."""
    size, tokens = CASES[case]
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": layers}
    config = LlamaConfig(**SIZES[size], **heads, vocab_size=128256)
    model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
    runner = StaticCacheRunner(model, StaticCacheSlot(new_static_cache(model, SLOTS)), {})
    found: Counter[str] = Counter()

    def recorder(body: Callable[[], Any], device: torch.device, memory: Any) -> tuple[Callable[[], None], Any]:
        body()  # compiles
        launches.kernels.clear()
        output = body()
        found.update(launches.kernels)
        return lambda: None, output

    how = CompiledRecording(recorder, CompileConfig(mode="default", options=way.options, fullgraph=way.whole))
    runner.trial(False, 1, True)  # gives the cache its tensors
    greedy = FixedSampler(0, False, LogitsProcessorList(), None, SAME)
    widths = Widths(drafts=(drafts,), sampler=greedy) if drafts else Widths((tokens,))
    runner.fixed.prepare(runner, how, widths)
    if drafts:
        runner.trial_draft(runner.fixed.chains[0], None)
    else:
        runner.trial(False, tokens, False)
    return found


def a_layer(case: str, way: Way, drafts: int = 0) -> tuple[Counter[str], Counter[str]]:
    """Return the kernels of a layer, and those around all layers: by twins of two and of four."""
    with pretended_h200() as launches, pytest.MonkeyPatch.context() as patch:
        for change in way.changes:
            change(patch)
        _share_code(patch)
        few, many = (launched(launches, case, way, layers, drafts) for layers in TWINS)
    assert not few - many
    layer = Counter({name: n / (TWINS[1] - TWINS[0]) for name, n in (many - few).items()})
    return layer, few - Counter({name: TWINS[0] * n for name, n in layer.items()})


def _share_code(patch: pytest.MonkeyPatch) -> None:
    """Let twins run the same compiled layer."""
    made, compiled = {}, Compiling._compiled

    def once(self: Compiling, function: Any, model: Any) -> Any:
        if function not in made:
            made[function] = compiled(self, function, model)
        return made[function]

    patch.setattr(Compiling, "_compiled", once)


# Without options there are 19 for each.
DEFAULT = {"1B, one token": 9, "1B, two tokens": 10, "8B, five tokens": 10}


@pytest.mark.parametrize("case", DEFAULT)
def test_a_layer_of_the_default_has_few_kernels(case):
    layer, _ = a_layer(case, WAYS["+ one counter: **the default**"])
    assert not any(name.startswith(("extern_kernels", "aten.")) for name in layer)
    assert sum(layer.values()) <= DEFAULT[case], layer


def main(part: str = "", only: str = "") -> None:
    for name, way in WAYS.items():
        for case in (case for case in (*way.cases, DRAFT) if part in name and only in case):
            drafts = DRAFTED if case == DRAFT else 0
            if drafts and way.cases == EXTREMES:
                continue
            own = "1B, one token" if drafts else case
            found = a_layer(own, way, drafts=drafts)
            layer, around = (sum(x.values()) / max(1, drafts) for x in found)
            total = layer * DEPTHS[own.split(",")[0]] + around
            print(f"{name} | {case} | {layer:.4g} a layer, {around:.4g} around, {total:.4g} in all")  # noqa: T201
            for kernel, n in (found[0] + found[1]).most_common() if part else ():
                print(f"    {n:g} {kernel}")  # noqa: T201


if __name__ == "__main__":
    cyclopts.run(main)
