"""The host asks for tensors' values once per round: on a GPU, each time it waits for the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.decoding.loop import Decoding
from tests.acceptors.fixtures import verifier_head
from tests.acceptors.table import ROWS, Row, row_id
from tests.tiny_models import noisy_copy, padded, prompt, tiny

TARGET = tiny()
DRAFT = noisy_copy(TARGET, 0.05)
RUNS_AHEAD = replace(
    ROWS[0], mode="sprinter", config={"max_draft": 5}, head=lambda *pair: verifier_head(*pair, scale=3.0, seed=1)
)
# What needs a value on the host: reading one, and shapes that depend on values.
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "equal", "is_nonzero"}


class Waits(TorchDispatchMode):
    """Counts where the host would wait for a device outside of the models' forwards; rounds; and forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.inside = 0
        self.rounds = 0
        self.steps = 0
        self.asked = 0

    def note(self, name: str) -> None:
        if not self.inside:
            self.counts[name] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITING:
            self.note(name)
        if name in ("index", "index_put", "index_put_") and any(
            x is not None and x.dtype is torch.bool for x in args[1]
        ):
            self.note(f"{name} by a mask")
        return func(*args, **(kwargs or {}))


@contextmanager
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waits]:
    counted = Waits()
    tolist, one_round = torch.Tensor.tolist, Decoding.round

    def counted_round(decoding: Decoding) -> None:
        counted.rounds += 1
        one_round(decoding)

    def counting(tensor: torch.Tensor) -> Any:
        counted.note("tolist")
        return tolist(tensor)

    def enter(*args: Any) -> None:
        counted.__exit__(None, None, None)  # what a forward does is not counted, and is most of the work
        counted.inside += 1
        counted.steps += args[0] is DRAFT
        counted.asked += args[0] is TARGET

    def leave(*args: Any) -> None:
        counted.inside -= 1
        counted.__enter__()

    with ExitStack() as stack:
        for model in (TARGET, DRAFT):
            stack.callback(model.register_forward_pre_hook(enter).remove)
            stack.callback(model.register_forward_hook(leave).remove)
        patch = stack.enter_context(monkeypatch.context())
        patch.setattr(torch.Tensor, "tolist", counting)
        patch.setattr(Decoding, "round", counted_round)
        stack.enter_context(counted)
        yield counted


@dataclass(frozen=True)
class Difference:
    """What a longer text adds to a call: waits by their kind, rounds, and forwards of the draft and the target."""

    waits: dict[str, int]
    rounds: int
    steps: int
    asked: int


def of_longer_text(
    monkeypatch: pytest.MonkeyPatch, row: Row, inputs: dict[str, torch.Tensor], **kwargs: Any
) -> Difference:
    found = []
    for new in (6, 20):
        with waits(monkeypatch) as counted:
            TARGET.generate(
                **inputs, assistant_model=DRAFT, num_assistant_tokens=3, max_new_tokens=new, eos_token_id=None,
                **row.keywords(TARGET, DRAFT, seed=0), **kwargs,
            )  # fmt: skip
        found.append(counted)
    few, many = found
    difference = Difference(
        waits={name: n - few.counts[name] for name, n in many.counts.items() if n != few.counts[name]},
        rounds=many.rounds - few.rounds,
        steps=many.steps - few.steps,
        asked=many.asked - few.asked,
    )
    assert difference.rounds > 3
    return difference


# A text is decoded as a batch of one is, and tokens are chosen after the rows have been put together.
CALLS = pytest.mark.parametrize(
    ("inputs", "do_sample"),
    [({"input_ids": prompt()}, True), (padded(), False)],
    ids=["one drawn", "batch greedy"],
)


@CALLS
@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_a_round_waits_once(monkeypatch: pytest.MonkeyPatch, row: Row, do_sample: bool, inputs: dict):
    more = of_longer_text(monkeypatch, row, inputs, do_sample=do_sample)
    assert more.waits == {"tolist": more.rounds}


@CALLS
def test_limits_that_read_the_text_wait_no_more(monkeypatch: pytest.MonkeyPatch, do_sample: bool, inputs: dict):
    row = next(row for row in ROWS if row.mode == "topk")
    config = {"scope": {"except": [[9, 5], [7, 7]]}, "strict_on_quotes": 2}
    more = of_longer_text(monkeypatch, replace(row, config=row.config | config), inputs, do_sample=do_sample)
    assert more.waits == {"tolist": more.rounds}


ON_TREES = [row for row in ROWS if not {"draft_probs", "draft_hidden"} & row.rule(TARGET).needs]


@pytest.mark.parametrize("row", ON_TREES, ids=row_id)
def test_a_round_over_trees_waits_once_too(monkeypatch: pytest.MonkeyPatch, row: Row):
    """Chains show that drawing needs no other waits, whatever the rule; here one rule does."""
    config = {**row.config, "tree": {"depth": 3, "top_k": 2, "nodes": 6}}
    for inputs, do_sample in ((padded(), False), ({"input_ids": prompt()}, True))[: 1 + (row.mode == "lossless")]:
        more = of_longer_text(monkeypatch, replace(row, config=config), inputs, do_sample=do_sample)
        assert more.waits == {"tolist": more.rounds}


@CALLS
def test_a_rule_that_runs_ahead_waits_once_for_each_drafted_token_too(
    monkeypatch: pytest.MonkeyPatch, do_sample: bool, inputs: dict
):
    """Whether to draft another depends on what its head says of the last; so for all rows of a batch together."""
    more = of_longer_text(monkeypatch, RUNS_AHEAD, inputs, do_sample=do_sample)
    assert more.steps > more.rounds, "some tokens pass"
    assert more.waits == {"tolist": more.steps + more.asked}, "a round that needs no target waits no more"


def test_every_rule_is_covered():
    assert {row.mode for row in (*ROWS, RUNS_AHEAD)} == set(REGISTRY)


def test_the_test_would_find_them(monkeypatch: pytest.MonkeyPatch):
    values = torch.tensor([1.0, 2.0])
    with waits(monkeypatch) as counted:
        float(values[0])
        bool((values > 0).all())
        values[values > 1]
        values.tolist()
    assert counted.counts["_local_scalar_dense"] == 2
    assert counted.counts["tolist"] == 1
    assert counted.counts["index by a mask"] + counted.counts["nonzero"] >= 1
