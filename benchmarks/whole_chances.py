"""``python -m benchmarks.whole_chances``: how likely a draft finds its tokens along written answers.

Drafts that end by their chances are replayed from these: the draft's ``q`` of each token of a text, and of each token
that it drafts from a refused one on, itself the first, until their product is small.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from hf_lossy_assist import pairs, tasks

from . import application
from .whole_answers import PromptCache, Reader, by_amx


def main(
    *, folder: Path, data: str | None = None, task: str = "gsm8k", pair: str = "qwen-coder", mode: str = "lossless",
    least: float = 0.1, longest: int = 32, index: int = 0, workers: int = 1,
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
    index, workers
        Which of how many processes this is.
    """
    torch.set_num_threads(1)
    loaded = pairs.load(pair, dtype=torch.float32)
    asked = tasks.load(task, data)
    written = [x for file in sorted(folder.glob("answers-*.jsonl")) for x in map(json.loads, file.open())]
    done = {(x["mode"], x["id"]) for file in folder.glob("chances-*.jsonl") for x in map(json.loads, file.open())}
    own = [x for x in written if x["mode"] == mode and x["id"] % workers == index and (mode, x["id"]) not in done]
    if not own:
        return
    examples = asked.examples("test", 1 + max(x["id"] for x in written))
    for layer in loaded.draft.requires_grad_(False).modules():
        if isinstance(layer, nn.Linear):
            layer.forward = by_amx(layer)
    room = 1 + longest + max(x["prompt"] + x["tokens"] for x in written)
    draft = Reader(loaded.draft, max(len(x["refused"]) for x in own), room)
    with torch.inference_mode(), (folder / f"chances-{index}.jsonl").open("a", encoding="utf-8") as file:
        for x in sorted(own, key=lambda x: x["id"]):
            prompt = list(asked.encode(examples[x["id"]], loaded.tokenizer))
            q, past = chances(draft, prompt, x["ids"], x["refused"], least, longest)
            file.write(json.dumps({"mode": mode, "id": x["id"], "q": q, "past": past}) + "\n")
            file.flush()


def chances(
    draft: Reader, prompt: list[int], text: list[int], refused: list[int], least: float, longest: int
) -> tuple[list[float], list[list[float]]]:
    """Return ``q`` of each token of a text, and of what the draft writes from each refused token on."""
    read = torch.tensor([[*prompt, *text[:-1]]])
    cache, places = PromptCache(), torch.arange(read.shape[1])[None]
    states = draft._states(read, places, cache, None)[0, len(prompt) - 1 :]
    keys, logits = torch.stack(cache.read), draft.head(states)
    q, own = logits.softmax(-1), torch.tensor(text)
    best = logits.scatter(-1, own[:, None], -torch.inf).argmax(-1)  # the draft's token, where the text has another
    past = [[q[i, best[i]].item()] for i in refused]
    for row, place in enumerate(refused):
        draft.put(row, keys[:, :, :, : len(prompt) + place])
    live = [*range(len(refused))]
    tokens, at = best[refused], torch.tensor([len(prompt) + i for i in refused])
    while True:
        going = [row for row, i in enumerate(live) if going_on(past[i], least, longest)]
        for row, source in enumerate(going):
            if row != source:
                draft.move(source, row, int(at[source]))
        live, tokens, at = [live[i] for i in going], tokens[going], at[going]
        if not live:
            return q.gather(-1, own[:, None])[:, 0].tolist(), past
        _, scores = draft.step(tokens, at)
        likely, tokens = scores.softmax(-1).max(-1)
        for i, value in zip(live, likely.tolist(), strict=True):
            past[i].append(value)
        at = at + 1


def going_on(chances: list[float], least: float, longest: int) -> bool:
    return len(chances) < longest and float(Tensor(chances).prod()) >= least


app = application(main=main)

if __name__ == "__main__":
    app()
