"""``python -m benchmarks.known_answers``: write kept answers again, and read the draft's chances along them.

Kept rows say where a text has the target's own token in place of the draft's; everywhere else it has the draft's. So
the draft writes alone, and the target reads what it has not read only where its token is wanted: what many texts have
between two such places is one forward. A checksum says whether a text is the kept one.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import time
import zlib
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from hf_lossy_assist import pairs, tasks

from . import application, tables
from .whole_answers import Reader, attend, by_numpy


@dataclass(eq=False)
class Text:
    """A kept answer that is written again."""

    row: dict  # as it was kept
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    q: list[float] = field(default_factory=list)
    past: dict[int, list[float]] = field(default_factory=dict)
    read: int = 0  # by the target, of the prompt and the text
    slot: int = 0  # of the target
    going: int = 1  # streams


@dataclass(eq=False)
class Stream:
    """A row of the draft: a text, or what the draft would have written from a refused token on."""

    text: Text
    newest: int
    at: int
    place: int | None = None  # of the refused token


class Packed(Cache):
    """Keys and values of many texts, which read several tokens each in one forward."""

    now = None

    def __init__(self, config, rows: int, room: int) -> None:
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.data = torch.empty(config.num_hidden_layers, 2, rows, config.num_key_value_heads, room, size)
        self.layers, self.parts = [], []  # of each text: its slot, its first token here, how many, how many before

    def update(self, key: Tensor, value: Tensor, layer: int, *_, **__) -> tuple[Tensor, Tensor]:
        for slot, start, n, before in self.parts:
            for i, new in enumerate((key, value)):
                self.data[layer, i, slot, :, before : before + n] = new[0, :, start : start + n]
        return key, value

    def get_seq_length(self, *_) -> int:
        return 0


def attend_packed(module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float = 1.0, **__):
    cache = Packed.now
    if cache is None:
        return attend(module, query, key, value, mask, scaling)
    outs = []
    for slot, start, n, before in cache.parts:
        keys, values = cache.data[module.layer_idx, :, slot, None, :, : before + n]
        seen = torch.ones(n, before + n, dtype=torch.bool).tril(before)
        q = query[:, :, start : start + n]
        outs.append(F.scaled_dot_product_attention(q, keys, values, attn_mask=seen, scale=scaling, enable_gqa=True))
    return torch.cat(outs, 2).transpose(1, 2).contiguous(), None


class Target(Reader):
    def __init__(self, model, rows: int, room: int) -> None:
        super().__init__(model, 1, 1)
        AttentionInterface.register("packed", attend_packed)
        model.config._attn_implementation = "packed"
        self.cache, self.free = Packed(model.config, rows, room), [*range(rows)]

    def best(self, texts: list[Text]) -> list[int]:
        """Return the target's own next token of each text."""
        ids, places, parts, start = [], [], [], 0
        for x in texts:
            new = [*x.prompt, *x.tokens][x.read :]
            parts.append((x.slot, start, len(new), x.read))
            places += range(x.read, x.read + len(new))
            ids, start, x.read = ids + new, start + len(new), x.read + len(new)
        self.cache.parts, Packed.now = parts, self.cache
        states = self._states(torch.tensor([ids]), torch.tensor([places]), self.cache, None)[0]
        Packed.now = None
        return self.head(states[[start + n - 1 for _, start, n, _ in parts]]).argmax(-1).tolist()


