"""``python -m benchmarks.lookup_first``: what look-up before a draft model brings, by rounds.

The target answers prompts greedily. Along its answers each drafter then drafts round after round, and the tokens that
agree are kept. So the rounds are those of ``lossless``, and the target runs once. Drafts end where the answer does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from benchmarks import PairName, command
from hf_lossy_assist import enabled
from hf_lossy_assist.acceptors import Lossless
from hf_lossy_assist.cli.console import limit_threads
from hf_lossy_assist.cli.models import LoadedModels, ModelOptions
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.core.messages import Commit
from hf_lossy_assist.core.texts import Texts, common_prefix
from hf_lossy_assist.drafting import Drafter
from hf_lossy_assist.drafting.draft_ends import LONGEST, AcceptanceStop
from hf_lossy_assist.drafting.lookup_first import LookupFirstDrafter, price_of
from hf_lossy_assist.drafting.model import NO_END, ModelDrafter
from hf_lossy_assist.drafting.per_row import GeneratorDrafter
from hf_lossy_assist.drafting.vocabulary import vocabulary_of
from hf_lossy_assist.evaluation.quality import interval_of_sums
from hf_lossy_assist.evaluation.tables import interval, table
from hf_lossy_assist.store.folder import append_lines, read_lines

KINDS = ("draft alone", "look-up alone", "look-up first")
HEADINGS = ("prompts", "n", *KINDS, "drafted by it\nalone", "drafted by it\nlooking up", "text per\ncost, ×")
COLUMNS = {name: itemgetter(i) for i, name in enumerate(HEADINGS)}


class LookUpAlone(GeneratorDrafter):
    """transformers' prompt look-up, which learns nothing."""

    observe = Drafter.observe


