"""``python -m benchmarks.whole_answers``: whole greedy answers of rules that judge token by token, many at once.

Such a rule decides alike whether a draft's tokens are verified together or one by one. So each step feeds one token of
every text to both models, and no forward is spent on tokens that are refused later. A text gets the target's own token
where the rule refuses the drafted one, and after γ drafted tokens: what ``generate()`` writes with drafts of γ.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache

from hf_lossy_assist import pairs, tasks
from hf_lossy_assist.acceptors import REGISTRY, Acceptor, Judge
from hf_lossy_assist.acceptors.fsd import Fsd
from hf_lossy_assist.acceptors.regret import Regret
from hf_lossy_assist.core.messages import Verification

from . import application


def attend(_, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float = 1.0, **__):
    """Attend to a prompt, or from one token of each row without a copy of the keys for each head."""
    n, heads, length, size = query.shape
    if length > 1:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None
    groups = key.shape[1]
    scores = torch.matmul(query.view(n, groups, heads // groups, size), key.transpose(2, 3)).mul_(scaling) + mask
    return torch.matmul(scores.softmax(-1), value).view(n, 1, heads, size), None


class Slots(Cache):
    """Keys and values of many texts, each from position 0; every row writes at a place of its own."""

    def __init__(self, config, rows: int, room: int) -> None:
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.data = torch.empty(config.num_hidden_layers, 2, rows, config.num_key_value_heads, room, size)
        self.rows = self.at = self.upto = None
        self.layers = []  # where masks look for sliding windows

    def update(self, key: Tensor, value: Tensor, layer: int, *_, **__) -> tuple[Tensor, Tensor]:
        own = self.data[layer]
        for i, new in enumerate((key, value)):
            own[i, self.rows, :, self.at] = new[:, :, 0]
        return own[0, : len(key), :, : self.upto], own[1, : len(key), :, : self.upto]

    def get_seq_length(self, *_) -> int:
        return 0


class PromptCache(Cache):
    """Keys and values of one prompt."""

    def __init__(self) -> None:
        self.read, self.layers = [], []

    def update(self, key: Tensor, value: Tensor, *_, **__) -> tuple[Tensor, Tensor]:
        self.read.append(torch.stack([key[0], value[0]]))
        return key, value

    def get_seq_length(self, *_) -> int:
        return 0


class Reader:
    """A model that reads one token of each row."""

    def __init__(self, model: PreTrainedModel, rows: int, room: int) -> None:
        AttentionInterface.register("grouped", attend)
        model.config._attn_implementation = "grouped"
        self.body, self.head, self.slots = model.model, model.lm_head, Slots(model.config, rows, room)

    def prefill(self, ids: Sequence[int]) -> Tensor:
        cache, places = PromptCache(), torch.arange(len(ids))[None]
        self._states(torch.tensor([ids]), places, cache, None)
        return torch.stack(cache.read)

    def step(self, tokens: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        slots = self.slots
        slots.rows, slots.at, slots.upto = torch.arange(len(tokens)), at, int(at.max()) + 1
        mask = torch.where(torch.arange(slots.upto) <= at[:, None], 0.0, -torch.inf)[:, None, None]
        states = self._states(tokens[:, None], at[:, None], slots, mask)[:, 0]
        return states, self.head(states)

    def put(self, row: int, prompt: Tensor) -> None:
        self.slots.data[:, :, row, :, : prompt.shape[3]] = prompt

    def move(self, source: int, to: int, length: int) -> None:
        self.slots.data[:, :, to, :, :length] = self.slots.data[:, :, source, :, :length]

    def _states(self, tokens: Tensor, places: Tensor, cache: Cache, mask: Tensor | None) -> Tensor:
        return self.body(
            input_ids=tokens, position_ids=places, past_key_values=cache, use_cache=True, attention_mask=mask,
        ).last_hidden_state  # fmt: skip


@dataclass
class Text:
    """An answer on its way."""

    mode: str
    id: int
    prompt: Sequence[int]
    tokens: list[int] = field(default_factory=list)  # the last may be one that the judge is still to see read
    drafted: int = 0  # tokens since the target's last own one
    refused: list[int] = field(default_factory=list)  # where the draft would have written another token
    lossy: list[int] = field(default_factory=list)  # where a token of the draft is not the target's
    own: int | None = None  # the target's token, where the judge decides next
    spent: float = 0.0  # what `regret` charged
    mismatches: int = 0  # what it kept since the target's last own token

    @property
    def newest(self) -> int:
        return self.tokens[-1] if self.tokens else self.prompt[-1]

    @property
    def at(self) -> int:
        return len(self.prompt) + len(self.tokens) - 1

    def commit(self, token: int) -> None:
        """Take the target's own token."""
        self.tokens.append(token)
        self.drafted = self.mismatches = 0

    def keep(self, token: int, best: int) -> None:
        """Take a drafted token."""
        if token != best:
            self.lossy.append(len(self.tokens))
        self.tokens.append(token)
        self.drafted += 1

    def refuse(self, best: int) -> None:
        self.refused.append(len(self.tokens))
        self.commit(best)


