"""``python -m benchmarks.cheap_rounds``: how fast prepacked targets and rounded drafts are, all ways side by side."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
import typer
from rich.console import Console
from transformers import PreTrainedModel

from benchmarks import command
from hf_lossy_assist import enable, last_stats, prepack, quantize_draft
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.models import ModelOptions
from hf_lossy_assist.cli.options import PairName, Threads
from hf_lossy_assist.evaluation import records
from hf_lossy_assist.evaluation.tables import table


class Way(NamedTuple):
    """One way to decode: target, draft and rule; without a rule, transformers' own decoding."""

    target: str
    draft: str
    rule: str

    @property
    def label(self) -> str:
        return f"{self.rule}, {self.target} target" + (f", {self.draft} draft" if self.draft else "")


def ways(dtype: str) -> tuple[Way, ...]:
    """Return all ways for models of a type; the first is the target alone."""
    return (
        Way("plain", "", "alone"), Way("plain", dtype, "stock"), Way("plain", dtype, "lossless"),
        Way("prepacked", "", "alone"), Way("prepacked", "prepacked", "lossless"),
        *(Way("prepacked", draft, "lossless") for draft in ("int8", "int4")),
        *(Way("prepacked", "int8", rule) for rule in ("typical", "dropmatch")),
    )  # fmt: skip


COLUMNS = {
    name: itemgetter(i) for i, name in enumerate(("way", "tokens/s", "against alone", "target calls per 100 tokens"))
}


def main(
    prompt_file: Annotated[Path, typer.Option(help="One prompt a line.")],
    pair: PairName = "qwen-coder",
    dtype: Annotated[Literal["bfloat16", "float32"], typer.Option(help="The weights' type.")] = "bfloat16",
    max_new_tokens: Annotated[int, typer.Option(min=4, help="Tokens per answer.")] = 48,
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option(help="Append answers to this file, and continue from its end.")] = None,
) -> None:
    """Answer each prompt in every way before the next prompt; print tokens per second and target calls."""
    limit_threads(threads)
    rows = [] if out is None or not out.exists() else [json.loads(line) for line in out.read_text().splitlines()]
    done = {(row["way"], row["prompt"]) for row in rows}
    loaded = ModelOptions(pair, dtype=dtype).load().asked("--prompt-file", prompt_file)
    target, draft = loaded.target, loaded.draft
    targets = {"plain": target, "prepacked": prepack(target)}
    drafts = {"": None, dtype: draft, "prepacked": prepack(draft), "int8": quantize_draft(draft, "int8")}
    drafts["int4"] = quantize_draft(draft, "int4")
    for model in targets.values():
        enable(model)
        model.generation_config.pad_token_id = loaded.tokenizer.pad_token_id
    prompts = loaded.encode(loaded.examples(len(loaded.texts)))
    missing = [(i, way) for i in range(len(prompts)) for way in ways(dtype) if (way.label, i) not in done]
    screen = Console(soft_wrap=True)
    with progress(screen) as bar:
        for i, way in bar.track(missing, description="answering"):
            rows.append({"way": way.label, "prompt": i} | _answer(targets, drafts, way, prompts[i], max_new_tokens))
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    screen.print(
        table(list(_summary(rows, ways(dtype))), COLUMNS, f"{pair}, {len(prompts)} prompts of {max_new_tokens} tokens")
    )
    screen.print(records.provenance(target.device, threads=torch.get_num_threads()))


def _answer(
    targets: dict[str, PreTrainedModel], drafts: dict[str, Any], way: Way, prompt: list[int], length: int
) -> dict[str, Any]:
    """Decode a few tokens to warm up, then the answer."""
    model, ids = targets[way.target], torch.tensor([prompt])
    arguments: dict[str, Any] = {"do_sample": False, "attention_mask": torch.ones_like(ids)}
    if way.draft:
        arguments["assistant_model"] = drafts[way.draft]
    if way.rule not in ("alone", "stock"):
        arguments |= {"lossy_mode": way.rule, "lossy_config": {"break_even": False}}
    model.generate(ids, **arguments, max_new_tokens=4)
    begin = time.perf_counter()
    answer = model.generate(ids, **arguments, max_new_tokens=length)
    seconds = time.perf_counter() - begin
    stats = last_stats(model) if "lossy_mode" in arguments else None
    calls = None if stats is None else stats.target_calls
    return {"tokens": answer.shape[1] - len(prompt), "seconds": seconds, "calls": calls}


def _summary(rows: list[dict[str, Any]], every: Sequence[Way]) -> Iterator[list[str]]:
    """Return geometric means over prompts, way by way."""
    speeds = {way.label: [r["tokens"] / r["seconds"] for r in rows if r["way"] == way.label] for way in every}
    alone = statistics.geometric_mean(speeds[every[0].label])
    for way in every:
        mine, speed = [r for r in rows if r["way"] == way.label], statistics.geometric_mean(speeds[way.label])
        calls = [100 * r["calls"] / r["tokens"] if r["calls"] else math.nan for r in mine]
        shown = "" if any(map(math.isnan, calls)) else f"{statistics.mean(calls):.0f}"
        yield [way.label, f"{speed:.2f}", f"{speed / alone:.2f} ×", shown]


app = command(main)

if __name__ == "__main__":
    app()
