"""The host asks for a tensor's value once per round: on a GPU, each time it waits for the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.acceptors.table import ROWS, Row, row_id
from tests.models import noisy_copy, padded, prompt, tiny

TARGET = tiny()
DRAFT = noisy_copy(TARGET, 0.05)
# What needs a value on the host: reading one, and shapes that depend on values.
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "equal", "is_nonzero"}


class Waits(TorchDispatchMode):
    """Counts where the host would wait for a device, outside of the models' forwards."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.inside = 0

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
    tolist = torch.Tensor.tolist

    def counting(tensor: torch.Tensor) -> Any:
        counted.note("tolist")
        return tolist(tensor)

    def enter(*args: Any) -> None:
        counted.inside += 1

    def leave(*args: Any) -> None:
        counted.inside -= 1

    with ExitStack() as stack:
        for model in (TARGET, DRAFT):
            stack.callback(model.register_forward_pre_hook(enter).remove)
            stack.callback(model.register_forward_hook(leave).remove)
        monkeypatch.setattr(torch.Tensor, "tolist", counting)
        stack.callback(monkeypatch.undo)
        stack.enter_context(counted)
        yield counted


def per_round(
    monkeypatch: pytest.MonkeyPatch, row: Row, inputs: dict[str, torch.Tensor], **kwargs: Any
) -> dict[str, float]:
    """Return what a round more adds to the waits of a call."""
    found = []
    for new in (12, 40):
        with waits(monkeypatch) as counted:
            out = TARGET.generate(
                **inputs, assistant_model=DRAFT, num_assistant_tokens=4, max_new_tokens=new, eos_token_id=None,
                return_dict_in_generate=True, **row.keywords(TARGET, DRAFT, seed=0), **kwargs,
            )  # fmt: skip
        found.append((out.lossy_stats.target_calls, counted.counts))
    (few, short), (many, long) = found
    assert many > few + 3
    return {name: (n - short[name]) / (many - few) for name, n in long.items() if n != short[name]}


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "drawn"])
@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_a_round_waits_once(monkeypatch: pytest.MonkeyPatch, row: Row, do_sample: bool):
    assert per_round(monkeypatch, row, {"input_ids": prompt()}, do_sample=do_sample) == {"tolist": 1}


@pytest.mark.parametrize("row", [ROWS[0], next(row for row in ROWS if row.mode == "dropmatch")], ids=row_id)
def test_a_round_of_a_batch_waits_once(monkeypatch: pytest.MonkeyPatch, row: Row):
    found = per_round(monkeypatch, row, padded(), do_sample=False)
    assert set(found) == {"tolist"}


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
