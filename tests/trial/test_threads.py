"""Calls at the same time, on one model or on two, are what they are one after the other."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from transformers import GenerationMixin

from hf_lossy_assist import LossyVerification, enabled
from hf_lossy_assist.compat.models import replaces_decoding
from tests.acceptors.fixtures import verifier_head as head_for
from tests.acceptors.table import ROWS, row_id
from tests.tiny_models import noisy_copy, prompt, tiny

SEEDED = {"seed": 0}
KWARGS = {"max_new_tokens": 12, "eos_token_id": None, "return_dict_in_generate": True}
COUNTS = ("rounds", "drafted", "accepted", "accepted_lossy", "accepted_by", "trace", "lossless", "unverified")


@pytest.fixture(autouse=True)
def _frequent_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def at_once(jobs: list[Callable[[], Any]]) -> list[Any]:
    """Run every job in a thread of its own, all released together."""
    results: list[Any] = [None] * len(jobs)
    barrier = threading.Barrier(len(jobs))

    def work(i: int) -> None:
        barrier.wait()
        try:
            results[i] = jobs[i]()
        except BaseException as error:  # shown below, in the test's own thread
            results[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def essence(out: Any) -> tuple[Any, ...]:
    return (out.sequences.tolist(), *(getattr(out.lossy_stats, name) for name in COUNTS))


def fields_of_all_rules(target: Any, draft: Any) -> dict[str, dict[str, Any]]:
    fields = {row_id(row): row.keywords(target, draft, seed=7) for row in ROWS}
    sprinter = {"lossy_mode": "sprinter", "lossy_head": head_for(target, draft), "lossy_config": {"seed": 7}}
    return fields | {"sprinter": sprinter}


@pytest.mark.parametrize("do_sample", [False, True])
def test_one_model_in_many_threads_each_with_a_rule_of_its_own(do_sample: bool):
    target = tiny()
    draft = noisy_copy(target, 0.05)
    rules = fields_of_all_rules(target, draft)

    def job(name: str) -> Callable[[], Any]:
        return lambda: target.generate(prompt(), assistant_model=draft, do_sample=do_sample, **rules[name], **KWARGS)

    alone = {name: essence(job(name)()) for name in rules}
    assert len({str(value[0]) for value in alone.values()}) > 3, "the rules tell apart"
    for names in (list(rules), ["dropmatch-js", "dropmatch-naive", "judge", "dropmatch-js"]):
        together = at_once([job(name) for name in names])
        assert {name: essence(out) for name, out in zip(names, together, strict=True)} == {n: alone[n] for n in names}
    assert not any(module._forward_pre_hooks for model in (target, draft) for module in model.modules())


def test_lossy_plain_and_stock_assisted_calls_beside_each_other():
    target = tiny()
    draft = noisy_copy(target, 0.05)
    greedy = KWARGS | {"do_sample": False}
    lossy = {"assistant_model": draft, "lossy_mode": "dropmatch", "lossy_config": {"seed": 0, "dropout": 0.3}}

    def in_stock_s_loop() -> Any:
        with LossyVerification("dropmatch", target, assistant_model=draft, seed=0, dropout=0.3) as hook:
            return target.generate(prompt(), assistant_model=draft, logits_processor=[hook], **greedy)

    jobs: list[Callable[[], Any]] = [
        lambda: target.generate(prompt(), **greedy),
        lambda: target.generate(prompt(), **lossy, **greedy),
        lambda: target.generate(prompt(), prompt_lookup_num_tokens=3, **greedy),
        in_stock_s_loop,
    ]
    alone = [run().sequences.tolist() for run in jobs]
    assert alone[0] == alone[2]
    assert alone[1] == alone[3] != alone[0]
    for _ in range(2):
        assert [out.sequences.tolist() for out in at_once(jobs)] == alone


def test_enabling_and_disabling_in_many_threads(disabled: None):
    originals = dict(vars(GenerationMixin))
    models = [tiny(), tiny()]
    fields = {"assistant_model": noisy_copy(models[0], 0.05), "lossy_mode": "topk", "lossy_config": SEEDED}

    def run(model: Any) -> Any:
        for _ in range(50):
            with enabled(model), enabled():
                pass
        with enabled(model):
            return model.generate(prompt(), **fields, do_sample=False, **KWARGS)

    texts = at_once([functools.partial(run, model) for model in models * 3])
    assert dict(vars(GenerationMixin)) == originals
    assert len({str(essence(out)) for out in texts}) == 1
    assert texts[0].lossy_stats.accepted_by.keys() == {"topk"}


def test_a_model_is_judged_while_another_thread_replaces_methods(disabled: None):
    model, other = tiny(), tiny()

    def switch() -> None:
        for _ in range(2000):
            with enabled(other):
                pass

    judged = at_once([switch, lambda: [replaces_decoding(model) for _ in range(20_000)]])[1]
    assert not any(judged)
