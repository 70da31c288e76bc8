"""The time that mining saves by reusing the target's caches: equal labels, with and without reuse.

``python -m benchmarks.mining_reuse --prompts 8``, in the repository's root.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_lossy_assist import pairs
from hf_lossy_assist.mining.prompt_results import Prompt
from tests.mining import reference
from tests.mining.parts import Parts


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


def main(show: Callable[[str], Any]) -> None:
    """Compare on the bundled pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    pair = pairs.load("arithmetic")
    parts = Parts(pair.target, pair.draft, pair.tokenizer, pair.task, max_new_tokens=160)
    found = compare(parts, parts.prompts(options.prompts), options.batch_size)
    show(f"{options.prompts} prompts, {found.mismatches} mismatches, prompts with other labels: {found.different}\n")
    for name, cost in (("naive", found.naive), ("mining", found.reusing)):
        per = cost.tokens / max(found.mismatches, 1)
        show(f"{name:7} {per:8.1f} target tokens per mismatch {cost.seconds:8.1f} s\n")


if __name__ == "__main__":
    import sys

    main(sys.stdout.write)
