"""The cost of forwards over some tokens in a geometry, and the gain of speculation there.

    python -m benchmarks.forward_costs --geometry llama-1b,vocab=49152 --threads 1

It needs no trained weights, because the cost of a forward depends on the model's sizes alone. Tokens per round, and the
time of a round outside the forwards, come from measurements of a small pair with the same vocabulary.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from hf_lossy_assist.cli.console import limit_threads
from hf_lossy_assist.cli.options import RowsFile, Threads, numbers
from hf_lossy_assist.compat import CACHE
from hf_lossy_assist.drafting.eagle3 import Eagle3
from hf_lossy_assist.drafting.eagle3_config import Eagle3Config
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation import records

from . import command
from .geometry import Geometry, parse_geometry


@dataclass(frozen=True)
class ForwardCost:
    """The median seconds of one forward, in CPU time of one thread, and beside a target's forward over one token."""

    what: str  # "target", or "head" of EAGLE-3
    tokens: int
    seconds: float
    ratio: float


@dataclass(frozen=True)
class Estimate:
    """How fast a measured mode would be if its target's and head's forwards cost what they do in a geometry."""

    label: str
    tokens_per_round: float
    verify: int  # tokens in a round's forward of the target
    drafting: float  # seconds of a round, and those that follow
    verifying: float
    deciding: float  # all that is outside the forwards, as it was measured
    measured: float  # × the target alone, of the small pair
    speedup: float  # the same in the geometry


def speedup(tokens_per_round: float, alone: float, drafting: float, verifying: float, deciding: float) -> float:
    """Return tokens per second beside the target alone, which gives one token in ``alone`` seconds.

    Examples
    --------
    >>> speedup(2.0, alone=1.0, drafting=0.25, verifying=1.25, deciding=0.1)
    1.25
    """
    return tokens_per_round * alone / (drafting + verifying + deciding)


@torch.inference_mode()
def costs(
    geometry: Geometry, tokens: list[int], head_tokens: list[int], *, context: int, draft_vocab: int, repeats: int
) -> Iterator[ForwardCost]:
    """Time a target of a geometry and an EAGLE-3 head for it, each in bfloat16 after ``context`` tokens."""
    config = LlamaConfig(**geometry.config_fields(), dtype=torch.bfloat16, tie_word_embeddings=True)
    target = _filled(LlamaForCausalLM, config)
    target.model.rotary_emb = type(target.model.rotary_emb)(config)
    ids = torch.arange(context + max(tokens))[None] % geometry.vocab
    cache = getattr(target(ids[:, :context], use_cache=True), CACHE)

    def forward(n: int) -> Callable[[], None]:
        def run() -> None:
            target(ids[:, context : context + n], **{CACHE: cache}, use_cache=True)
            cache.crop(-n)

        return run

    layer = LlamaConfig(**{**geometry.config_fields(), "num_hidden_layers": 1})
    head = Eagle3(Eagle3Config(layer, draft_vocab, geometry.hidden)).to(torch.bfloat16).eval()
    memory = head.new_cache()
    states = torch.zeros(1, context + max(head_tokens), geometry.hidden, dtype=torch.bfloat16)
    place = torch.arange(states.shape[1])[None]
    head(states[:, :context], states[:, :context], place[:, :context], None, memory)

    def step(n: int) -> Callable[[], None]:
        def run() -> None:
            new = states[:, :n]
            head.logits(head(new, new, place[:, context : context + n], None, memory))
            memory.crop(-n)

        return run

    one = _seconds(forward(1), repeats)
    for n in tokens:
        seconds = one if n == 1 else _seconds(forward(n), repeats)
        yield ForwardCost("target", n, seconds, seconds / one)
    for n in head_tokens:
        seconds = _seconds(step(n), repeats)
        yield ForwardCost("head", n, seconds, seconds / one)


