"""``python -m benchmarks.whole_chances``: how likely a draft finds its tokens along written answers.

Drafts that end by their chances are replayed from these: the draft's ``q`` of each token of a text, and of each token
that it drafts from a refused one on, itself the first, until their product is small.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import nn

from hf_lossy_assist import pairs, tasks

from . import application
from .whole_answers import PromptCache, Reader, by_amx


def main(
    *, folder: Path, data: str | None = None, task: str = "gsm8k", pair: str = "qwen-coder", mode: str = "lossless",
    least: float = 0.1, longest: int = 32, rows: int = 80, index: int = 0, workers: int = 1,
) -> None:  # fmt: skip
    """Read the answers that `whole_answers` wrote, and add their chances to the folder; an interrupted run goes on.

    Parameters
    ----------
    folder
        What `whole_answers` wrote.
    data, task
        The task's file, and its name.
    mode
        The mode whose answers are read.
    least, longest
        A draft goes on until the product of its chances is below ``least``, or for so many tokens.
    rows
        About how many drafts go on at once.
    index, workers
        Which of how many processes this is.
    """
    torch.set_num_threads(1)
    loaded = pairs.load(pair, dtype=torch.float32)
    asked = tasks.load(task, data)
    written = [x for file in sorted(folder.glob("answers-*.jsonl")) for x in map(json.loads, file.open())]
    done = {(x["mode"], x["id"]) for file in folder.glob("chances-*.jsonl") for x in map(json.loads, file.open())}
    own = [x for x in written if x["mode"] == mode and x["id"] % workers == index and (mode, x["id"]) not in done]
    own.sort(key=lambda x: x["id"])
    if not own:
        return
    examples = asked.examples("test", 1 + max(x["id"] for x in written))
    small, tokenizer = loaded.draft, loaded.tokenizer
    del loaded  # the target
    for layer in small.requires_grad_(False).modules():
        if isinstance(layer, nn.Linear):
            layer.forward = by_amx(layer)
            layer.weight = None  # packed
    room = 1 + longest + max(x["prompt"] + x["tokens"] for x in written)
    draft = Reader(small, rows + max(len(x["refused"]) for x in own), room)
    with torch.inference_mode(), (folder / f"chances-{index}.jsonl").open("a", encoding="utf-8") as file:
        group = []
        for x in own:
            group.append(x)
            if sum(len(x["refused"]) for x in group) < rows and x is not own[-1]:
                continue
            prompts = [list(asked.encode(examples[x["id"]], tokenizer)) for x in group]
            for x, (q, past) in zip(group, chances(draft, prompts, group, least, longest), strict=True):
                file.write(json.dumps({"mode": mode, "id": x["id"], "q": q, "past": past}) + "\n")
            file.flush()
            group = []


def chances(draft: Reader, prompts: list[list[int]], texts: list[dict], least: float, longest: int) -> list:
    """Return ``q`` of each token of each text, and of what the draft writes from each refused token on."""
    found, past, tokens, at = [], [], [], []
    for prompt, x in zip(prompts, texts, strict=True):
        text, refused = x["ids"], x["refused"]
        read = torch.tensor([[*prompt, *text[:-1]]])
        cache, places = PromptCache(), torch.arange(read.shape[1])[None]
        states = draft._states(read, places, cache, None)[0, len(prompt) - 1 :]
        keys, logits = torch.stack(cache.read), draft.head(states)
        q, own = logits.softmax(-1), torch.tensor(text)
        best = logits.scatter(-1, own[:, None], -torch.inf).argmax(-1)  # the draft's token, where the text has another
        first = len(past)
        for place in refused:
            draft.put(len(past), keys[:, :, :, : len(prompt) + place])
            past.append([q[place, best[place]].item()])
            tokens.append(int(best[place]))
            at.append(len(prompt) + place)
        found.append((q.gather(-1, own[:, None])[:, 0].tolist(), slice(first, len(past))))
    live, tokens, at = [*range(len(past))], torch.tensor(tokens), torch.tensor(at)
    while True:
        going = [row for row, i in enumerate(live) if going_on(past[i], least, longest)]
        for row, source in enumerate(going):
            if row != source:
                draft.move(source, row, int(at[source]))
        live, tokens, at = [live[i] for i in going], tokens[going], at[going]
        if not live:
            return [(q, past[own]) for q, own in found]
        _, scores = draft.step(tokens, at)
        likely, tokens = scores.softmax(-1).max(-1)
        for i, value in zip(live, likely.tolist(), strict=True):
            past[i].append(value)
        at = at + 1


def going_on(chances: list[float], least: float, longest: int) -> bool:
    return len(chances) < longest and math.prod(chances) >= least


app = application(main=main)

if __name__ == "__main__":
    app()
