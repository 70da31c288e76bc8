"""The modes that the demo compares, and what is counted of each."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from ..pairs import Pair
from ..pairs.evaluation import MAX_NEW_TOKENS
from ..tasks import Example

TEMPERATURE = 0.9


@dataclass(frozen=True)
class Contender:
    """One mode.

    Attributes
    ----------
    label
        Its short name.
    mode
        ``lossy_mode``, or None for plain ``generate()``.
    config
        ``lossy_config``, as items.
    sample
        Whether tokens are drawn.
    """

    label: str
    mode: str | None = None
    config: tuple[tuple[str, Any], ...] = ()
    sample: bool = False

    @property
    def title(self) -> str:
        settings = [f"{key}={value}" for key, value in self.config] + [f"T={TEMPERATURE}"] * self.sample
        return f"{self.label} ({', '.join(settings)})" if settings else self.label

    @property
    def ends_section(self) -> bool:
        """Whether a line follows it in the table."""
        return self == _GREEDY[-1]


_GREEDY = (
    Contender("target alone"),
    Contender("lossless", "lossless"),
    Contender("dropmatch", "dropmatch"),
    Contender("dropmatch", "dropmatch", (("criterion", "naive"),)),
    Contender("topk", "topk", (("k", 2),)),
    Contender("typical", "typical"),
    Contender("relaxed", "relaxed", (("top_n", 10), ("delta", 0.6))),
    Contender("ensemble", "ensemble"),
    Contender("judge", "judge", (("threshold", 0.2),)),
    Contender("sprinter", "sprinter", (("threshold", 0.9),)),
)
_SAMPLED = (
    Contender("target alone", sample=True),
    Contender("lossless", "lossless", sample=True),
    Contender("ears", "ears", sample=True),
)
CONTENDERS = _GREEDY + _SAMPLED


def contenders_for(pair: Pair) -> tuple[Contender, ...]:
    """Return the modes that a pair can decode by: those with a head only where it has one."""
    return tuple(c for c in CONTENDERS if c.mode not in ("judge", "sprinter") or c.mode in pair.rule_heads)


SHOWN = (_GREEDY[0], _GREEDY[2], _GREEDY[4])
"""The modes whose answers to one question the demo prints in full."""


@dataclass(frozen=True, eq=False)
class Answer:
    """One contender's answer to one problem.

    Attributes
    ----------
    text, tokens
        The response.
    trace
        What became of every token; empty for plain ``generate()``.
    correct
        Whether the answer is right.
    seconds
        Wall-clock time of ``generate()``.
    rounds, accepted
        Rounds, and drafted tokens kept.
    """

    text: str
    tokens: list[int]
    trace: tuple[str, ...]
    correct: bool
    seconds: float
    rounds: int
    accepted: int


@dataclass
class Tally:
    """Sums over the answers of one contender."""

    problems: int = 0
    correct: int = 0
    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    accepted: int = 0

    def add(self, answer: Answer) -> None:
        """Count one answer."""
        self.problems += 1
        self.correct += answer.correct
        self.tokens += len(answer.tokens)
        self.seconds += answer.seconds
        self.rounds += answer.rounds
        self.accepted += answer.accepted

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.problems if self.problems else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of ``generate()``, the prompt's forward included."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def mean_accepted(self) -> float:
        """Drafted tokens kept per round."""
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Generated tokens per round."""
        return self.tokens / self.rounds if self.rounds else 0.0


def answer(pair: Pair, contender: Contender, example: Example, gamma: int, seed: int) -> Answer:
    """Let one contender answer one problem; the pair's target has to be enabled."""
    inputs = pair.tokenizer(example.prompt, return_tensors="pt").to(pair.target.device)
    options: dict[str, Any] = {"do_sample": contender.sample, "max_new_tokens": MAX_NEW_TOKENS}
    if contender.sample:
        options |= {"temperature": TEMPERATURE, "top_k": 0}
    if contender.mode is not None:
        options |= {
            "assistant_model": pair.draft,
            "lossy_mode": contender.mode,
            "lossy_config": {**dict(contender.config), "seed": seed},
            "num_assistant_tokens": gamma,
        }
        if contender.mode in pair.rule_heads:
            options["lossy_head"] = pair.rule_heads[contender.mode]
    torch.manual_seed(seed)
    started = time.perf_counter()
    output = pair.target.generate(**inputs, **options, return_dict_in_generate=True)
    seconds = time.perf_counter() - started
    tokens = output.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    text = pair.tokenizer.decode(tokens, skip_special_tokens=True)
    stats = getattr(output, "lossy_stats", None)
    return Answer(
        text=text,
        tokens=tokens,
        trace=stats.trace if stats else (),
        correct=pair.task.equivalent(pair.task.extract_answer(text), example.answer),
        seconds=seconds,
        rounds=stats.rounds if stats else 0,
        accepted=stats.accepted if stats else 0,
    )