@dataclass(eq=False)
class Writer:
    """Writes many texts at once."""

    target: Reader
    draft: Reader
    rules: dict[str, Acceptor | None]  # by mode; None keeps every token
    gamma: int
    longest: int
    ends: frozenset[int]
    stops: Callable[[list[int]], bool] = lambda _: False  # where a string ends texts, too
    texts: list[Text] = field(default_factory=list)

    def start(self, text: Text, prompts: Sequence[Tensor]) -> None:
        for model, prompt in zip((self.target, self.draft), prompts, strict=True):
            model.put(len(self.texts), prompt)
        self.texts.append(text)

    def step(self) -> list[Text]:
        """Let every text go on by a token; return those that ended."""
        tokens = torch.tensor([x.newest for x in self.texts])
        at = torch.tensor([x.at for x in self.texts])
        states, p = self.target.step(tokens, at)
        _, q = self.draft.step(tokens, at)
        best, drafted = p.argmax(-1), q.argmax(-1)
        kept = best == drafted
        for mode, rule in self.rules.items():
            rows = [i for i, x in enumerate(self.texts) if x.mode == mode]
            if isinstance(rule, Regret):
                for i in rows:
                    kept[i] = self.affords(rule, self.texts[i], (p[i].max() - p[i, drafted[i]]).item())
            elif not isinstance(rule, Judge) and rows:
                v = Verification(drafted[rows, None], p[rows, None].expand(-1, 2, -1), q[rows, None])
                kept[rows] = True if rule is None else rule.keep(v)[:, 0]
        for i, decided in enumerate(zip(self.texts, best.tolist(), drafted.tolist(), kept.tolist(), strict=True)):
            self.decide(*decided, states[i])
        return self.leave()

    def affords(self, rule: Regret, text: Text, regret: float) -> bool:
        """Apply `regret`, whose limits are those of a draft and of a text."""
        if regret == 0:
            return True
        left = min(self.gamma - text.drafted, self.longest - 1 - len(text.tokens))
        if left <= 0 or text.mismatches == rule.mismatches:
            return False
        if regret > rule.local_regret * left or text.spent + regret > rule.total_regret:
            return False
        text.spent, text.mismatches = text.spent + regret, text.mismatches + 1
        return True

    def decide(self, text: Text, best: int, drafted: int, kept: bool, state: Tensor) -> None:
        rule = self.rules[text.mode]
        if text.own is not None:
            own, text.own = text.own, None
            if rule.head.probability(state[None]).item() >= rule.threshold:
                text.tokens.pop()
                text.refuse(own)
                return  # what was read now counts for nothing
            text.lossy.append(len(text.tokens) - 1)
            if self.ended(text):
                return
        if text.drafted == self.gamma or len(text.tokens) == self.longest - 1:
            (text.commit if best == drafted else text.refuse)(best)
        elif kept:
            text.keep(drafted, best)
        elif isinstance(rule, Judge):
            text.tokens.append(drafted)
            text.drafted, text.own = text.drafted + 1, best
        else:
            text.refuse(best)

    def ended(self, text: Text) -> bool:
        done = text.newest in self.ends or len(text.tokens) >= self.longest or self.stops(text.tokens)
        return text.own is None and done

    def leave(self) -> list[Text]:
        """Take out the texts that ended; the last ones take their rows."""
        ended = [x for x in self.texts if x.tokens and self.ended(x)]
        for text in ended:
            row, last = self.texts.index(text), self.texts.pop()
            if last is not text:
                for model in (self.target, self.draft):
                    model.move(len(self.texts), row, last.at + 1)
                self.texts[row] = last
        return ended


