"""Random laws that a rule is shown: it answers with a mask and a law, never NaN, never a token that is forbidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random

import torch

from hf_lossy_assist.acceptors import REGISTRY, Acceptor, AllOf, AnyOf, decide
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.limits import LosslessPositions
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.core.shapes import Chain
from hf_lossy_assist.generation.config import LossyConfig
from tests.acceptors.fixtures import HEADS
from tests.acceptors.table import ROWS, row_id
from tests.tiny_models import constant

from .drawing import settings_for

WIDTH = 16
# The mixture gives a token weight that the user's processors forbid: so says the rule's documentation.
KEEPS_FORBIDDEN = {"ensemble"}
KINDS = ("smooth", "peaked", "flat", "one token", "half forbidden", "huge", "tied")


def usual_rules() -> Mapping[str, Acceptor]:
    """Return every row of the rules' table as a rule, and lists of some."""
    target = constant([0.5, 0.3, 0.2])
    rules = {row_id(row): row.rule(target) for row in ROWS}
    rules["sprinter"] = LossyConfig.from_fields("sprinter", {}, HEADS["sprinter"](target, target)).rule
    rules["any"] = AnyOf((rules["topk"], rules["judge"], rules["dropmatch-js"], rules["thresholds"]))
    rules["all"] = AllOf((rules["near_top"], rules["lenience"]))
    return rules


def laws(seed: int, count: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """Rules at usual and at random settings, each shown random laws."""
    rules, target = usual_rules(), constant([0.5, 0.3, 0.2])

    def check(name: str, number: int) -> str:
        r = Random(f"{seed} {number}")
        rule = rules.get(name)
        if rule is None:
            name = name.removeprefix("random ")
            head = HEADS[name](target, target) if name in HEADS else None
            rule = LossyConfig.from_fields(name, settings_for(r, REGISTRY[name]), head).rule
        assert ("dropped_heads" in rule.needs) == (rule.dropped_heads is not None) or name in ("any", "all")
        v = random_verification(r)
        assert_mask_and_corrections(rule, v, name in KEEPS_FORBIDDEN)
        assert_decision(rule, v, _lossless_positions(r, v), name in KEEPS_FORBIDDEN)
        if name == "all":  # lists of rules keep what any or all of their members keep
            members = tuple(rules[each] for each in ("topk", "typical", "ears", "fly"))
            masks = torch.stack([member.keep(v) for member in members])
            assert torch.equal(AnyOf(members).keep(v), masks.any(0))
            assert torch.equal(AllOf(members).keep(v), masks.all(0))
        return "a mask and laws"

    names = [*rules, *(f"random {name}" for name in REGISTRY)]
    for number in range(count):
        name = names[number % len(names)]
        yield f"{seed}.{number} {name}", lambda name=name, number=number: check(name, number)


def random_laws(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
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
    return noise * {"smooth": 1.0, "peaked": 30.0, "flat": 0.0, "huge": 1e4}[kind]


def random_verification(r: Random) -> Verification:
    """Draw what rules read: laws of some kinds, drafted tokens, states, and rows of some lengths."""
    generator = torch.Generator().manual_seed(r.randrange(2**16))
    rows, n, vocabulary = r.randint(1, 3), r.randint(0, 6), r.randint(2, 9)
    p = random_laws(r.choice(KINDS), (rows, n + 1, vocabulary), generator)
    q = random_laws(r.choice(KINDS), (rows, n, vocabulary), generator)
    dtype = r.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16])
    paths = p[:, None, :-1] + torch.randn((rows, 3, n, vocabulary), generator=generator)
    tokens = torch.randint(vocabulary, (rows, n), generator=generator)
    if n and r.random() < 0.5:
        tokens = torch.multinomial(q.softmax(-1).flatten(0, 1), 1, generator=generator).reshape(rows, n)
    # Two rows of different length have one that is full.
    lengths = torch.randint(n + 1, (rows,), generator=generator)
    lengths[-1] = n
    return Verification(
        tokens=tokens,
        logits=p.to(dtype),
        draft_logits=q.to(dtype),
        do_sample=r.random() < 0.5,
        randomness=Randomness(r.randrange(100)),
        hidden=torch.randn((rows, n + 1, WIDTH), generator=generator),
        dropped_logits=paths.to(dtype),
        centroid_logits=paths.mean(1).to(dtype),
        draft_hidden=torch.randn((rows, n, WIDTH), generator=generator),
        shape=Chain(n, torch.device("cpu"), tuple(lengths.tolist()) if r.random() < 0.5 else None),
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


def assert_decision(rule: Acceptor, v: Verification, strict: LosslessPositions | None, forbidden_too: bool) -> None:
    decision = decide(rule, v, strict)
    rows, n = v.tokens.shape
    accepted = decision.n_accepted
    assert ((accepted >= 0) & (accepted <= torch.tensor(v.shape.lengths or (n,) * rows))).all()
    assert ((decision.next_token >= 0) & (decision.next_token < v.logits.shape[-1])).all()
    assert forbidden_too or (v.logits[torch.arange(rows), accepted, decision.next_token] > -torch.inf).all()
    inside = torch.arange(n) < accepted[:, None]
    credits = sum((mask.long() for mask in decision.kept_by.values()), torch.zeros(rows, n, dtype=torch.long))
    assert (credits[inside] == 1).all(), "a kept token is credited to one rule"
    lossy = inside & ~decision.lossless
    if strict is not None:
        assert not (lossy & strict.positions).any()
        if strict.allowance is not None:
            assert not (lossy & (lossy.cumsum(-1) > strict.allowance)).any()


def _lossless_positions(r: Random, v: Verification) -> LosslessPositions | None:
    if not v.tokens.shape[1] or r.random() < 0.5:
        return None
    generator = torch.Generator().manual_seed(r.randrange(2**16))
    shape = tuple(v.tokens.shape)
    positions = torch.rand(shape, generator=generator) < r.choice([0.0, 0.4, 1.0])
    allowance = torch.randint(-1, 4, shape, generator=generator).cummax(-1).values
    return LosslessPositions(positions, allowance if r.random() < 0.5 else None, v.shape)
