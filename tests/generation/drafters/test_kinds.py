"""Kinds of drafters: each is a file, and a new one gets batches, rules, refusals and statistics for nothing.

Without drafts, the target decodes alone in this package's loop.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

import hf_lossy_assist
from hf_lossy_assist import LossyError, last_stats
from hf_lossy_assist.evaluation.modes import parse_modes
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from hf_lossy_assist.generation.drafters import base
from hf_lossy_assist.generation.drafters.base import KINDS
from hf_lossy_assist.pairs import Pair
from tests.generation.drafters import made_up
from tests.parity import assert_lossless
from tests.tiny_models import ARCHITECTURES, noisy_copy, padded, prompt, tiny

GREEDY = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": None, "return_dict_in_generate": True}
PACKAGE = Path(hf_lossy_assist.__file__).parent
# What stands in a drafter's own file alone.
NAMES = {
    "dflash": ("BlockDrafter", "DFlashConfig", "DFlashRunner"),
    "draft_model": ("RUNS_AHEAD",),
    "eagle3": ("Eagle3Config", "Eagle3Runner"),
    "encoder_decoder": ("encoded_runner",),
    "generators": ("OwnGenerator", "TransformersOwn"),
    "lookup_first": ("LookupFirstDrafter", "Repeats"),
    "mtp": ("Mtp", "MtpNames"),
    "other_tokenizer": ("TranslatedSource", "Translation"),
    "shared_keys": ("SharedKeysRunner", "SharedKeysSource"),
}


@pytest.fixture
def _made_up():
    KINDS.insert(0, made_up.Echo)
    yield
    KINDS.remove(made_up.Echo)


@pytest.mark.usefixtures("_made_up")
@pytest.mark.parametrize("inputs", [{"input_ids": prompt()}, padded()], ids=["one", "batch"])
def test_a_made_up_drafts(inputs: dict):
    assert len(inspect.getsource(made_up).splitlines()) <= 60
    target = tiny()
    _, ours = assert_lossless(target, {"assistant_model": made_up.EchoModel()}, **inputs, **GREEDY)
    assert ours.lossy_stats.drafted > ours.lossy_stats.accepted > 0
    target.generate(**inputs, **GREEDY, assistant_model=made_up.EchoModel(), lossy_mode="topk")
    for config, words in (
        ({"lossy_mode": "fsd"}, "'fsd' needs the draft's distribution, but an echo gives none"),
        ({"lossy_mode": "lossless", "lossy_config": {"tree": {}}}, "`tree` in `lossy_config` is for"),
        ({"lossy_mode": "lossless", "lossy_config": {"stop_drafting": {"by": "acceptance"}}}, "`stop_drafting`"),
    ):
        with pytest.raises(LossyError, match=re.escape(words)):
            target.generate(**inputs, **GREEDY, assistant_model=made_up.EchoModel(), **config)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_is_of_one_kind(kind: type):
    """The order in which kinds are asked changes nothing."""
    target = tiny()
    for options in ({}, {"prompt_lookup_num_tokens": 3}, {"speculation_type": "dflash"}):
        for assistant in (None, noisy_copy(target)):
            asked = base.Asked(target, None, None, assistant, options=options)
            found = {type(x) for each in KINDS if (x := each.chosen(asked)) is not None}
            assert len(found) == (0 if assistant is None and not options else 1)


@pytest.mark.parametrize("drafter", NAMES)
def test_a_drafter_s_names_stand_in_its_own_file_alone(drafter: str):
    for name in NAMES[drafter]:
        own = [path for path in PACKAGE.rglob("*.py") if re.search(rf"\b{name}\b", path.read_text(encoding="utf-8"))]
        shared = "run_ahead.py"  # strategies, which decoding reads, too
        assert {path.name for path in own} - {shared} == {f"{drafter}.py"}, name


FIELDS = {"lossy_mode": "lossless", "num_assistant_tokens": 0}
KWARGS = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


@pytest.mark.parametrize("inputs", [{"inputs": prompt()}, padded()], ids=["one", "batch"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_texts_are_the_target_s_own(architecture, inputs):
    target = tiny(architecture)
    expected = target.generate(**inputs, **KWARGS)
    assert torch.equal(target.generate(**inputs, **KWARGS, **FIELDS), expected)
    stats = last_stats(target)
    assert stats.accepted == stats.drafted == 0
    assert stats.target_calls == 16


def test_neither_a_draft_nor_a_lookup_is_asked():
    target = tiny()
    draft = noisy_copy(target)
    draft.register_forward_pre_hook(lambda *_: pytest.fail("the draft was called"))
    expected = target.generate(prompt(), generation_config=GenerationConfig(**KWARGS))
    config = GenerationConfig(**FIELDS, **KWARGS)
    for drafter in ({"assistant_model": draft}, {"prompt_lookup_num_tokens": 4}, {}):
        assert torch.equal(target.generate(prompt(), generation_config=config, **drafter), expected)


def test_it_is_a_mode_of_evaluations():
    target = tiny()
    models = Pair(target, None)
    modes = parse_modes("plain,lossless@0")
    for mode in modes:
        mode.check_draft(model=False, lookup=False)
    (batch,) = batches_of([prompt()[0].tolist()])
    plain, own = (run_request(models, mode, batch, 12) for mode in modes)
    assert torch.equal(plain.rows[0], own.rows[0])
    assert own.work == [(12, 0, 0)]
    assert own.drafted == [0]
