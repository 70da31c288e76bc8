"""A round waits for a GPU once, and launches few kernels of its own.

``python -m tests.test_waits`` prints the table, and with a part of a case's name the lines of that case too.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import SequenceBiasLogitsProcessor

import hf_lossy_assist
from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.decoding import unverified
from hf_lossy_assist.drafting import chain
from hf_lossy_assist.generation.runner_choice import LEAST_TOKENS
from tests.acceptors.fixtures import verifier_head
from tests.acceptors.table import ROWS, Row, row_id
from tests.dflash_heads import random_dflash
from tests.eagle3_heads import random_head
from tests.graphs import Recorder, record
from tests.mtp_checkpoints import trained_pair
from tests.nightly import nightly
from tests.tiny_models import noisy_copy, padded, prompt, tiny
from tests.waits import Counts, counted, on_cpu

GAMMA = 5
# Older processors and masks of transformers read on the host by themselves.
_OLD = "torch.tensor" in inspect.getsource(SequenceBiasLogitsProcessor.__call__)
OWN_WAITS = ("logits_process.py", "masking_utils.py") if _OLD else ()
TARGET = tiny()
DRAFT = noisy_copy(TARGET, 0.05)
PROCESSORS = {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "bad_words_ids": [[7], [5, 9], [8, 6]]}
STATE_HEADS = {
    "EAGLE-3": (tiny("llama"), random_head()), "DFlash": (tiny("llama"), random_dflash()), "MTP": trained_pair(),
}  # fmt: skip
TREE = {"depth": 4, "top_k": 4, "nodes": 16}


DEEP = ("lossless", "dropmatch", "judge", "fly", "regret")  # whose rounds do more than compare
BATCHED = [(row, n) for i, row in enumerate(ROWS) for n in ((1, 4) if row.mode in DEEP else ((1, 4)[i % 2],))]


@dataclass(frozen=True)
class Case:
    """A call, whose rounds are counted."""

    row: Row
    batch: int = 1
    do_sample: bool = False
    fixed: bool = True  # whether the draft length is
    config: dict[str, Any] = field(default_factory=dict)
    kwargs: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    head: str = ""  # which head on the target's states drafts, if one does
    graphs: bool = False

    @property
    def name(self) -> str:
        more = [f"{key}={'x'.join(map(str, value.values()))}" for key, value in self.config.items()]
        more += ["processors"] if self.kwargs else []
        more += [self.label, self.head, "graphs" if self.graphs else ""]
        kind = ["drawn" if self.do_sample else "greedy", "" if self.fixed else "default length", *more]
        return " ".join([row_id(self.row), f"b{self.batch}", *filter(None, kind)])

    def run(self, front: Callable[..., Any] = on_cpu, lines: bool = False, place: Callable[[Any], Any] = lambda x: x):
        """Count what the call does; ``place`` puts models and tensors where the ``front`` wants them."""
        inputs = {"input_ids": prompt(), "attention_mask": torch.ones_like(prompt())} if self.batch == 1 else padded()
        pair = STATE_HEADS.get(self.head, (TARGET, DRAFT))
        keywords = self.row.keywords(*pair, seed=0)
        keywords["lossy_config"] |= self.config | ({} if self.graphs else {"compile": False})
        models = dict(zip(("target", "draft"), map(place, pair), strict=True))
        keywords["lossy_head"] = place(keywords["lossy_head"])
        # Hooks on a draft would be called for every token, so it would not be one graph.
        watched = {"target": models["target"]} if self.graphs else models
        # Rounds are all alike; where lengths change, whole texts are looked at.
        most = 10 if self.fixed else float("inf")
        with counted(watched, front, lines, most) as counts, pytest.MonkeyPatch.context() as patch:
            if self.graphs:
                record(patch, Recorder(counts.launch), models["target"].device.type)
            models["target"].generate(
                **{name: place(x) for name, x in inputs.items()}, assistant_model=models["draft"],
                max_new_tokens=LEAST_TOKENS if self.graphs else 26,
                eos_token_id=None, do_sample=self.do_sample, **({"num_assistant_tokens": GAMMA} if self.fixed else {}),
                **keywords, **self.kwargs,
            )  # fmt: skip
        assert bool(counts.graphs) is self.graphs
        assert len(counts.per_round("wait")) > 2
        return counts


SPRINTER = replace(
    ROWS[0], mode="sprinter", config={"max_draft": 5}, head=lambda *pair: verifier_head(*pair, scale=3.0, seed=1)
)
LIMITED = Row(
    "topk",
    {
        "k": 3,
        "tolerance": 0.9,
        "budget": 0.3,
        "strict_first_n": 4,
        "scope": {"except": [[9, 5], [7, 7]]},
        "strict_on_quotes": 2,
    },
    ROWS[0].acceptance,
)
RULES = [Case(row, batch, batch == 4) for row, batch in BATCHED]
RULES += [Case(ROWS[0], 1, True), Case(ROWS[0], 4, False)]
RULES += [Case(LIMITED, batch, do_sample, label="limits") for batch, do_sample in ((1, True), (4, False))]
LENGTH = [Case(ROWS[0], batch, do_sample, fixed=False) for batch in (1, 4) for do_sample in (False, True)]
PROCESSED = [
    Case(ROWS[0], batch, do_sample, fixed, kwargs=PROCESSORS)
    for batch, do_sample, fixed in ((1, False, True), (1, True, True), (4, False, True), (4, True, False))
]
TREES = [
    Case(row, batch, config={"tree": TREE})
    for row, batch in BATCHED
    if not {"draft_probs", "draft_hidden"} & row.rule(TARGET).needs
]
TREES += [Case(ROWS[0], batch, config={"tree": TREE}, kwargs=PROCESSORS) for batch in (1, 4)]
HEADS = [
    Case(ROWS[0], batch, do_sample, config=config, head="EAGLE-3")
    for batch, do_sample, config in (
        (1, False, {}),
        (4, True, {}),
        (1, False, {"tree": TREE}),
        (4, False, {"tree": TREE}),
    )
]
HEADS += [Case(ROWS[0], batch, do_sample, head="DFlash") for batch, do_sample in ((1, False), (4, True))]
HEADS += [
    Case(ROWS[0], batch, do_sample, fixed=False, head=head)
    for head, batch, do_sample in (("EAGLE-3", 4, True), ("DFlash", 1, False), ("MTP", 4, True), ("MTP", 1, False))
]
GRAPHS = [replace(case, graphs=True) for case in (*LENGTH, *PROCESSED, *HEADS, *TREES) if case.row is ROWS[0]]
GRAPHS += [
    replace(case, graphs=True)
    for case in RULES
    if case.row.mode in ("lossless", "dropmatch", "judge") and case.do_sample is (case.batch == 4)
]
CASES = {case.name: case for case in (*RULES, *LENGTH, *PROCESSED, *TREES, *HEADS, *GRAPHS)}
# Every rule decodes its chains each day, and of the trees and graphs there is one of each kind.
DAILY = {case.name for case in (*RULES, *LENGTH, *HEADS)}
DAILY |= {case.name for case in TREES if case.row.mode in ("lossless", "judge")}
DAILY |= {case.name for case in (*PROCESSED, *GRAPHS) if case.batch == 1 or (case.head and case.do_sample)}
AHEAD = {
    case.name: case for case in (Case(SPRINTER, batch, do_sample) for batch in (1, 4) for do_sample in (False, True))
}


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, default_ends: None):
    """Drafts end where they do by default, and are looked at one token later."""
    for module in (chain, unverified):
        monkeypatch.setattr(module, "looks_late", lambda device: True)


@pytest.mark.parametrize("name", nightly(CASES, but=DAILY))
def test_a_round_waits_once(name: str):
    """A recorded draft that may end early is looked at once, too: where it is short, as here, one graph drafts it."""
    case = CASES[name]
    counts = case.run()
    assert set(counts.per_round("wait", *OWN_WAITS)) == {1}, counts.where("wait")
    if case.graphs and not case.fixed and not case.kwargs:
        assert set(counts.per_round("look")) == {1}
        assert not any("draft" in at for at in counts.where("forward"))


@pytest.mark.parametrize("name", AHEAD)
def test_a_rule_that_runs_ahead_looks_once_at_each_drafted_token(name: str):
    """Whether to draft another depends on what its head says of the last; so for all rows of a batch together."""
    counts = AHEAD[name].run()
    assert max(counts.per_round("wait")) <= 1, counts.where("wait")
    drafted = sum(n for at, n in counts.where("forward").items() if at.startswith("draft"))
    assert 0 < sum(counts.where("look").values()) <= drafted


@pytest.mark.parametrize(("do_sample", "most"), [(False, 40), (True, 130)])
def test_a_round_launches_few_kernels(do_sample: bool, most: int):
    config = {"verification": "block"} if do_sample else {}
    counts = Case(replace(ROWS[0], config=config), 1, do_sample).run(lines=True)
    assert max(counts.per_round("kernel")) <= most, counts.where("kernel")


def test_every_rule_is_covered():
    assert {case.row.mode for case in (*CASES.values(), *AHEAD.values())} == set(REGISTRY)


def test_the_test_would_find_them():
    values, counts = torch.tensor([1.0, 2.0]), Counts()
    with pytest.MonkeyPatch.context() as patch, on_cpu(counts, patch):
        float(values[0])
        bool((values > 0).all())
        values[values > 1]
        values[[0, 1]]
        values.tolist()
        values.to("cpu")
        torch.tensor([1, 2])
        torch.as_tensor((1, 2))
    assert sum(n for (kind, _), n in counts.rounds[0].items() if kind == "wait") == 8


@pytest.mark.skipif(torch.version.cuda is None or torch.cuda.is_available(), reason="needs a CUDA build without a GPU")
@pytest.mark.parametrize("name", [x for x, case in (CASES | AHEAD).items() if case.head != "MTP"])  # which no copy has
def test_a_pretended_gpu_gives_the_same_counts(name: str):
    from tests.pretended_cuda import Pretended, on_device, pretended

    def place(x: Any) -> Any:
        return on_device(x) if isinstance(x, nn.Module) else Pretended(x) if isinstance(x, torch.Tensor) else x

    case = (CASES | AHEAD)[name]
    here, there = case.run(), case.run(pretended, place=place)
    for what in ("wait", "look"):
        assert here.per_round(what) == there.per_round(what), (here.where(what), there.where(what))


def main(chosen: str | None = None) -> None:
    """Print what the cases wait for and launch, in the mean of their rounds."""
    hf_lossy_assist.enable()
    chain.looks_late = unverified.looks_late = lambda device: True
    for name, case in (CASES | AHEAD).items():
        if chosen is None or chosen in name:
            counts = case.run(lines=chosen is not None)
            total = {what: sum(counts.where(what).values()) for what in ("wait", "look", "copy", "kernel", "forward")}
            lines = [f"{name:50s}" + "".join(f"{n:7.1f} {what}" for what, n in total.items())]
            for what in ("wait", "copy", "kernel") if chosen is not None else ():
                lines += [f"    {n:6.2f} {what:6s} {at}" for at, n in counts.where(what).items()]
            sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
