"""A runner on a static cache gives the logits of one forward over the whole text, whatever was run and rewound."""

from __future__ import annotations

import pytest
import torch
from transformers import CompileConfig, PreTrainedModel

from hf_lossy_assist.models.static.cache_slot import StaticCacheSlot, new_static_cache, take_slot
from hf_lossy_assist.models.static.fixed_runner import Shapes
from hf_lossy_assist.models.static.forwards import Compiling
from hf_lossy_assist.models.static.runner import StaticCacheRunner
from tests.decoding.fixtures import PAD, between, random_round, random_tokens
from tests.models.references import assert_last_logits, follow_rows, inputs_of, prompts
from tests.tiny_models import tiny

ARCHITECTURES = pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt2"])
CAPACITY = 64


def static(model: PreTrainedModel, text: list[int]) -> StaticCacheRunner:
    carried = inputs_of([text]) if PAD in text else {}
    return StaticCacheRunner(model, StaticCacheSlot(new_static_cache(model, CAPACITY)), carried)


@torch.no_grad()
def follow(
    forwards: StaticCacheRunner, text: list[int], lengths: tuple[int, ...], generator: torch.Generator, unread: int = 0
) -> None:
    """Run rounds of drafts, parts of which are kept, and compare each with the whole text.

    Up to ``unread`` tokens are committed before every round without having been read.
    """
    for drafted in lengths:
        new = random_round(1, drafted, generator, ends=0)
        text = text + random_tokens(between(0, unread, generator), generator)
        candidate, seen = text + new.tokens[0][:-1], forwards.seen
        logits = forwards.run(torch.tensor([candidate]), drafted + 1).logits
        assert_last_logits(forwards.model, logits[:, -(drafted + 1) :], [candidate])
        assert (forwards.sent, forwards.seen) == (len(candidate) - seen, len(candidate))
        (text,) = new.after([text])
        forwards.rewind(len(text) - 1)
        forwards.extend(len(text))
        assert forwards.seen == forwards.slot.filled == len(text) - 1


@pytest.mark.parametrize("padding", [0, 3])
@ARCHITECTURES
def test_rounds_of_one_sequence(architecture: str, padding: int):
    generator = torch.Generator().manual_seed(padding)
    text = [PAD] * padding + random_tokens(6, generator)
    follow(static(tiny(architecture), text), text, (4, 0, 5, 1, 0, 3, 6), generator, unread=2)


@pytest.mark.parametrize("padding", [0, 3])
def test_compiled_programs_of_fixed_widths(padding: int):
    """Narrower forwards are filled up; at the cache's end, where that does not fit, nothing compiled is run."""
    generator = torch.Generator().manual_seed(5)
    text = [PAD] * padding + random_tokens(6, generator)
    forwards = static(tiny(), text)
    forwards.prepare(Compiling(CompileConfig(backend="eager")), Shapes((2, 6)))
    runs = {width: program.runs for width, program in forwards.fixed.items()}
    follow(forwards, text, (5, 0, 4, 2, 0, 5, 3), generator)
    assert all(program.runs > runs[width] for width, program in forwards.fixed.items())
    before = [program.runs for program in forwards.fixed.values()]
    full = random_tokens(CAPACITY, generator)
    forwards.rewind(0)
    for length in (CAPACITY - 1, CAPACITY):
        with torch.no_grad():
            logits = forwards.run(torch.tensor([[PAD] * padding + full[padding:length]]), 1).logits
        assert_last_logits(forwards.model, logits, [full[padding:length]])
    assert [program.runs for program in forwards.fixed.values()] == before


def test_a_cache_goes_back_to_the_pool_unless_it_is_the_caller_s():
    model = tiny()
    for keeps in (False, True):
        forwards = StaticCacheRunner(model, take_slot(model, CAPACITY), {})
        forwards.keeps_cache = keeps
        with forwards.in_use():
            pass
        assert (take_slot(model, CAPACITY) is forwards.slot) != keeps


@pytest.mark.parametrize(
    ("architecture", "compiled"), [("llama", False), ("mistral", False), ("gpt2", False), ("gpt2", True)]
)
def test_rows_of_a_batch(architecture: str, compiled: bool):
    """Fewer rows than the cache has are filled up, also in forwards that are compiled for so many."""
    model, generator = tiny(architecture), torch.Generator().manual_seed(2)
    texts = prompts((6, 3, 5, 6, 1), generator)
    slot = StaticCacheSlot(new_static_cache(model, CAPACITY), rows=len(texts))
    forwards = StaticCacheRunner(model, slot, inputs_of(texts), last_position=torch.tensor([[CAPACITY - 1]]))
    if compiled:
        forwards.prepare(Compiling(CompileConfig(backend="eager")), Shapes((2, 7)))
    follow_rows(forwards, texts, (4, 0, 5, 0, 2, 6, 3), generator)
    assert forwards.seen == slot.filled
