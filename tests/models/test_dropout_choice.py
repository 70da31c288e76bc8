"""The head tap: dropped heads get what clean logits get, at a ρ chosen by what dropping does to the head at hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import CompileConfig, LogitsProcessorList

import hf_lossy_assist
from hf_lossy_assist import LossyVerification, last_stats
from hf_lossy_assist.acceptors import DropMatch
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Draft
from hf_lossy_assist.models import lm_head_hook as module
from hf_lossy_assist.models.lm_head_hook import AGREEMENT, DROPOUTS, choose_dropout
from hf_lossy_assist.models.target import TargetReader
from tests import encoder_decoders
from tests.architectures import made
from tests.tiny_models import ARCHITECTURES, noisy_copy, padded, prompt, tiny


def head_and_states(
    scale: float, seed: int, positions: int = 40, vocabulary: int = 50, kind: type[nn.Linear] = nn.Linear
) -> tuple[nn.Linear, Tensor]:
    """Return a head whose laws are the sharper the larger ``scale`` is."""
    torch.manual_seed(seed)
    head = kind(64, vocabulary, bias=vocabulary > 50)
    with torch.no_grad():
        head.weight.normal_()
        tokens = torch.randint(vocabulary, (positions,))
        states = scale * head.weight[tokens] / 64**0.5 + torch.randn(positions, 64)
    return head, states


def agreement(head: nn.Module, states: Tensor, paths: int, dropout: float) -> float:
    """Count naively, position by position, at the surer half of them."""
    logits = [head(row) for row in states]
    order = sorted(range(len(states)), key=lambda i: -logits[i].softmax(-1).max().item())
    surest = order[: len(states) // 2]
    uniform = torch.rand((max(32, len(surest)), paths, states.shape[-1]), generator=torch.Generator().manual_seed(0))
    same = 0
    for path in range(paths):
        for place, i in enumerate(surest):
            kept = torch.where(uniform[place, path] < dropout, 0.0, states[i] / (1 - dropout))
            same += int(head(kept).argmax() == logits[i].argmax())
    return same / (paths * len(surest))


@pytest.mark.parametrize(("scale", "seed"), [(0.3, 0), (0.3, 1), (2.0, 0), (2.0, 2), (6.0, 1), (6.0, 3)])
def test_it_is_the_largest_that_leaves_the_surer_half_alone(scale, seed):
    head, states = head_and_states(scale, seed)
    with torch.no_grad():
        at = int(choose_dropout(head, states, 5))
        shares = [agreement(head, states, 5, dropout) for dropout in DROPOUTS]
    assert shares[at] >= AGREEMENT
    assert at == len(DROPOUTS) - 1 or shares[at + 1] < AGREEMENT


class WholeHead(nn.Linear):
    """A head whose rows can't be read one by one."""


@pytest.mark.parametrize("scale", [1.0, 2.0, 6.0])
def test_a_large_head_is_read_once(scale: float):
    for seed in range(3):
        made = [head_and_states(scale, seed, vocabulary=3000, kind=kind) for kind in (nn.Linear, WholeHead)]
        calls = []
        made[0][0].register_forward_hook(lambda *_, calls=calls: calls.append(1))
        near, whole = (int(choose_dropout(head, states, 5)) for head, states in made)
        assert calls == [1]
        assert near >= whole, "tokens that can't be chosen disturb nobody"
        assert near - whole <= 1


def test_too_short_a_prompt_says_too_little_to_be_bold():
    head, states = head_and_states(20.0, 0, positions=15)
    assert DROPOUTS[choose_dropout(head, states, 5)] == 0.005


def test_it_draws_nothing_of_the_caller_s():
    torch.manual_seed(5)
    expected = torch.rand(3)
    head, states = head_and_states(2.0, 0)
    torch.manual_seed(5)
    first = choose_dropout(head, states, 5)
    assert torch.equal(torch.rand(3), expected)
    assert choose_dropout(head, states, 5) == first


@pytest.fixture
def chosen(monkeypatch):
    """The states that a choice is made of, and ρ, call by call."""
    seen, choose = [], module.choose_dropout

    def noted(head, states, paths):
        index = choose(head, states, paths)
        seen.append((states.clone(), DROPOUTS[index]))
        return index

    monkeypatch.setattr(module, "choose_dropout", noted)
    return seen