def estimates(rows: list[ForwardCost], measured: Path) -> Iterator[Estimate]:
    """Estimate modes of a ``bench`` with an EAGLE-3 head at these costs, for chains and trees."""
    modes = [row for line in measured.open(encoding="utf-8") if (row := json.loads(line))["table"] == "ModeSummary"]
    target = {row.tokens: row.seconds for row in rows if row.what == "target"}
    head = {row.tokens: row.seconds for row in rows if row.what == "head"}
    for mode in modes:
        settings, gamma = mode["config"].get("lossy_config", {}), mode["config"].get("num_assistant_tokens")
        tree = settings.get("tree")
        verify = 1 + (tree["nodes"] if tree else gamma or 0)
        width = tree["top_k"] if tree else 1
        # DropMatch's dropped heads need forwards that are not timed here.
        if gamma is None or verify not in target or width not in head or "dropmatch" in mode["label"]:
            continue
        drafting, deciding = mode["draft_calls_per_round"] * head[width], mode["per_round"]["rest"]
        deciding += mode["per_round"]["deciding"] or 0.0
        per_round = mode["tokens_per_round"]
        gain = speedup(per_round, target[1], drafting, target[verify], deciding)
        yield Estimate(
            mode["label"], per_round, verify, drafting, target[verify], deciding, mode["ratios"]["target alone"], gain
        )


def main(
    geometry: Annotated[str, typer.Option(help="The target's sizes, or a preset.")] = "llama-1b,vocab=49152",
    tokens: Annotated[str, typer.Option(help="Numbers of tokens in a forward of the target.")] = "1,3,5,9,25",
    head_tokens: Annotated[
        str, typer.Option(help="Numbers of tokens in a forward of the EAGLE-3 head: 1 in a chain, top_k in a tree.")
    ] = "1,6",
    context: Annotated[int, typer.Option(min=1, help="Tokens that come before.")] = 96,
    draft_vocab: Annotated[int, typer.Option(min=1, help="Tokens that the head can draft.")] = 6144,
    repeats: Annotated[int, typer.Option(min=1, help="Timed forwards of each kind, after a warm-up.")] = 5,
    measured: Annotated[
        Path | None, typer.Option(help="A bench.jsonl of an EAGLE-3 head with this vocabulary.")
    ] = None,
    threads: Threads = None,
    out: RowsFile = None,
) -> None:
    """Time forwards of a geometry, in CPU time, and estimate what measured modes would gain there."""
    limit_threads(threads)
    sizes = parse_geometry(geometry, "--geometry")
    if measured is not None and not measured.is_file():
        raise LossyValueError(f"`--measured` has to be a bench.jsonl that is there, but is {str(measured)!r}")
    options = {"context": context, "draft_vocab": draft_vocab, "repeats": repeats}
    screen = Console()
    with records.written(out, records.provenance("cpu", geometry=geometry, **options)) as write:
        rows = []
        for row in costs(
            sizes, numbers("--tokens", tokens, int), numbers("--head-tokens", head_tokens, int), **options
        ):
            write(row)
            rows.append(row)
        table = Table("forward", "tokens", "ms", "beside one token", title=geometry)
        for row in rows:
            table.add_row(row.what, str(row.tokens), f"{1e3 * row.seconds:.1f}", f"{row.ratio:.2f}")
        screen.print(table)
        if measured is None:
            return
        table = Table("mode", "tokens per round", "drafting, ms", "verifying", "deciding", "measured, ×", "estimate, ×")
        for found in estimates(rows, measured):
            write(found)
            parts = (1e3 * found.drafting, 1e3 * found.verifying, 1e3 * found.deciding)
            table.add_row(
                found.label, f"{found.tokens_per_round:.2f}", *(f"{part:.1f}" for part in parts),
                f"{found.measured:.2f}", f"{found.speedup:.2f}",
            )  # fmt: skip
        screen.print(table)


def _filled(kind: type[LlamaForCausalLM], config: LlamaConfig) -> LlamaForCausalLM:
    """Return a model with equal weights: drawing a billion random ones takes longer than the measurement."""
    with torch.device("meta"):
        model = kind(config).to(torch.bfloat16)
    model = model.to_empty(device="cpu").eval()
    for weight in model.parameters():
        weight.data.fill_(0.01)
    model.tie_weights()
    return model


def _seconds(action: Callable[[], None], repeats: int) -> float:
    taken = []
    for _ in range(repeats + 1):
        begin = time.process_time()
        action()
        taken.append(time.process_time() - begin)
    return median(taken[1:])


app = command(main)

if __name__ == "__main__":
    app()
