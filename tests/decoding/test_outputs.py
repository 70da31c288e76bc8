"""Outputs per token are sliced from the rounds' forwards as one would by hand.

Every value of a forward that no token of the output belongs to is NaN, so that a wrong slice can't be equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig

from hf_lossy_assist.compat import CACHE
from hf_lossy_assist.core.messages import TargetOutput
from hf_lossy_assist.core.statistics import LossyStats
from hf_lossy_assist.decoding.outputs import (
    GenerateLossyOutput,
    OutputRecorder,
    side_by_side,
)
from tests.decoding.fixtures import between

PROMPT, TOKENS, LAYERS, WIDTH, HEADS, V = 5, 9, 2, 3, 2, 4
STATS = LossyStats()


@dataclass
class Text:
    """All that plain ``generate()`` would return about one row's text."""

    generator: torch.Generator
    done: int = 0
    scores: Tensor = field(init=False)
    logits: Tensor = field(init=False)
    states: Tensor = field(init=False)
    weights: Tensor = field(init=False)

    def __post_init__(self) -> None:
        length = PROMPT + TOKENS
        self.scores, self.logits = (torch.randn(TOKENS, V, generator=self.generator) for _ in range(2))
        self.states = torch.randn(LAYERS, length, WIDTH, generator=self.generator)
        self.weights = torch.randn(LAYERS, HEADS, length, length, generator=self.generator)

    @property
    def length(self) -> int:
        return PROMPT + self.done


def forward(texts: list[Text], counts: list[int], drafted: int, seen: int) -> tuple[Tensor, TargetOutput]:
    """Return one forward over the rectangle's columns from ``seen`` on, of which rows keep ``counts`` tokens."""
    rows, width = len(texts), max(text.length for text in texts)
    queries, keys = width + drafted - seen, width + drafted
    scores, logits = (torch.full((rows, drafted + 1, V), torch.nan) for _ in range(2))
    states = torch.full((LAYERS, rows, queries, WIDTH), torch.nan)
    weights = torch.full((LAYERS, rows, HEADS, queries, keys), torch.nan)
    for i, (text, count) in enumerate(zip(texts, counts, strict=True)):
        padding = width - text.length
        scores[i, :count], logits[i, :count] = (x[text.done :][:count] for x in (text.scores, text.logits))
        for query in range(queries):
            at = seen + query - padding  # in the row's own text
            if 0 <= at < text.length + count - 1:
                states[:, i, query] = text.states[:, at]
                weights[:, i, :, query, :padding] = 0
                weights[:, i, :, query, padding : padding + at + 1] = text.weights[:, :, at, : at + 1]
                if not text.done:  # the prompt's own square: what comes later is masked, and has the weight 0
                    weights[:, i, :, query, padding + at + 1 :] = 0
    outputs = SimpleNamespace(hidden_states=tuple(states), attentions=tuple(weights))
    return scores, TargetOutput(outputs, logits)


def by_hand(texts: list[Text], lengths: list[int], name: str, i: int) -> list[Tensor]:
    """Return the i-th entry of what plain ``generate()`` gives: a list of layers, or of one tensor."""
    entries = []
    for text, length in zip(texts, lengths, strict=True):
        queries = slice(0, PROMPT) if i == 0 else slice(PROMPT + i - 1, PROMPT + i)
        if name in ("scores", "logits"):
            entry = [getattr(text, name)[i]]
        elif name == "hidden_states":
            entry = list(text.states[:, queries])
        else:
            causal = text.weights.tril()[:, :, queries, : PROMPT + i]
            entry = list(causal)
        entries.append([part * 0 if i >= length else part for part in entry])
    return [torch.stack(parts) for parts in zip(*entries, strict=True)]


def asked(*names: str) -> GenerationConfig:
    return GenerationConfig(return_dict_in_generate=True, **{f"output_{name}": True for name in names})


EVERYTHING = ("scores", "logits", "hidden_states", "attentions")


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_every_output_is_that_of_plain_generation(rows: int, seed: int):
    """Rows grow at different speeds, end apart, and are cut back after their end."""
    generator = torch.Generator().manual_seed(seed)
    texts = [Text(generator) for _ in range(rows)]
    ends = [TOKENS, *(between(2, TOKENS, generator) for _ in range(rows - 1))]
    recorder = OutputRecorder(asked(*EVERYTHING), rows, PROMPT)
    seen = 0
    while going_on := [row for row in range(rows) if texts[row].done < ends[row]]:
        own = [texts[row] for row in going_on]
        drafted = between(0, 4, generator)
        counts = [between(1, min(drafted + 1, TOKENS - text.done), generator) for text in own]
        recorder.record(going_on, *forward(own, counts, drafted, seen), counts, drafted)
        for text, count in zip(own, counts, strict=True):
            text.done += count
        still = [text.length for row, text in enumerate(texts) if text.done < ends[row]]
        seen = max(0, max(still, default=1) - between(1, 4, generator))
    for row, length in enumerate(ends):
        recorder.cut(row, length)
    assert torch.stack(recorder.scores_upto(2)).equal(
        torch.stack([by_hand(texts, ends, "scores", i)[0] for i in range(2)])
    )
    out = recorder.finish(torch.zeros(rows, 1), STATS, {})
    assert type(out) is GenerateLossyOutput
    assert out.lossy_stats is STATS
    for name in EVERYTHING:
        entries = out[name]
        assert len(entries) == TOKENS, name
        for i, entry in enumerate(entries):
            layers = entry if isinstance(entry, tuple) else (entry,)
            for mine, wanted in zip(layers, by_hand(texts, ends, name, i), strict=True):
                assert mine.equal(wanted), f"{name} of token {i}: {mine} != {wanted}"


def test_nothing_is_kept_that_nobody_asked_for():
    text = Text(torch.Generator().manual_seed(0))
    scores, output = forward([text], [3], 2, 0)
    recorder = OutputRecorder(asked("logits"), 1, PROMPT)
    recorder.record([0], scores, output, [3], 2)
    recorder.cut(0, 2)
    out = recorder.finish(torch.zeros(1, 1), STATS, {CACHE: "cache"})
    assert torch.cat(out.logits).equal(text.logits[:2])
    assert (out.scores, out.hidden_states, out.attentions, getattr(out, CACHE)) == (None, None, None, "cache")
    assert recorder.scores_upto(2) is None
    no_dict = OutputRecorder(GenerationConfig(output_scores=True))
    assert not no_dict.as_dict
    assert not no_dict.wanted


def test_states_with_more_dimensions_keep_their_rows_together():
    """Some models carry several streams of states, in a dimension before the rows."""
    short, long = ([(torch.full((4, 1, 1, 2), x),)] * n for x, n in ((3.0, 1), (1.0, 2)))
    together = side_by_side([short, long], "hidden_states")
    assert [entry[0].shape for entry in together] == [(4, 2, 1, 2)] * 2
    assert [entry[0][2, :, 0, 0].tolist() for entry in together] == [[3, 1], [0, 1]]