def last_states(model, ids, mask=None, n=64):
    with torch.no_grad():
        return model.model(input_ids=ids, attention_mask=mask).last_hidden_state[0, -n:]


@pytest.fixture(scope="module")
def models():
    target = tiny()
    return target, noisy_copy(target, 0.02)


@pytest.mark.parametrize(("length", "sample"), [(20, False), (90, True)])
def test_the_prompt_s_last_positions_are_looked_at_once(models, chosen, sample, length):
    target, draft = models
    ids = prompt(length)
    options = {"assistant_model": draft, "max_new_tokens": 12, "do_sample": sample}
    calls = []
    counted = target.register_forward_pre_hook(lambda *args: calls.append(1))
    auto = target.generate(input_ids=ids, lossy_mode="dropmatch", lossy_config={"seed": 0}, **options)
    counted.remove()
    ((states, dropout),) = chosen
    torch.testing.assert_close(states, last_states(target, ids), atol=1e-4, rtol=1e-4)
    assert len(calls) == last_stats(target).target_calls, "no forward more than those of the rounds"
    by_hand = {"seed": 0, "dropout": dropout}
    same = target.generate(input_ids=ids, lossy_mode="dropmatch", lossy_config=by_hand, **options)
    assert auto.tolist() == same.tolist()
    assert len(chosen) == 1


def test_each_row_of_a_batch_has_the_dropout_that_it_has_alone(models, chosen):
    target, draft = models
    lengths = (24, 80, 10, 40)
    rows = [prompt(length, seed) for seed, length in enumerate(lengths)]
    options = {"assistant_model": draft, "lossy_mode": "dropmatch", "max_new_tokens": 6, "do_sample": False}
    for row in rows:
        target.generate(row, **options)
    target.generate(**padded(lengths), **options)
    alone, together = chosen[: len(rows)], chosen[len(rows) :]
    for (states, dropout), (own, same) in zip(alone, together, strict=True):
        torch.testing.assert_close(own, states, atol=1e-4, rtol=1e-4)
        assert same == dropout
    assert len({dropout for _, dropout in alone}) > 1, "or any one would do for all"


def test_an_encoder_s_mask_does_not_shorten_the_decoder_s_prompt(chosen):
    target, config = encoder_decoders.made("bart"), {"seed": 0, "criterion": "naive"}
    options = {
        "decoder_input_ids": prompt(30), "max_new_tokens": 4, "do_sample": False, "prompt_lookup_num_tokens": 3,
    }  # fmt: skip
    for inputs in ({"input_ids": prompt(5)}, padded((5,))):
        target.generate(**inputs, **options, lossy_mode="dropmatch", lossy_config=config)
    with hf_lossy_assist.enabled(target), LossyVerification("dropmatch", target, **config) as hook:
        target.generate(**padded((5,)), **options, logits_processor=[hook])
    assert len(chosen[0][0]) == 31, "the start token comes before the prompt"
    assert_same_choice(chosen[:2])
    assert_same_choice(chosen[1:])
    assert hook.stats.target_tokens > 31


def test_rows_keep_their_dropout_when_others_end(models, monkeypatch):
    """Without dropout a greedy row is the target's own text, whatever its neighbours drop."""
    target, draft = models
    rows = [prompt(20, seed) for seed in range(3)]
    plain = [
        target.generate(row, max_new_tokens=24, do_sample=False, eos_token_id=None)[0, 20:].tolist() for row in rows
    ]
    indices = iter((len(DROPOUTS) - 1, len(DROPOUTS) - 1, 0))
    monkeypatch.setattr(module, "choose_dropout", lambda *_: torch.tensor(next(indices)))
    end = next(token for token in plain[0] if token not in plain[2])
    found = target.generate(
        **padded((20, 20, 20)), assistant_model=draft, lossy_mode="dropmatch", lossy_config={"seed": 0},
        max_new_tokens=24, do_sample=False, eos_token_id=end, return_dict_in_generate=True,
    )  # fmt: skip
    lengths = [row.tokens for row in found.lossy_stats.rows]
    assert min(lengths[:2]) < lengths[2] == 24
    assert found.sequences[2, 20:].tolist() == plain[2]
    assert next(indices, None) is None


