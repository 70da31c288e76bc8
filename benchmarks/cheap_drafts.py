"""``python -m benchmarks.cheap_drafts``: what a token of each cheap draft costs, and how often the target keeps it."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from benchmarks import PairName, command, numbers, write_lines
from benchmarks.quality_table import signed
from hf_lossy_assist import frequent_tokens, prepack, quantize_draft, tasks, trim_draft_vocabulary
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.models import LoadedModels, ModelOptions
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.compat import CACHE
from hf_lossy_assist.evaluation import meters
from hf_lossy_assist.evaluation.quality import interval_of_sums
from hf_lossy_assist.evaluation.tables import table
from hf_lossy_assist.store.folder import read_lines

CONTEXT, FORWARDS, BATCH = 150, 15, 16
Agreement = tuple[int, dict[str, tuple[float, float]]]
"""How many tokens an answer has; and, for each draft, how many of its likeliest ones are the same, and Σ min(p, q)."""
_LIKELIEST = "its likeliest token is the target's, %"
_NAMES = ("draft", "ms per token", _LIKELIEST, "minus as loaded", "Σ min(p, q), %", "Σ minus as loaded")
COLUMNS = {name: itemgetter(i) for i, name in enumerate(_NAMES)}
AS_LOADED = "as loaded"


def main(
    data: Annotated[str, typer.Option(help="One prompt a line: the target answers them.")],
    corpus: Annotated[
        Path, typer.Option(help="JSON lines with a `text` each, not the prompts: gives the frequencies of tokens.")
    ],
    pair: PairName = "qwen-coder",
    counts: Annotated[str, typer.Option(help="Sizes of trimmed vocabularies.")] = "4096,8192,16384,32768",
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens per answer.")] = 96,
    threads: Threads = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For what every draft said of each answer; one that is there is shown."),
    ] = None,
) -> None:
    """Read the target's own greedy answers with every draft; print its time for a token, and how well it agrees."""
    limit_threads(threads)
    screen, sizes = Console(soft_wrap=True), numbers("--counts", counts, int)
    lines = [] if out is None else [line for _, line in read_lines(out)]
    if not lines:
        loaded = ModelOptions(pair, dtype="bfloat16").load(tasks.load("prompts", data, split="test"))
        drafts = make_drafts(loaded, corpus, sizes)
        answers = list(answers_of(loaded, max_new_tokens))
        with progress(screen) as bar:
            found = [agreement(loaded.target, drafts, *answer) for answer in bar.track(answers, description="reading")]
        lines = [{"ms": forward_times(drafts)}, *({"tokens": n, "drafts": of} for n, of in found)]
        screen.print(meters.provenance(loaded.target.device, threads=torch.get_num_threads()))
        if out is not None:
            write_lines(out, lines)
    times, found = lines[0]["ms"], [(line["tokens"], line["drafts"]) for line in lines[1:]]
    rows = [[label, f"{1e3 * times[label]:.1f}", *shares(found, label)] for label in times]
    title = (
        f"{pair}, {sum(n for n, _ in found)} tokens of the target's own {len(found)} answers; 95 % intervals over these"
    )
    screen.print(table(rows, COLUMNS, title))


def shares(found: list[Agreement], label: str) -> list[str]:
    """Return how often a draft's likeliest token is the target's, in %, the mean of Σ min(p, q), and what each lacks.

    A difference is that to the draft as loaded, on the same answers.
    """
    cells = []
    for i in (0, 1):
        own, loaded, tokens = np.array([(100 * of[label][i], 100 * of[AS_LOADED][i], n) for n, of in found]).T
        share, difference = (
            interval_of_sums(np.stack([values, tokens], 1), lambda sums: sums[:, 0] / sums[:, 1])
            for values in (own, own - loaded)
        )
        cells += ["{:.1f} ({:.1f} … {:.1f})".format(*share), "" if label == AS_LOADED else signed(difference)]
    return cells


def make_drafts(loaded: LoadedModels, corpus: Path, sizes: list[int]) -> dict[str, PreTrainedModel]:
    """Return every draft by its name."""
    draft, tokenizer = loaded.draft, loaded.tokenizer
    drafts = {AS_LOADED: draft}
    if draft.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        drafts["prepacked"] = prepack(draft)
    drafts |= {dtype: quantize_draft(draft, dtype) for dtype in ("int8", "int4")}
    texts = [json.loads(line)["text"] for line in corpus.read_text(encoding="utf-8").splitlines()]
    counted = frequent_tokens(tokenizer(texts).input_ids, len(tokenizer), always=[tokenizer.eos_token_id])
    # A corpus may have fewer tokens than asked for. The tokens that byte-pair encoding merged first are frequent too.
    ranked = list(dict.fromkeys([*counted, *range(draft.config.vocab_size)]))
    for size in sizes:
        drafts[f"int8, {size:,} tokens"] = quantize_draft(trim_draft_vocabulary(draft, ranked[:size]), "int8")
    return drafts


@torch.inference_mode()
def answers_of(loaded: LoadedModels, length: int) -> Iterator[tuple[Tensor, int]]:
    """Return the target's greedy answers ``(1, L)`` after their prompts, and how long these are."""
    prompts = loaded.encode(loaded.task.examples("test", 10**6))
    pad = loaded.tokenizer.pad_token_id
    for start in range(0, len(prompts), BATCH):
        some = prompts[start : start + BATCH]
        width = max(map(len, some))
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in some])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in some])
        out = loaded.target.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=length, pad_token_id=pad
        )  # fmt: skip
        for prompt, row in zip(some, out, strict=True):
            answer = row[width:].tolist()
            while answer and answer[-1] == pad:
                answer.pop()
            if answer:
                yield torch.tensor([prompt + answer]), len(prompt)


@torch.inference_mode()
def agreement(target: PreTrainedModel, drafts: dict[str, PreTrainedModel], ids: Tensor, start: int) -> Agreement:
    """Count the tokens after ``start``, and each draft's likeliest tokens that are the target's; sum min(p, q)."""

    def laws(model: PreTrainedModel) -> Tensor:
        return model(ids[:, :-1], logits_to_keep=ids.shape[1] - start).logits[0].softmax(-1, dtype=torch.float32)

    p = laws(target)
    found = {}
    for label, draft in drafts.items():
        q = laws(draft)
        width = min(p.shape[-1], q.shape[-1])
        same = (p.argmax(-1) == q.argmax(-1)).sum()
        found[label] = float(same), float(torch.minimum(p[:, :width], q[:, :width]).sum())
    return len(p), found


@torch.inference_mode()
def forward_times(drafts: dict[str, PreTrainedModel]) -> dict[str, float]:
    """Return the median seconds of a forward over one token, all drafts in turn."""
    torch.manual_seed(0)

    def step(draft: PreTrainedModel) -> Callable[[], None]:
        cache, text = DynamicCache(config=draft.config), torch.randint(0, draft.config.vocab_size, (1, CONTEXT))
        draft(text, **{CACHE: cache})

        def once() -> None:
            draft(text[:, :1], **{CACHE: cache}, logits_to_keep=1)
            cache.crop(-1)

        return once

    steps = {label: step(draft) for label, draft in drafts.items()}
    seconds: dict[str, list[float]] = {label: [] for label in drafts}
    for round_ in range(FORWARDS + 1):
        for label, once in steps.items():
            begin = time.perf_counter()
            once()
            if round_:  # the first one warms up
                seconds[label].append(time.perf_counter() - begin)
    return {label: statistics.median(values) for label, values in seconds.items()}


app = command(main)

if __name__ == "__main__":
    app()
