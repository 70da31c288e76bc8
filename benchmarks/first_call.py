"""``python -m benchmarks.first_call``: what compiling costs a first call, a layer of each kind or the whole model.

A tiny target of twelve layers decodes alone, on the CPU, without what earlier runs compiled.
"""

from __future__ import annotations

import json
import os
from enum import StrEnum
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from statistics import median
from tempfile import mkdtemp
from time import perf_counter
from typing import Annotated

import torch
import torch._inductor.config
import typer
from torch._dynamo.utils import counters
from transformers import (
    CompileConfig,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from hf_lossy_assist import enabled
from hf_lossy_assist.cli.console import CleanCommand, CleanGroup

app = typer.Typer(cls=CleanGroup, add_completion=False, pretty_exceptions_enable=False)

_SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16} | {
    "intermediate_size": 128, "num_hidden_layers": 12, "vocab_size": 100,
}  # fmt: skip


class Model(StrEnum):
    """Models of one kind of layers, and of two."""

    LLAMA = "llama"
    GEMMA3 = "gemma3"

    def made(self) -> PreTrainedModel:
        torch.manual_seed(0)
        if self is Model.LLAMA:
            return LlamaForCausalLM(LlamaConfig(**_SIZES)).eval()
        kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 4
        return Gemma3ForCausalLM(Gemma3TextConfig(**_SIZES, sliding_window=8, layer_types=kinds)).eval()


def _used() -> float:
    """Return the computing time of this process and of compilers that it has called."""
    return sum(x.ru_utime + x.ru_stime for x in map(getrusage, (RUSAGE_SELF, RUSAGE_CHILDREN)))


@app.command("first", cls=CleanCommand)
def first(
    model: Annotated[Model, typer.Option(help="Whose layers are compiled.")] = Model.LLAMA,
    whole: Annotated[bool, typer.Option(help="Compile the whole model.")] = False,
    backend: Annotated[str, typer.Option(help="Another of torch's backends: `eager` only traces.")] = "inductor",
    later: Annotated[int, typer.Option(help="How many calls follow the first.")] = 5,
) -> None:
    """Print graphs, seconds of the first call and of later ones, and whether the text is the eager one."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"], torch._inductor.config.compile_threads = mkdtemp(), 1
    target, ids = model.made(), torch.arange(3, 12)[None]
    kwargs = {"lossy_mode": "lossless", "num_assistant_tokens": 0, "max_new_tokens": 40, "do_sample": False}
    kwargs |= {"eos_token_id": None, "pad_token_id": 0}
    config, seconds = CompileConfig(backend=backend, mode="default", fullgraph=whole), []
    with enabled(target):
        plain = target.generate(ids, **kwargs, lossy_config={"compile": False})
        for _ in range(1 + later):
            used, wall = _used(), perf_counter()
            text = target.generate(ids, **kwargs, lossy_config={"compile": True}, compile_config=config)
            seconds.append((_used() - used, perf_counter() - wall))
    row = {"model": model.value, "whole": whole, "backend": backend, "graphs": counters["stats"]["unique_graphs"]}
    row |= {"equal": torch.equal(text, plain), "first_cpu_s": round(seconds[0][0], 2)}
    row |= {"first_s": round(seconds[0][1], 2), "later_cpu_s": round(median(x for x, _ in seconds[1:]), 3)}
    typer.echo(json.dumps(row))


if __name__ == "__main__":
    app()