class Again:
    """Writes many texts at once."""

    def __init__(self, target: Target, draft: Reader, least: float, longest: int) -> None:
        self.target, self.draft, self.least, self.longest = target, draft, least, longest
        self.streams: list[Stream] = []

    def start(self, text: Text, prompts: list[Tensor]) -> None:
        text.slot = self.target.free.pop()
        self.target.cache.data[:, :, text.slot, :, : len(text.prompt) - 1] = prompts[0]
        text.read = len(text.prompt) - 1
        self.draft.put(len(self.streams), prompts[1])
        self.streams.append(Stream(text, text.prompt[-1], len(text.prompt) - 1))

    def step(self) -> list[Text]:
        """Let every stream go on by a token; return the texts that ended."""
        streams = self.streams
        at = torch.tensor([x.at for x in streams])
        _, scores = self.draft.step(torch.tensor([x.newest for x in streams]), at)
        q = scores.softmax(-1)
        drafted, chances = q.argmax(-1).tolist(), q.max(-1).values.tolist()
        texts = {i: x.text for i, x in enumerate(streams) if x.place is None}
        wanted = {i: x for i, x in texts.items() if len(x.tokens) in x.row["refused"]}
        own = dict(zip(wanted, self.target.best([*wanted.values()]) if wanted else (), strict=True))
        for i, x in enumerate([*streams]):
            text, token = x.text, own.get(i, drafted[i])
            if x.place is not None:
                text.past[x.place].append(chances[i])
                x.newest, x.at = token, x.at + 1
                continue
            if i in own:
                text.past[len(text.tokens)] = [chances[i]]
                if self.goes_on(text.past[len(text.tokens)]):
                    self.draft.move(i, len(streams), x.at + 1)
                    streams.append(Stream(text, drafted[i], x.at + 1, len(text.tokens)))
                    text.going += 1
            text.q.append(q[i, token].item())
            text.tokens.append(token)
            x.newest, x.at = token, x.at + 1
        return self.leave()

    def goes_on(self, chances: list[float]) -> bool:
        return len(chances) < self.longest and math.prod(chances) >= self.least

    def leave(self) -> list[Text]:
        texts = []
        for i in reversed(range(len(self.streams))):
            x = self.streams[i]
            if x.place is None and len(x.text.tokens) < x.text.row["tokens"]:
                continue
            if x.place is not None and self.goes_on(x.text.past[x.place]):
                continue
            last = self.streams.pop()
            if last is not x:
                self.draft.move(len(self.streams), i, last.at)
                self.streams[i] = last
            x.text.going -= 1
            if not x.text.going:
                texts.append(x.text)
            if x.place is None:
                self.target.free.append(x.text.slot)
        return texts


def main(
    *, out: Path, modes: str, pair: str = "qwen-coder", task: str = "gsm8k", data: str | None = None,
    configuration: str = "gsm8k-32", kept: Path | None = None, texts: int = 40, room: int = 760, workers: int = 2,
    hours: float = 2.0, least: float = 0.1, longest: int = 32,
) -> None:  # fmt: skip
    """Write kept answers again in float32; an interrupted run goes on.

    Parameters
    ----------
    out
        A folder for the tokens and chances, a file a process.
    modes
        Modes between commas, as the configuration's rows name them.
    kept
        Rows in place of the configuration's.
    texts
        That a process writes at once.
    """
    torch.set_num_threads(1)
    loaded = pairs.load(pair, dtype=torch.float32)
    asked = loaded.task if data is None and pair != "qwen-coder" else tasks.load(task, data)
    rows = [*map(json.loads, kept.open())] if kept else tables.rows(configuration)
    named = modes.split(",")
    done = {(x["mode"], x["id"]) for file in out.glob("again-*.jsonl") for x in map(json.loads, file.open())}
    wanted = [x for x in rows if x["mode"] in named and not x.get("chances") and (x["mode"], x["id"]) not in done]
    wanted.sort(key=lambda x: (x["id"], x["mode"]))
    examples = asked.examples("test", 1 + max(x["id"] for x in wanted))
    for model in (loaded.target, loaded.draft):
        for layer in model.requires_grad_(False).modules():
            if isinstance(layer, nn.Linear):
                layer.forward = by_numpy(layer)
                layer.weight = None  # packed
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    until = time.time() + 3600 * hours

    def work(index: int):
        queue = deque(x for x in wanted if x["id"] % workers == index)
        target, draft = Target(loaded.target, texts, room), Reader(loaded.draft, 4 * texts, room)
        again, read = Again(target, draft, least, longest), {}
        while True:
            while queue and target.free and len(again.streams) < 2 * texts and time.time() < until:
                row = queue.popleft()
                prompt = list(asked.encode(examples[row["id"]], loaded.tokenizer))
                if row["id"] not in read:
                    read = {row["id"]: [reader.prefill(prompt[:-1]) for reader in (target, draft)]}
                again.start(Text(row, prompt), read[row["id"]])
            if not again.streams:
                return
            yield from again.step()

    children = []
    for index in range(workers):
        child = os.fork()
        if child:
            children.append(child)
            continue
        with torch.inference_mode(), (out / f"again-{index}.jsonl").open("a", encoding="utf-8") as file:
            for x in work(index):
                text = loaded.tokenizer.decode(x.tokens, skip_special_tokens=True)
                same = x.row["text"] == f"crc32:{zlib.crc32(text.encode()):08x}"
                row = {
                    "mode": x.row["mode"], "id": x.row["id"], "same": same, "ids": x.tokens, "q": x.q,
                    "past": [x.past[place] for place in x.row["refused"]], "prompt": len(x.prompt),
                }  # fmt: skip
                file.write(json.dumps(row) + "\n")
                file.flush()
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)


app = application(main=main)

if __name__ == "__main__":
    app()
