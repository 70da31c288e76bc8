"""``python -m benchmarks.dropmatch_candidates``: how often DropMatch over candidates decides otherwise.

Texts are read, not written: at each of their last positions the draft names a token, its likeliest or a drawn one, and
the rule decides it over all tokens and over candidates, with the same dropped heads. Either way the heads' tokens are
drawn from all tokens, and tokens outside the candidates count as the rest. This has the distribution of a draw over
candidates, so decisions differ by the rule alone. ``generate`` draws over candidates, which needs no distribution over
all tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor

from benchmarks import command
from hf_lossy_assist.acceptors import DropMatch
from hf_lossy_assist.acceptors.dropmatch import AllTokens, Candidates
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.models import LoadedModels, ModelOptions
from hf_lossy_assist.cli.options import DraftSource, PairName, Threads, numbers
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.evaluation.tables import table
from hf_lossy_assist.models.lm_head_hook import lm_head_hook

TEMPERATURE = 0.8
COLUMNS = {name: itemgetter(i) for i, name in enumerate(("candidates", "drawn", "positions", "decided otherwise"))}


class SameDraws(DropMatch):
    """The rule whose heads draw from all tokens, one after another, whatever the outcomes are."""

    def draw(self, v: Verification, outcomes: AllTokens | Candidates, logits: Tensor, path: Tensor) -> Tensor:
        heads = logits.transpose(1, 2).flatten(0, -2)  # all heads of a position before the next position
        y = torch.cat([v.randomness.categorical(each.softmax(-1, dtype=torch.float32)) for each in heads.split(1)])
        y = y.view(logits.transpose(1, 2).shape[:-1]).transpose(1, 2)
        if isinstance(outcomes, AllTokens):
            return y
        own = outcomes.ids[:, None] == y[..., None]
        return torch.where(own.any(-1), own.int().argmax(-1), outcomes.ids.shape[-1])


def main(
    texts: Annotated[Path, typer.Option(help="JSON lines with a `text` each.")],
    out: Annotated[Path, typer.Option(help="Append each text's counts to this file, and continue from its end.")],
    pair: PairName = "qwen-coder",
    assistant: DraftSource = None,
    candidates: Annotated[str, typer.Option(help="Numbers, separated by commas.")] = "256,1024,4096",
    positions: Annotated[int, typer.Option(min=1, help="Decided positions at the end of each text.")] = 128,
    longest: Annotated[int, typer.Option(min=2, help="Tokens read of each text.")] = 256,
    threads: Threads = None,
) -> None:
    """Count decisions that differ from the rule over all tokens, greedily and drawn at a temperature of 0.8."""
    limit_threads(threads)
    counts, screen = numbers("--candidates", candidates, int), Console(soft_wrap=True)
    lines = [json.loads(line)["text"] for line in texts.read_text(encoding="utf-8").splitlines()]
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {row["text"] for row in rows}
    loaded = ModelOptions(pair, assistant=assistant, dtype="bfloat16").load()
    with progress(screen) as bar:
        for number in bar.track([i for i in range(len(lines)) if i not in done], description="deciding"):
            ids = loaded.tokenizer(lines[number], return_tensors="pt").input_ids[:, :longest]
            new = _differences(loaded, ids, min(positions, ids.shape[1] - 1), counts, number)
            rows += new
            with out.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)
    screen.print(table(list(_summary(rows)), COLUMNS, pair))


@torch.inference_mode()
def _differences(loaded: LoadedModels, ids: Tensor, n: int, counts: list[int], number: int) -> list[dict[str, Any]]:
    rule = DropMatch()
    hook = lm_head_hook(loaded.target, Randomness(number), rule.dropped_heads)
    keep = n + hook.wanted(None, 1, ids.shape[1] - n)
    with hook.over(n):
        logits = loaded.target(ids, logits_to_keep=keep).logits
    clean, dropped = hook.split(logits, n)
    mean = dropped.mean(1, dtype=torch.float32)
    of_draft = loaded.draft(ids, logits_to_keep=n + 1).logits[:, :-1].float()
    rows = []
    for drawn in (False, True):
        scale = TEMPERATURE if drawn else 1.0
        q = of_draft / scale
        torch.manual_seed(number)
        x = torch.multinomial(q[0].softmax(-1), 1).T if drawn else q.argmax(-1)

        v = Verification(
            x, clean.float() / scale, draft_logits=q, do_sample=drawn, dropped_logits=dropped / scale,
            centroid_logits=mean / scale,
        )  # fmt: skip

        def kept(count: int | None, v: Verification = v) -> Tensor:
            return SameDraws(candidates=count).keep(replace(v, randomness=Randomness(7)))

        full = kept(None)
        for count in counts:
            few = kept(count)
            rows.append(
                {"text": number, "candidates": count, "drawn": drawn, "positions": n, "kept": int(full.sum()),
                 "differ": int((full != few).sum()), "dropout": float(hook.dropout)}
            )  # fmt: skip
    return rows


def _summary(rows: list[dict[str, Any]]) -> Any:
    positions, differ = Counter(), Counter()
    for row in rows:
        key = row["candidates"], row["drawn"]
        positions[key] += row["positions"]
        differ[key] += row["differ"]
    for key in sorted(positions):
        yield [str(key[0]), str(key[1]), str(positions[key]), f"{100 * differ[key] / positions[key]:.2f} %"]


app = command(main)

if __name__ == "__main__":
    app()