def main(
    out: Annotated[Path, typer.Option(metavar="FILE", help="A file of counts; those that it has are not made again.")],
    texts: Annotated[Path, typer.Option(metavar="FILE", help="A file of answers; those that it has are read.")],
    pair: PairName = "arithmetic",
    data: Annotated[Path | None, typer.Option(help="Spec-Bench's question.jsonl, else the pair's task.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Prompts of each category.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=8, help="Of an answer.")] = 128,
    gamma: Annotated[int, typer.Option(min=1, help="Tokens of the model's drafts; 15 end early, as by default.")] = 5,
    count: Annotated[int, typer.Option(min=1, help="Tokens of a looked-up draft.")] = 10,
    threads: Threads = None,
) -> None:
    """Print tokens per call of the target and drafted tokens per call by category, with 95 % intervals over prompts."""
    limit_threads(threads)
    asked, real = {"gamma": gamma, "count": count}, data is not None
    loaded = ModelOptions(pair, prepack=real, draft_dtype="int8" if real else None).load()
    price, done = price_of(loaded.draft, loaded.target), [row for _, row in read_lines(out)]
    for text in answers(loaded, texts, data, limit, max_new_tokens):
        named = {"category": text["category"], "id": text["id"], **asked}
        if not any(named.items() <= row.items() for row in done):
            made = drafters(loaded, gamma, count, price)
            counts = [replayed(drafter, text["prompt"], text["answer"]) for drafter in made]
            done.append(named | {"price": price, "counts": counts})
            append_lines(out, done[-1:])
    lines = summary([row for row in done if asked.items() <= row.items()])
    Console(soft_wrap=True).print(table(lines, COLUMNS, f"γ = {gamma}, up to {count} tokens looked up"))


def answers(
    loaded: LoadedModels, kept: Path, data: Path | None, limit: int, max_new_tokens: int
) -> Iterator[dict[str, Any]]:
    """Yield each prompt with the target's greedy answer; of code, what the second turn changes is a prompt as well."""
    known = {(row["category"], row["id"]): row for _, row in read_lines(kept)}

    def answered(category: str, i: int, prompt: list[int]) -> dict[str, Any]:
        if (category, i) not in known:
            ids, drafting = torch.tensor([prompt]), {"assistant_model": loaded.draft, "lossy_mode": "lossless"}
            asked = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": max_new_tokens}
            with enabled(loaded.target):
                answer = loaded.target.generate(ids, **asked, **drafting)[0, len(prompt) :].tolist()
            known[category, i] = {"category": category, "id": i, "prompt": prompt, "answer": answer}
            append_lines(kept, [known[category, i]])
        return known[category, i]

    seen: Counter[str] = Counter()
    for i, prompt in enumerate(() if data else loaded.encode(loaded.task.examples("test", limit))):
        yield answered(loaded.task.name, i, prompt)
    for question in map(json.loads, data.read_text(encoding="utf-8").splitlines() if data else ()):
        category, number, turns = (question[key] for key in ("category", "question_id", "turns"))
        seen[category] += 1
        if seen[category] <= limit:
            yield (first := answered(category, number, _chat(loaded, turns[0])))
            if category == "coding":
                said = loaded.tokenizer.decode(first["answer"], skip_special_tokens=True)
                yield answered("code edits", number, _chat(loaded, turns[0], said, turns[1]))


def _chat(loaded: LoadedModels, *said: str) -> list[int]:
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    return loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)


def drafters(models: LoadedModels, gamma: int, count: int, price: float) -> list[Drafter]:
    """Return the drafters of :data:`KINDS`."""

    def model() -> ModelDrafter:
        stop = AcceptanceStop(threshold=0.5) if gamma == LONGEST else None
        return ModelDrafter(models.draft, gamma, vocabulary=vocabulary_of(models.target, models.draft), stop=stop)

    alone = PromptLookupCandidateGenerator(num_output_tokens=count, max_length=NO_END)
    return [model(), LookUpAlone(alone, Lossless(), {}), LookupFirstDrafter(model(), count, price)]


@torch.no_grad()
def replayed(drafter: Drafter, prompt: list[int], answer: list[int]) -> list[int]:
    """Return the calls of the target, the tokens, forwards of the draft model, and looked-up tokens of a replay."""
    ids, layout, start = torch.tensor([prompt + answer]), Texts(torch.tensor([prompt])), len(prompt)
    calls = forwards = looked_up = 0
    while start < ids.shape[1]:
        draft = drafter.propose(ids[:, :start], layout, [ids.shape[1] - start])
        rest = ids[0, start:].tolist()
        kept = common_prefix(draft.tokens[0].tolist(), rest)
        grown = rest[: kept + 1]
        of_row = (kept,), (len(grown),), (0,), (0,)
        drafter.observe(Commit(ids, start, len(draft), *of_row, verification=None, tokens=(grown,)))
        start, calls = start + len(grown), calls + 1
        forwards, looked_up = forwards + draft.cost.calls, looked_up + draft.cost.looked_up
    return [calls, len(answer), forwards, looked_up]


def summary(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table's lines: of each category, and of all."""
    lines = []
    names = dict.fromkeys(row["category"] for row in rows)
    for name in [*names, "all"] if len(names) > 1 else names:
        own = [row for row in rows if name in (row["category"], "all")]
        # A prompt's calls, tokens, forwards and looked-up tokens, of each drafter.
        sums, price = np.array([np.ravel(row["counts"]) for row in own], dtype=float), own[0]["price"]
        figures = [lambda s, i=i: s[:, i + 1] / s[:, i] for i in (0, 4, 8)]
        figures += [lambda s, i=i: s[:, i + 2] / s[:, i] for i in (0, 8)]
        figures.append(lambda s, c=price: (s[:, 0] + c * s[:, 2]) / (s[:, 8] + c * s[:, 10]))
        lines.append([name, str(len(own)), *(interval(interval_of_sums(sums, figure)) for figure in figures)])
    return lines


app = command(main)

if __name__ == "__main__":
    app()
