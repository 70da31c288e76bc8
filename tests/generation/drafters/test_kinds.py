"""Kinds of drafters: each is a file, and a new one gets batches, rules, refusals and statistics for nothing."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import hf_lossy_assist
from hf_lossy_assist import LossyError
from hf_lossy_assist.generation.drafters import base
from hf_lossy_assist.generation.drafters.base import KINDS
from tests.generation.drafters import made_up
from tests.parity import assert_lossless
from tests.tiny_models import noisy_copy, padded, prompt, tiny

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
