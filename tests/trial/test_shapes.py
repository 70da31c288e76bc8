"""Strange laws, small vocabularies, short prompts, and texts that end where a round does not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList

from benchmarks.bundled_pair.recipe import build_tokenizer
from hf_lossy_assist import LossyVerification
from tests.acceptors.fixtures import verifier_head as head_for
from tests.acceptors.table import ROWS, SOME_ROWS, Row, row_id
from tests.nightly import spread
from tests.tiny_models import constant, noisy_copy, prompt, tiny
from tests.trial.calls import DAMAGES
from tests.trial.drawing import attempt

SPRINTER = Row("sprinter", {"threshold": 0.5}, None, head=head_for)
TARGET = tiny()
DRAFT = noisy_copy(TARGET, 0.05)
GREEDY = {"do_sample": False, "eos_token_id": None}


def generate(row: Row, target: Any = TARGET, draft: Any = DRAFT, ids: Any = None, gamma: int = 5, **kwargs: Any) -> Any:
    return target.generate(
        prompt() if ids is None else ids, assistant_model=draft, num_assistant_tokens=gamma,
        return_dict_in_generate=True, **row.keywords(target, draft, seed=0), **kwargs,
    )  # fmt: skip


@spread(row=[*ROWS, SPRINTER], gamma=[1, 7])
def test_two_tokens_and_a_prompt_of_one(row: Row, gamma: int):
    target, draft = constant([0.7, 0.3]), constant([0.4, 0.6], seed=1)
    ids = torch.tensor([[1]])
    for tokens in (2, 9):
        out = generate(row, target, draft, ids, gamma, do_sample=gamma == 7, max_new_tokens=tokens)
        assert out.sequences.shape == (1, 1 + tokens)
        assert len(out.lossy_stats.trace) == tokens
        assert set(out.sequences[0].tolist()) <= {0, 1}


@pytest.mark.parametrize("row", [*SOME_ROWS, SPRINTER], ids=row_id)
def test_one_new_token_is_the_target_s(row: Row):
    """There is no room for a draft, so no rule has anything to keep; but SPRINTER may keep the draft's own token."""
    out = generate(row, gamma=50, max_new_tokens=1, **GREEDY)
    unverified = out.lossy_stats.unverified
    model = DRAFT if unverified else TARGET
    assert out.sequences.tolist() == model.generate(prompt(), max_new_tokens=1, **GREEDY).tolist()
    assert (out.lossy_stats.drafted, unverified) == (0, 0) or row is SPRINTER


@functools.cache
def plainly(damage: str, do_sample: bool) -> Any:
    """Return the text that plain generation makes of a damage, or its error."""
    return _text_or_error(lambda: TARGET.generate(prompt(), **damaged(damage), do_sample=do_sample))


def _text_or_error(call: Callable[[], Any]) -> Any:
    out = attempt(call)
    return (
        (type(out.error), str(out.error)) if out.value is None else getattr(out.value, "sequences", out.value).tolist()
    )


def damaged(damage: str) -> dict[str, Any]:
    return {"max_new_tokens": 10, "logits_processor": LogitsProcessorList([DAMAGES[damage]]), "eos_token_id": None}


# A rule of each kind meets all of them.
KINDS = ("lossless", "topk", "typical", "dropmatch", "ensemble", "judge", "sprinter")


@spread(row=[row for row in (*ROWS, SPRINTER) if row.mode in KINDS], damage=DAMAGES)
def test_laws_that_are_none_do_what_they_do_in_plain_generation(row: Row, damage: str):
    """Greedily a text, the lossless one plain generation's; where a token is to be drawn, an error of torch's kind."""
    ours = _text_or_error(lambda: generate(row, **damaged(damage), do_sample=False))
    assert isinstance(ours, list)
    assert len(ours[0]) == 17
    if row.mode == "lossless":
        assert ours == plainly(damage, False)
    ours = _text_or_error(lambda: generate(row, **damaged(damage), do_sample=True))
    plain = plainly(damage, True)
    assert isinstance(ours, tuple) == isinstance(plain, tuple)
    if isinstance(plain, tuple):
        assert ours[0] is plain[0]
        assert "no token can be drawn" in ours[1]


@spread(row=[row for row in (*ROWS, SPRINTER) if row.mode in KINDS], gamma=[3, 9])
def test_the_text_ends_with_the_first_end_wherever_in_a_round_it_is(row: Row, gamma: int):
    kwargs = {"do_sample": False, "max_new_tokens": 16}
    free = generate(row, gamma=gamma, eos_token_id=None, **kwargs).sequences[0, 7:].tolist()
    for end in dict.fromkeys(free[2:15:6]):
        out = generate(row, gamma=gamma, eos_token_id=[end, 1], **kwargs)
        text = out.sequences[0, 7:].tolist()
        stop = min(free.index(end), free.index(1) if 1 in free else 99)
        if row.mode not in ("dropmatch",):  # whose masks depend on how many positions were drafted
            assert text == free[: stop + 1]
        assert text[-1] in (end, 1) or len(text) == 16
        assert not {end, 1} & set(text[:-1])
        assert len(out.lossy_stats.trace) == len(text)


def test_an_end_that_only_a_lossy_rule_lets_through():
    """The target never says token 2, the draft always does; a rule that keeps anything ends the text with it."""
    target, draft = constant([0.1, 0.6, 0.3]), constant([0.1, 0.1, 0.8], seed=1)
    ids, kwargs = torch.tensor([[1]]), {"do_sample": False, "max_new_tokens": 12, "eos_token_id": 2}
    lossless, topk = ROWS[0], Row("topk", {"k": 3}, None)
    assert generate(lossless, target, draft, ids, **kwargs).sequences.tolist() == [[1] * 13]
    out = generate(topk, target, draft, ids, **kwargs)
    assert out.sequences.tolist() == [[1, 2]]
    assert out.lossy_stats.trace == ("accepted_lossy",)
    with LossyVerification("topk", target, assistant_model=draft, k=3, seed=0) as hook:
        stock = target.generate(ids, assistant_model=draft, logits_processor=[hook], **kwargs)
    assert stock.tolist() == [[1, 2]]


@pytest.fixture(scope="module")
def speaking() -> tuple[Any, Any, Any]:
    tokenizer = build_tokenizer(200)
    target = tiny()
    target.resize_token_embeddings(len(tokenizer))
    return tokenizer, target, noisy_copy(target, 0.05)


@pytest.mark.parametrize("mode", ["lossless", "topk", "judge", "sprinter"])
def test_stop_strings_inside_a_round(speaking, mode: str):
    tokenizer, target, draft = speaking
    row = next(row for row in [*ROWS, SPRINTER] if row.mode == mode)
    ids = tokenizer("Question: How many", return_tensors="pt").input_ids
    kwargs = {"do_sample": False, "max_new_tokens": 24, "eos_token_id": None, "tokenizer": tokenizer}
    free = generate(row, target, draft, ids, 8, **kwargs).sequences[0, ids.shape[1] :]
    for i in (3, 10, 17):
        stop = tokenizer.decode(free[i : i + 2])
        if not stop.strip():
            continue
        out = generate(row, target, draft, ids, 8, stop_strings=[stop], **kwargs)
        text = out.sequences[0, ids.shape[1] :]
        assert text.tolist() == free[: len(text)].tolist()
        assert stop in tokenizer.decode(text)
        assert stop not in tokenizer.decode(text[:-1])
        assert len(out.lossy_stats.trace) == len(text)
