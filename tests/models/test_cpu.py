"""A pair as a CPU reads it fastest, and whether drafting pays there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import pytest
import torch
from torch import nn

from hf_lossy_assist import LossyUnsupportedError, LossyValueError, last_stats, prepare_for_cpu
from hf_lossy_assist.compat.kernels import cpu_kernels
from hf_lossy_assist.models import cpu
from hf_lossy_assist.models.quantised import dtype_of, is_prepacked
from tests import architectures, encoder_decoders
from tests.tiny_models import noisy_copy, prompt, tiny

NONE = dict.fromkeys(cpu_kernels(), False)
ALL = dict.fromkeys(cpu_kernels(), True)
TARGET = {1: 1.0, 2: 1.02, 4: 1.06, 6: 1.1, 9: 1.2}


@pytest.fixture
def models():
    target = tiny("llama")
    return target, noisy_copy(target)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch):
    """Take this CPU for one with some kernels, where forwards take certain seconds."""

    def take(kernels: Mapping[str, bool], target: Mapping[int, float], drafts: Mapping[str, float]) -> None:
        monkeypatch.setattr(cpu, "cpu_kernels", lambda: kernels)
        own = iter(drafts.values())
        monkeypatch.setattr(cpu, "timed", lambda model, widths: target if len(widths) > 1 else {1: next(own)})

    return take


def by_hand(target: Mapping[int, float], drafted: float, kept: float) -> tuple[float, int]:
    """A round's expected tokens, one after the other, over its seconds; widths between timed ones are interpolated."""
    found = []
    for gamma in range(1, max(target)):
        written, still = 1.0, 1.0
        for _ in range(gamma):
            still *= kept
            written += still
        known = sorted(target)
        i = next(i for i in range(1, len(known)) if known[i] >= gamma + 1)
        a, b = known[i - 1], known[i]
        read = target[a] + (target[b] - target[a]) * (gamma + 1 - a) / (b - a)
        found.append((written * target[1] / (gamma * drafted + read), gamma))
    return max(found)


def state_of(model: nn.Module) -> list[tuple]:
    kinds = [(name, type(module), module.training) for name, module in model.named_modules()]
    return [*kinds, *((name, value.data_ptr(), value._version) for name, value in model.state_dict().items())]


@pytest.mark.parametrize(
    ("kernels", "drafts", "chosen"),
    [
        (ALL, {"prepacked": 0.3, "int8": 0.2, "int4": 0.1}, "int4"),
        (ALL, {"prepacked": 0.3, "int8": 0.1, "int4": 0.0999}, "int8"),  # int4 keeps a point less
        (NONE, {"prepacked": 0.3}, "prepacked"),
    ],
    ids=["int4", "int8", "neither"],
)
def test_the_best_draft_and_length_by_what_forwards_cost(models, on, kernels, drafts, chosen):
    target, draft = models
    before = state_of(target), state_of(draft)
    on(kernels, TARGET, drafts)
    recipe = prepare_for_cpu(target, draft)
    assert recipe.chosen == chosen
    gain, tokens = by_hand(TARGET, drafts[chosen], 0.79 if chosen == "int4" else 0.8)
    assert (recipe.gain, recipe.num_assistant_tokens) == (pytest.approx(gain), tokens)
    assert is_prepacked(recipe.target)
    assert is_prepacked(recipe.draft) if chosen == "prepacked" else dtype_of(recipe.draft) == chosen
    assert set(drafts) <= set(recipe.seconds)
    assert f"{chosen}, {tokens} tokens a round: about {gain:.2f} times" in str(recipe)
    assert (state_of(target), state_of(draft)) == before
    text = recipe.target.generate(prompt(), **recipe.keywords, do_sample=False, max_new_tokens=12)
    assert torch.equal(text, target.generate(prompt(), do_sample=False, max_new_tokens=12))
    assert last_stats(recipe.target).rounds


@pytest.mark.parametrize("kernels", [ALL, NONE], ids=["all kernels", "no kernels"])
def test_where_drafting_does_not_pay_the_target_is_advised_alone(models, on, kernels):
    """As where several tokens take as many times as long as one."""
    target, draft = models
    on(kernels, {n: float(n) for n in TARGET}, dict.fromkeys(("prepacked", "int8", "int4"), 0.4))
    recipe = prepare_for_cpu(target, draft)
    assert (recipe.draft, recipe.num_assistant_tokens, recipe.keywords) == (None, 0, {})
    assert recipe.gain < 1
    assert is_prepacked(recipe.target)
    assert re.search(r"does not pay on this CPU: .* Call the target alone\. .*AVX-512 or AMX", str(recipe))
    assert ("none of AVX-512" in str(recipe)) is (kernels is NONE)


def test_a_draft_that_bears_no_rounding_is_tried_without(models, on, monkeypatch):
    def refuse(draft: nn.Module, dtype: str) -> None:
        raise LossyUnsupportedError("it does not run with rounded weights")

    monkeypatch.setattr(cpu, "quantize_draft", refuse)
    on(ALL, TARGET, {"prepacked": 0.1})
    recipe = prepare_for_cpu(*models)
    assert recipe.chosen == "prepacked"
    assert "Without a draft in int8: it does not run with rounded weights." in str(recipe)


def test_forwards_are_timed_over_any_number_of_tokens(models):
    seconds = cpu.timed(models[0], (1, 4))
    assert 0 < seconds[1] <= seconds[4]


def test_errors_name_the_model_and_change_none(models, monkeypatch):
    target, draft = models
    monkeypatch.setattr(cpu, "timed", lambda *_: pytest.fail("nothing is run before the check"))
    with torch.device("meta"):
        elsewhere = type(draft)(draft.config)
    before = state_of(target), state_of(draft)
    for error, named, pair in (
        (LossyValueError, "`draft`.*Linear", (target, nn.Linear(2, 2))),
        (LossyValueError, "`target`.*float16", (noisy_copy(target).half(), draft)),
        (LossyUnsupportedError, "`draft`.*meta", (target, elsewhere)),
    ):
        with pytest.raises(error, match=named):
            prepare_for_cpu(*pair)
    assert (state_of(target), state_of(draft)) == before


def test_an_error_while_drafts_are_timed_changes_no_model(models, monkeypatch):
    def fail(model: nn.Module, widths: tuple[int, ...]) -> dict[int, float]:
        raise MemoryError

    before = [state_of(model) for model in models]
    monkeypatch.setattr(cpu, "timed", fail)
    with pytest.raises(MemoryError):
        prepare_for_cpu(*models)
    assert [state_of(model) for model in models] == before


@pytest.mark.parametrize("made", [partial(encoder_decoders.made, "t5"), partial(architectures.made, "mamba")])
def test_what_can_not_be_rolled_back_is_refused_before_a_forward(models, made):
    with pytest.raises(LossyUnsupportedError, match="`draft` has to be a decoder with a cache that rolls back"):
        prepare_for_cpu(models[0], made().float())