def by_numpy(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """Return a linear layer's forward by numpy's products, which are faster on CPUs with AVX2 alone."""
    weight = layer.weight.detach().t().contiguous().numpy()
    bias = 0 if layer.bias is None else layer.bias.detach().numpy()
    return lambda x: torch.from_numpy(x.numpy().reshape(-1, len(weight)) @ weight + bias).view(*x.shape[:-1], -1)


def main(
    *, out: Path, modes: str = "lossless,typical,judge:threshold=0.263591/everything/min_p", pair: str = "qwen-coder",
    task: str = "gsm8k", data: str | None = None, limit: int = 300, gamma: int = 32, max_new_tokens: int = 512,
    rows: int = 32, workers: int = 2, hours: float = 1.5,
) -> None:  # fmt: skip
    """Write the answers of modes to a task's test problems, in float32; an interrupted run goes on.

    Parameters
    ----------
    out
        A folder for the answers, a file a process.
    modes
        Modes between commas answer each problem together; those after a slash begin when all problems are answered.
    data
        The task's file.
    rows
        The texts that a process writes at once.
    workers
        Processes of one thread each, with one copy of the weights.
    hours
        After so many, no further text begins.
    """
    torch.set_num_threads(1)
    loaded = pairs.load(pair, dtype=torch.float32)
    asked = loaded.task if data is None and pair != "qwen-coder" else tasks.load(task, data)
    examples = asked.examples("test", limit)
    prompts = [list(asked.encode(x, loaded.tokenizer)) for x in examples]
    tiers = [tier.split(",") for tier in modes.split("/")]
    rules = {mode: rule_of(mode, loaded) for tier in tiers for mode in tier}
    given = loaded.target.generation_config.eos_token_id
    ends = frozenset([given] if isinstance(given, int) else given)
    for model in (loaded.target, loaded.draft):
        for layer in model.requires_grad_(False).modules():
            if isinstance(layer, nn.Linear):
                layer.forward = by_numpy(layer)
                layer.weight = None  # packed
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is left of the weights
    out.mkdir(exist_ok=True, parents=True)
    done = {(x["mode"], x["id"]) for file in out.glob("answers-*.jsonl") for x in map(json.loads, file.open())}
    room, until = max(map(len, prompts)) + max_new_tokens + 1, time.time() + 3600 * hours

    def work(index: int) -> Iterator[Text]:
        own = range(index, limit, workers)
        queue = deque((mode, i) for tier in tiers for i in own for mode in tier if (mode, i) not in done)
        readers = [Reader(model, rows, room) for model in (loaded.target, loaded.draft)]
        writer, read = Writer(*readers, rules, gamma, max_new_tokens, ends, stops), {}
        while True:
            while queue and len(writer.texts) < rows and time.time() < until:
                mode, i = queue.popleft()
                if i not in read:
                    read = {i: [reader.prefill(prompts[i][:-1]) for reader in readers]}
                writer.start(Text(mode, i, prompts[i]), read[i])
            if not writer.texts:
                return
            yield from writer.step()

    def stops(tokens: list[int]) -> bool:
        if not asked.ends or not any(x in loaded.tokenizer.decode(tokens[-1:]) for x in "`\n"):
            return False
        tail = loaded.tokenizer.decode(tokens[-8:])
        return any(end in tail for end in asked.ends)

    children = []
    for index in range(workers):
        child = os.fork()
        if child:
            children.append(child)
            continue
        with torch.inference_mode(), (out / f"answers-{index}.jsonl").open("a", encoding="utf-8") as file:
            for x in work(index):
                text = loaded.tokenizer.decode(x.tokens, skip_special_tokens=True)
                row = {
                    "mode": x.mode, "id": x.id, "score": float(asked.score(examples[x.id], text, text)),
                    "tokens": len(x.tokens), "cut": len(x.tokens) == max_new_tokens and x.tokens[-1] not in ends,
                    "prompt": len(x.prompt),
                    "refused": x.refused, "lossy": x.lossy, "ids": x.tokens, "text": text,
                }  # fmt: skip
                file.write(json.dumps(row) + "\n")
                file.flush()
        os._exit(0)
    for child in children:
        os.waitpid(child, 0)


@dataclass(frozen=True)
class StrictWords(Fsd):
    """Keep x iff the lossless rule does, or ``D(p ‖ q) <= T`` and neither x nor the target's best token has a sign.

    Signs are digits and operators.
    """

    signs: Tensor | None = None

    def keep_published(self, v: Verification) -> Tensor:
        strict = self.signs[v.tokens] | self.signs[v.logits[:, :-1].argmax(-1)]
        return (v.lossless & v.allowed) | (super().keep_published(v) & ~strict)


def strict_words(tokenizer, threshold: float) -> StrictWords:
    signs = torch.zeros(151_936, dtype=torch.bool)
    words = [tokenizer.decode([i]) for i in range(len(tokenizer))]
    signs[: len(words)] = torch.tensor([not {*"0123456789+-*/=×÷%$^<>"}.isdisjoint(word) for word in words])
    return StrictWords(threshold=threshold, signs=signs)


def rule_of(mode: str, pair: pairs.Pair) -> Acceptor | None:
    """Return a mode's rule; None for ``everything``."""
    name, _, threshold = mode.partition(":threshold=")
    if name in pair.heads:
        return Judge(pair.heads[name], threshold=float(threshold))
    if name == "strict_words":
        return strict_words(pair.tokenizer, float(threshold))
    return None if name == "everything" else REGISTRY[name]()


app = application(main=main)

if __name__ == "__main__":
    app()
