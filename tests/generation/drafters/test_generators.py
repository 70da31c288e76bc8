"""transformers' own drafters, which read the target's states."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor, TopKLogitsWarper
from transformers.modeling_layers import MtpModel

from hf_lossy_assist import LossyError
from hf_lossy_assist.acceptors import Lossless
from hf_lossy_assist.generation.drafters.generators import GeneratorDrafter
from tests.acceptors.fixtures import P, Repeating, assert_second_token_has_the_law, chi_square_p
from tests.architectures import made
from tests.dflash_heads import muse
from tests.parity import assert_lossless
from tests.tiny_models import VOCAB, constant, padded, prompt, tiny

GREEDY = {"do_sample": False, "max_new_tokens": 30, "eos_token_id": None, "return_dict_in_generate": True}


def multi_token(monkeypatch, layers: int):
    """Return a tiny model with multi-token prediction; its weights would be in the checkpoint."""
    target = made("deepseek_v3", num_mtp_layers=layers).float()

    @functools.cache  # every call and row asks for it
    def mtp(main_model):
        with torch.random.fork_rng(devices=[]), torch.no_grad():  # the drafter's own draws go on
            torch.manual_seed(1)
            model = MtpModel(main_model, layers).eval()
            for parameter in model.layers.parameters():
                parameter.normal_(std=0.2) if parameter.dim() > 1 else parameter.fill_(1)
        return model

    monkeypatch.setattr(MtpModel, "from_pretrained", lambda main_model, device_map=None: mtp(main_model))
    return target


@pytest.fixture(params=["mtp-2", "dflash"])
def drafted(request, monkeypatch):
    """Return a target, and the keywords that have it drafted for."""
    if request.param == "dflash":
        return tiny("llama"), {"assistant_model": muse(), "speculation_type": "dflash"}
    return multi_token(monkeypatch, int(request.param[-1])), {"use_mtp": True}


@pytest.mark.parametrize("asked", [False, True])
def test_lossless_parity(drafted, asked: bool):
    target, keywords = drafted
    kwargs = GREEDY | {"input_ids": prompt(), "output_hidden_states": asked}
    plain, ours = assert_lossless(target, keywords, **kwargs)
    assert ours.lossy_stats.drafted > 20
    if asked:
        for a, b in zip(plain.hidden_states, ours.hidden_states, strict=True):
            torch.testing.assert_close(a[-1], b[-1], atol=1e-4, rtol=1e-4)


def test_sampling_has_the_target_s_law(drafted):
    """Of 200 texts: p > 1e-5 catches a law that is off by 0.2 anywhere."""
    assert_second_token_has_the_law(*drafted, 2.0, rows=200)


def test_rows_of_a_batch_are_decoded_one_by_one(drafted):
    target, keywords = drafted
    inputs = padded()
    _, ours = assert_lossless(target, keywords, **GREEDY, **inputs, output_scores=True)
    assert len(ours.lossy_stats.rows) == 4
    assert ours.lossy_stats.target_calls == ours.lossy_stats.rounds
    assert len(ours.scores) == 30
    assert ours.scores[0].shape == (4, VOCAB)


def test_processors_see_the_whole_batch_only_where_they_may_tell_rows_apart(drafted, monkeypatch):
    target, keywords = drafted
    seen: Counter[type] = Counter()
    tell_apart: list[bool] = []  # older penalties do not know each row's padding

    def counting(kind):
        call = kind.__call__

        def counted(self, input_ids, scores):
            seen[kind] += len(scores)
            tell_apart.append(isinstance(getattr(self, "prompt_ignore_length", None), torch.Tensor))
            return call(self, input_ids, scores)

        monkeypatch.setattr(kind, "__call__", counted)

    for kind in (TopKLogitsWarper, RepetitionPenaltyLogitsProcessor):
        counting(kind)
    kwargs = GREEDY | padded() | {"do_sample": True, "top_k": 5, "max_new_tokens": 6, "lossy_mode": "lossless"}
    texts = []
    for asked in ({}, {"repetition_penalty": 1 + 1e-9}):  # which counts the prompts' padding, and changes nothing here
        seen.clear()
        torch.manual_seed(0)  # for drafters that draw by themselves
        texts.append(target.generate(**kwargs, **keywords, **asked, lossy_config={"seed": 0}).sequences.tolist())
    whole, alone = seen[RepetitionPenaltyLogitsProcessor], seen[TopKLogitsWarper]
    assert 0 < 3 * alone < whole if any(tell_apart) else 0 < alone == whole
    assert texts[0] == texts[1]


def test_a_row_s_law_does_not_depend_on_what_other_rows_drafters_report():
    drafters = iter([Repeating(1, reports=True), Repeating(0)])
    ids = torch.ones(2, 1, dtype=torch.long)
    out = constant(P).generate(
        ids, attention_mask=ids, candidate_generator=lambda **context: next(drafters), lossy_mode="lossless",
        lossy_config={"seed": 0}, do_sample=True, top_k=0, max_new_tokens=1500,
    )  # fmt: skip
    for row in out[:, 1:].numpy():
        assert chi_square_p(np.bincount(row, minlength=len(P)), np.array(P)) > 1e-5


class Telling(Repeating):
    """Has attributes of its own, which are no part of the contract."""

    calls, tokens = 7, 7
    hidden = torch.ones(1, 9, 16)


class ReadsQ(Lossless):
    needs = frozenset({"draft_probs"})


def test_what_a_user_s_generator_happens_to_hold_is_not_believed():
    ids = torch.ones(1, 1, dtype=torch.long)
    out = constant(P).generate(
        ids, attention_mask=ids, candidate_generator=Telling(0), lossy_mode="lossless", max_new_tokens=5,
        return_dict_in_generate=True,
    )  # fmt: skip
    assert out.lossy_stats.drafted > 0
    assert (out.lossy_stats.draft_calls, out.lossy_stats.draft_tokens) == (0, 0)
    drafter = GeneratorDrafter(Telling(0), ReadsQ(), {})
    with pytest.raises(LossyError, match=r"needs the draft's distribution, but .*Telling gives none"):
        drafter.ask(ids, 4)
