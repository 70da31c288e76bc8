"""Whatever laws a rule is shown, it answers with a mask and a law: never NaN, never a token that is forbidden."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_lossy_assist.acceptors import REGISTRY, Acceptor, AllOf, AnyOf, decide
from hf_lossy_assist.call.config import LossyConfig
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.limits import LosslessPositions
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.core.shapes import Chain
from tests.abuse.calls import ABUSE
from tests.acceptors.fixtures import HEADS
from tests.acceptors.strategies import settings_for
from tests.acceptors.table import ROWS, row_id
from tests.tiny_models import constant

parse = LossyConfig.from_fields

TARGET = constant([0.5, 0.3, 0.2])
WIDTH = 16
RULES: dict[str, Acceptor] = {row_id(row): row.rule(TARGET) for row in ROWS}
RULES["sprinter"] = parse("sprinter", {}, HEADS["sprinter"](TARGET, TARGET)).rule
RULES["any"] = AnyOf((RULES["topk"], RULES["judge"], RULES["dropmatch-js"], RULES["thresholds"]))
RULES["all"] = AllOf((RULES["near_top"], RULES["lenience"]))
# The mixture gives a token weight that the user's processors forbid: so says the rule's documentation.
KEEPS_FORBIDDEN = {"ensemble"}
KINDS = ("smooth", "peaked", "flat", "one token", "half forbidden", "huge", "tied")


def laws(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return logits of one kind; every position has a token that is allowed."""
    noise = torch.randn(shape, generator=generator)
    favourite = torch.randint(shape[-1], shape[:-1], generator=generator)[..., None]
    if kind == "one token":
        return torch.full(shape, -torch.inf).scatter(-1, favourite, 0.0)
    if kind == "half forbidden":
        forbidden = (torch.rand(shape, generator=generator) < 0.5).scatter(-1, favourite, False)
        return noise.masked_fill(forbidden, -torch.inf)
    if kind == "tied":
        return noise.round()
    return noise * {"smooth": 1.0, "peaked": 30.0, "flat": 0.0, "huge": 2e4}[kind]


@st.composite
def verifications(draw: st.DrawFn) -> Verification:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    rows, n, vocabulary = draw(st.integers(1, 3)), draw(st.integers(0, 6)), draw(st.integers(2, 9))
    p = laws(draw(st.sampled_from(KINDS)), (rows, n + 1, vocabulary), generator)
    q = laws(draw(st.sampled_from(KINDS)), (rows, n, vocabulary), generator)
    dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.float16, torch.bfloat16]))
    paths = p[:, None, :-1] + torch.randn((rows, 3, n, vocabulary), generator=generator)
    drawn = torch.multinomial(q.softmax(-1).flatten(0, 1), 1, generator=generator).reshape(rows, n) if n else None
    anything = torch.randint(vocabulary, (rows, n), generator=generator)
    # Two rows of different length have one that is full.
    lengths = torch.randint(n + 1, (rows,), generator=generator)
    lengths[-1] = n
    return Verification(
        tokens=anything if drawn is None or draw(st.booleans()) else drawn,
        logits=p.to(dtype),
        draft_logits=q.to(dtype),
        do_sample=draw(st.booleans()),
        randomness=Randomness(draw(st.integers(0, 99))),
        hidden=torch.randn((rows, n + 1, WIDTH), generator=generator),
        dropped_logits=paths.to(dtype),
        centroid_logits=paths.mean(1).to(dtype),
        draft_hidden=torch.randn((rows, n, WIDTH), generator=generator),
        shape=Chain(n, torch.device("cpu"), tuple(lengths.tolist()) if draw(st.booleans()) else None),
    )


def assert_law(law: torch.Tensor, v: Verification, at: torch.Tensor, forbidden_too: bool) -> None:
    rows = torch.arange(len(at))
    assert law.shape == (len(at), v.logits.shape[-1])
    assert not law.isnan().any()
    assert not (law == torch.inf).any()
    if v.do_sample:
        assert (law >= 0).all()
        assert (law.sum(-1) > 0).all()
        assert forbidden_too or (law[v.logits[rows, at] == -torch.inf] == 0).all()
    else:
        assert (law.amax(-1) > -torch.inf).all()
        assert forbidden_too or (v.logits[rows, at, law.argmax(-1)] > -torch.inf).all()