def assert_same_choice(chosen):
    (states, dropout), (others, same) = chosen
    torch.testing.assert_close(others, states, atol=1e-4, rtol=1e-4)
    assert same == dropout


def test_stock_s_loop_chooses_the_same(models, chosen):
    target, draft = models
    options = {"input_ids": prompt(30), "assistant_model": draft, "max_new_tokens": 12, "do_sample": False}
    target.generate(lossy_mode="dropmatch", lossy_config={"seed": 0}, **options)
    with hf_lossy_assist.enabled(target), LossyVerification("dropmatch", target, assistant_model=draft, seed=0) as hook:
        target.generate(logits_processor=[hook], **options)
    assert_same_choice(chosen)


@pytest.mark.filterwarnings("error:.*no effect")
@pytest.mark.parametrize(
    ("gamma", "config", "more"),
    [(5, {}, {"cache_implementation": "static"}), (40, {"compile": True}, {})],
    ids=["a static cache, an eager forward over the prompt", "compiled"],
)
def test_other_forwards_see_the_same(models, chosen, gamma, config, more):
    target, draft = models
    options = {
        "assistant_model": draft, "max_new_tokens": 8, "do_sample": False, "lossy_mode": "dropmatch",
        "num_assistant_tokens": gamma, "compile_config": CompileConfig(backend="eager"),
    }  # fmt: skip
    plain = target.generate(prompt(30), lossy_config={"seed": 0}, **options)
    other = target.generate(prompt(30), lossy_config={"seed": 0, **config}, **options, **more)
    assert other.tolist() == plain.tolist()
    assert_same_choice(chosen)


TRANSFORMING = {
    "gemma2": ({"final_logit_softcapping": 2.0}, lambda z: 2.0 * torch.tanh(z / 2.0)),
    "cohere": ({"logit_scale": 0.25}, lambda z: 0.25 * z),
    "granite": ({"logits_scaling": 3.0}, lambda z: z / 3.0),
}


def dropped_logits(model, transform, k=3, rate=0.4, seed=0):
    """Return what the verifier reports, and the same computed by hand, one path and one position at a time."""
    ids, n = prompt(9), 4
    rule = DropMatch(num_paths=k, dropout=rate)
    reader = TargetReader(model, LogitsProcessorList(), rule, do_sample=False, randomness=Randomness(seed))
    with torch.no_grad():
        with reader.hook.over(n):
            outputs = model(input_ids=ids, use_cache=False)
        v = reader.answer(ids, Draft(ids[:, -n:]), *reader.hook.split(outputs.logits, n))
        seen = []
        head = model.get_output_embeddings()
        handle = head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        plain = model(input_ids=ids, use_cache=False).logits
        handle.remove()
        hidden = seen[0][0, -n - 1 : -1]
        masks = Randomness(seed).keep_mask((1, k, n, hidden.shape[-1]), rate, hidden)
        by_hand = torch.stack(
            [torch.stack([transform(head(hidden[i] * masks[0, j, i])) for i in range(n)]) for j in range(k)]
        )
    return v, plain, by_hand


@pytest.mark.parametrize("name", TRANSFORMING)
def test_what_a_model_does_after_its_head_happens_to_every_path(name: str):
    values, transform = TRANSFORMING[name]
    v, plain, by_hand = dropped_logits(made(name, **values).float(), transform)
    torch.testing.assert_close(v.dropped_logits[0], by_hand, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(v.logits, plain[:, -5:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(v.centroid_logits[0], by_hand.mean(0), atol=1e-4, rtol=1e-4)
    assert (by_hand[0] - by_hand[1]).abs().max() > 1e-2, "the paths differ"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dropped_heads_of_every_architecture(architecture: str):
    v, plain, by_hand = dropped_logits(tiny(architecture), lambda z: z)
    torch.testing.assert_close(v.dropped_logits[0], by_hand, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(v.logits, plain[:, -5:], atol=1e-4, rtol=1e-4)
