"""How many kernels compiled forwards launch on an H200, by the code that is generated for it: no GPU is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM

from hf_lossy_assist.models.static.cache_slot import StaticCacheSlot, new_static_cache
from hf_lossy_assist.models.static.fixed import Widths
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
SLOTS, TWINS = 256, (2, 4)
MOST = {("1B", 1): (9, 0), ("1B", 2): (15, 7), ("8B", 5): (15, 7)}
"""Kernels of a layer, by size and tokens, and how many of them are a library's. Without the package's options, 19."""


def launched(launches: Launches, size: str, tokens: int, layers: int) -> Counter[str]:
    """Return the kernels of a forward of so many layers, as the package prepares and records it."""
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

    how = CompiledRecording(recorder, CompileConfig(mode="default", options=None, fullgraph=False))
    runner.trial(False, 1, True)  # gives the cache its tensors
    runner.fixed.prepare(runner, how, Widths((tokens,)))
    runner.trial(False, tokens, False)
    return found


def a_layer(size: str, tokens: int) -> Counter[str]:
    """Return the kernels of a layer: by twins of two and of four."""
    with pretended_h200() as launches, pytest.MonkeyPatch.context() as patch:
        _share_code(patch)
        few, many = (launched(launches, size, tokens, layers) for layers in TWINS)
    assert not few - many
    return Counter({name: n / (TWINS[1] - TWINS[0]) for name, n in (many - few).items()})


def _share_code(patch: pytest.MonkeyPatch) -> None:
    """Let twins run the same compiled layer."""
    made, compiled = {}, Compiling._compiled

    def once(self: Compiling, function: Any, model: Any) -> Any:
        if function not in made:
            made[function] = compiled(self, function, model)
        return made[function]

    patch.setattr(Compiling, "_compiled", once)


@pytest.mark.parametrize(("size", "tokens"), MOST)
def test_a_layer_has_few_kernels(size, tokens):
    """One row is multiplied by generated kernels; for more, a library's are faster by far on an H200."""
    layer, (most, products) = a_layer(size, tokens), MOST[size, tokens]
    assert sum(n for name, n in layer.items() if name.startswith(("extern_kernels", "aten."))) == products
    assert sum(layer.values()) <= most, layer