def assert_mask_and_corrections(rule: Acceptor, v: Verification, forbidden_too: bool) -> None:
    rows, n = v.tokens.shape
    if n == 0:
        return
    keep = rule.keep(v)
    assert keep.shape == (rows, n)
    assert keep.dtype is torch.bool
    assert forbidden_too or not (keep & ~v.allowed).any()
    credits = sum(mask.long() for mask in rule.credits(v).values())
    assert (credits <= 1).all()
    if not v.do_sample:  # otherwise dropmatch draws anew
        assert torch.equal(credits, keep.long()), "every kept token, and no other, is credited to one rule"
    for position in range(n):
        at = torch.full((rows,), position)
        assert_law(rule.correction(v, at), v, at, forbidden_too)


@pytest.mark.parametrize("name", RULES)
def test_masks_and_corrections(name: str):
    rule, forbidden_too = RULES[name], name in KEEPS_FORBIDDEN

    @settings(ABUSE, max_examples=15)
    @given(verifications())
    def check(v: Verification) -> None:
        assert_mask_and_corrections(rule, v, forbidden_too)

    check()


@pytest.mark.parametrize("name", REGISTRY)
def test_masks_and_corrections_at_any_settings(name: str):
    head = HEADS[name](TARGET, TARGET) if name in HEADS else None

    @settings(ABUSE, max_examples=15)
    @given(settings_for(REGISTRY[name]), verifications())
    def check(config: dict[str, Any], v: Verification) -> None:
        rule = parse(name, config, head).rule
        assert_mask_and_corrections(rule, v, name in KEEPS_FORBIDDEN)
        assert ("dropped_heads" in rule.needs) == (rule.dropped_heads is not None)

    check()


@st.composite
def lossless_positions(draw: st.DrawFn, v: Verification) -> LosslessPositions | None:
    if draw(st.booleans()):
        return None
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    shape = tuple(v.tokens.shape)
    positions = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.4, 1.0]))
    allowance = torch.randint(-1, 4, shape, generator=generator).cummax(-1).values
    return LosslessPositions(positions, allowance if draw(st.booleans()) else None, v.shape)


@pytest.mark.parametrize("name", RULES)
def test_decisions(name: str):
    rule, forbidden_too = RULES[name], name in KEEPS_FORBIDDEN

    @settings(ABUSE, max_examples=15)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        v = data.draw(verifications())
        strict = data.draw(lossless_positions(v)) if len(v) else None
        decision = decide(rule, v, strict)
        rows, n = v.tokens.shape
        given = v.shape.lengths or (n,) * rows
        last = torch.tensor(given)
        accepted = decision.n_accepted
        assert ((accepted >= 0) & (accepted <= last)).all()
        assert ((decision.next_token >= 0) & (decision.next_token < v.logits.shape[-1])).all()
        if not forbidden_too or strict is not None:
            chosen = v.logits[torch.arange(rows), accepted, decision.next_token]
            assert forbidden_too or (chosen > -torch.inf).all()
        inside = torch.arange(n) < accepted[:, None]
        credits = sum((mask.long() for mask in decision.kept_by.values()), torch.zeros(rows, n, dtype=torch.long))
        assert (credits[inside] == 1).all(), "a kept token is credited to one rule"
        lossy = inside & ~decision.lossless
        if strict is not None:
            assert not (lossy & strict.positions).any()
            if strict.allowance is not None:
                assert not (lossy & (lossy.cumsum(-1) > strict.allowance)).any()

    check()


def test_a_list_keeps_what_any_keeps_and_all_of_what_all_keep():
    names = ("topk", "typical", "ears", "fly")

    @settings(ABUSE, max_examples=15)
    @given(verifications())
    def check(v: Verification) -> None:
        masks = [RULES[name].keep(v) for name in names]
        rules = tuple(RULES[name] for name in names)
        assert torch.equal(AnyOf(rules).keep(v), torch.stack(masks).any(0))
        assert torch.equal(AllOf(rules).keep(v), torch.stack(masks).all(0))

    check()


@pytest.mark.parametrize("name", RULES)
def test_logits_that_are_no_numbers_keep_nothing_and_break_nothing(name: str):
    """Greedily NaN is the largest number, as for torch and so for plain generation."""
    nan = torch.full((1, 4, 5), torch.nan)
    v = Verification(
        tokens=torch.tensor([[1, 2, 3]]),
        logits=nan,
        draft_logits=nan[:, 1:],
        hidden=torch.full((1, 4, WIDTH), torch.nan),
        dropped_logits=nan[:, None, 1:].expand(-1, 3, -1, -1),
        centroid_logits=nan[:, 1:],
        draft_hidden=torch.full((1, 3, WIDTH), torch.nan),
    )
    for logits in (nan, torch.full_like(nan, -torch.inf)):
        decision = decide(RULES[name], dataclasses.replace(v, logits=logits))
        assert decision.n_accepted.tolist() == [0]
        assert decision.next_token.tolist() == [0]
