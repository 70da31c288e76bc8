"""The time that mining saves by reusing the target's caches: equal labels, with and without reuse.

``python -m benchmarks.mining_reuse --prompts 8``, in the repository's root.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer
from transformers import PreTrainedModel

from hf_lossy_assist import pairs, tasks
from hf_lossy_assist.cli.console import limit_threads
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.mining.prompt_results import Prompt
from tests.mining import reference
from tests.mining.parts import Parts

from . import command


@dataclass
class Cost:
    """Cost of a search: tokens that the target has read, and seconds."""

    tokens: int = 0
    seconds: float = 0.0


@contextmanager
def measured(model: PreTrainedModel, cost: Cost) -> Iterator[None]:
    """Add the time and tokens of the block to a cost."""

    def count(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        cost.tokens += (args[0] if args else kwargs["input_ids"]).numel()

    handle = model.register_forward_pre_hook(count, with_kwargs=True)
    begun = time.perf_counter()
    try:
        yield
    finally:
        cost.seconds += time.perf_counter() - begun
        handle.remove()


@dataclass(frozen=True)
class Comparison:
    """Both searches over the same prompts.

    Attributes
    ----------
    mismatches
        Number of labels.
    different
        Prompts whose labels differ. In float32 there should be none.
    naive, reusing
        Costs of continuing from scratch every time, and of mining.
    """

    mismatches: int
    different: int
    naive: Cost
    reusing: Cost


def compare(parts: Parts, prompts: Sequence[Prompt], slots: int) -> Comparison:
    """Search the same prompts both ways, a batch at a time in turns, so that both meet the same load of the machine."""
    naive, reusing = Cost(), Cost()
    mismatches = different = 0
    for start in range(0, len(prompts), slots):
        batch = prompts[start : start + slots]
        with measured(parts.target, naive):
            wanted = {prompt.id: _labels(parts, prompt) for prompt in batch}
        with measured(parts.target, reusing):
            results = list(parts.searches(slots).run(batch))
        for one in results:
            found = [(m.index, m.target_token, m.draft_token, m.important) for m in one.found.mismatches]
            mismatches += len(found)
            different += found != wanted[one.prompt.id]
    return Comparison(mismatches, different, naive, reusing)


def _labels(parts: Parts, prompt: Prompt) -> list[tuple[int, int, int, bool]]:
    found = reference.important_tokens(
        parts.target, parts.draft, list(prompt.tokens), parts.limits().eos, parts.max_new_tokens, parts.answer,
        parts.task.equivalent,
    )  # fmt: skip
    return [] if found is None else found[2]


def main(
    pair: Annotated[str, typer.Option(help="The pair of models.")] = "arithmetic",
    task: Annotated[str | None, typer.Option(help="A task; the pair's own by default.")] = None,
    data: Annotated[str | None, typer.Option(help="A file for the task to read.")] = None,
    split: Annotated[str, typer.Option(help="Which examples.")] = "train",
    prompts: Annotated[int, typer.Option(min=1, help="Number of prompts.")] = 8,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts at once, where caches are reused.")] = 32,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest response.")] = 160,
    threads: Threads = None,
) -> None:
    """Search the same prompts from scratch and with reuse."""
    limit_threads(threads)
    loaded = pairs.load(pair)
    chosen = loaded.task if task is None else tasks.load(task, data)
    parts = Parts(loaded.target, loaded.draft, loaded.tokenizer, chosen, max_new_tokens)
    found = compare(parts, parts.prompts(prompts, split), batch_size)
    typer.echo(f"{prompts} prompts, {found.mismatches} mismatches, prompts with other labels: {found.different}")
    labels = max(found.mismatches, 1)
    for name, cost in (("naive", found.naive), ("mining", found.reusing)):
        per = f"{cost.tokens / labels:8.1f} target tokens, {cost.seconds / labels:8.2f} s per mismatch"
        typer.echo(f"{name:7} {per}, {cost.seconds:8.1f} s in all")


app = command(main)
if __name__ == "__main__":
    app()
