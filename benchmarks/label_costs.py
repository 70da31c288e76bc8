"""What labels cost, side by side: ``python -m benchmarks.label_costs``.

The same prompts are mined in turns in one process: by mining's own batches, whose rows are replaced as soon as a text
ends, and by ``generate()`` in place of these. Seconds are the CPU's, of texts and the draft's choices without states.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer
from rich.console import Console
from torch.nn.functional import pad
from transformers import PreTrainedModel

import hf_lossy_assist
from benchmarks import write_lines
from hf_lossy_assist import pairs
from hf_lossy_assist.cli.console import CleanCommand, limit_threads
from hf_lossy_assist.compat import CACHE, new_cache
from hf_lossy_assist.evaluation.tables import table
from hf_lossy_assist.models.reading import CachedText, read, read_prompts
from hf_lossy_assist.training.choice import Ids
from hf_lossy_assist.training.labelling import Labelling
from hf_lossy_assist.training.search import Found, Searches
from hf_lossy_assist.training.writing import LocalWriter, Prompt, ResponseCost, ResponseLimits, Writer

_HEADINGS = ("texts are written by", "labels", "seconds", "labels an hour", "agree")
COLUMNS = {name: itemgetter(i) for i, name in enumerate(_HEADINGS)}


@dataclass(eq=False)
class BatchWriter(Writer):
    """Writes all requested texts together by ``generate()``, and waits for the longest. It is greedy."""

    model: PreTrainedModel
    limits: ResponseLimits
    keywords: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prompts: dict[int, Ids] = {}
        self.requests: list[tuple[int, Ids]] = []

    def begin(self, slot: int, prompt: Prompt, cost: ResponseCost) -> None:
        self.prompts[slot] = prompt.tokens

    def end(self, slot: int) -> None:
        del self.prompts[slot]

    def submit(self, slot: int, prefix: Ids) -> None:
        self.requests.append((slot, prefix))

    def busy(self) -> bool:
        return bool(self.requests)

    def close(self) -> None:
        self.requests = []

    def step(self) -> list[tuple[int, Ids]]:
        requests, self.requests = self.requests, []
        return self.write(requests) if requests else []

    def write(self, requests: Sequence[tuple[int, Ids]]) -> list[tuple[int, Ids]]:
        texts = [(*self.prompts[slot], *prefix) for slot, prefix in requests]
        rows = self.generate(texts, self.limits.max_new_tokens - min(len(prefix) for _, prefix in requests))
        done = []
        for (slot, prefix), row in zip(requests, rows, strict=True):
            response = list(prefix)
            while not self.limits.over(response):
                response.append(row[len(response) - len(prefix)])
            done.append((slot, tuple(response)))
        return done

    def generate(self, texts: Sequence[Ids], most: int, **more: object) -> list[list[int]]:
        width = max(map(len, texts))
        ids = torch.stack([pad(torch.tensor(text), (width - len(text), 0)) for text in texts])
        mask = torch.stack([pad(torch.ones(len(text), dtype=torch.long), (width - len(text), 0)) for text in texts])
        output = self.model.generate(
            input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=most, pad_token_id=0,
            eos_token_id=sorted(self.limits.eos), **self.keywords, **more,
        )  # fmt: skip
        return output[:, width:].tolist()


@dataclass(eq=False)
class CachedWriter(BatchWriter):
    """Writes one text at a time, after a cache of what its prompt's last text has in common with it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memories: dict[int, CachedText] = {}

    def end(self, slot: int) -> None:
        super().end(slot)
        self.memories.pop(slot, None)

    def write(self, requests: Sequence[tuple[int, Ids]]) -> list[tuple[int, Ids]]:
        done = []
        for slot, prefix in requests:
            text = (*self.prompts[slot], *prefix)
            memory = self.memories.get(slot) or read_prompts(self.model, [text])[text]
            known = min(memory.common(text), len(text) - 1)
            if known < len(text) - 1:
                memory = read(self.model, [text[:-1]], [(memory, known)]).memories[0]
            cache = new_cache(self.model)
            for i, layer in enumerate(memory.layers):
                cache.update(*(states[None, :, : len(text) - 1] for states in layer), i)
            (row,) = self.generate([text], self.limits.max_new_tokens - len(prefix), **{CACHE: cache})
            held = tuple((layer.keys[0].clone(), layer.values[0].clone()) for layer in cache.layers)
            self.memories[slot] = CachedText((*text, *row)[: held[0][0].shape[1]], held)
            done.append((slot, (*prefix, *row)))
        return done


def ways(labelling: Labelling) -> dict[str, Callable[[], Writer]]:
    target, limits, size = labelling.target, labelling.limits, labelling.batch_size
    lossless = {"assistant_model": labelling.draft, "lossy_mode": "lossless", "num_assistant_tokens": 16}
    return {
        "mining's own batches": lambda: LocalWriter(target, size, limits),
        "generate() in batches": lambda: BatchWriter(target, limits),
        "lossless generate() in batches": lambda: BatchWriter(target, limits, lossless),
        "lossless generate(), one text after its cached prefix": lambda: CachedWriter(target, limits, lossless),
    }


def measure(labelling: Labelling, prompts: Sequence[Prompt], writer: Writer) -> tuple[dict[int, Found | None], float]:
    task, decode = labelling.task, labelling.tokenizer.decode
    searches = Searches(
        writer, labelling.guesses(), task, lambda ids: decode(ids, skip_special_tokens=True), labelling.batch_size
    )
    start = time.process_time()
    found = {one.prompt.id: one.found for one in searches.run(prompts)}
    return found, time.process_time() - start


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=CleanCommand)
def main(
    pair: Annotated[str, typer.Option(help="The pair.")] = "arithmetic",
    limit: Annotated[int, typer.Option(min=1, help="Prompts.")] = 96,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts at once.")] = 32,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest response.")] = 160,
    repeats: Annotated[int, typer.Option(min=1, help="Turns; the median counts.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="A new file for the seconds of each turn.")] = None,
) -> None:
    """Mine the same prompts several times, and print what a label costs: the median, least and most of all turns."""
    limit_threads(threads)
    loaded = pairs.load(pair)
    hf_lossy_assist.enable(loaded.target)
    labelling = Labelling(
        loaded.task, loaded.tokenizer, loaded.target, loaded.draft, limit=limit, batch_size=batch_size,
        max_new_tokens=max_new_tokens,
    )  # fmt: skip
    prompts, seconds, labels = labelling.prompts(), {}, {}
    for _ in range(repeats):
        for name, make in ways(labelling).items():
            labels[name], took = measure(labelling, prompts, make())
            seconds.setdefault(name, []).append(took)
    first, rows, kept = next(iter(labels.values())), [], []
    for name, found in labels.items():
        n = sum(len(one.mismatches) for one in found.values() if one is not None)
        took, agree = seconds[name], sum(found[i] == first[i] for i in first)
        spread = f"{median(took):.1f} ({min(took):.1f} … {max(took):.1f})"
        rows.append((name, f"{n}", spread, f"{3600 * n / median(took):.0f}", f"{agree} of {len(first)} prompts"))
        kept.append({"writer": name, "labels": n, "seconds": took, "agree": agree, "prompts": len(first)})
    if out is not None:
        write_lines(out, kept)
    Console(soft_wrap=True).print(table(rows, COLUMNS, None))


if __name__ == "__main__":
    app()
