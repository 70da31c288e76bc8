"""Kinds of drafters: each is a file, and a new one gets batches, rules, refusals and statistics for nothing."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import hf_lossy_assist
from hf_lossy_assist import LossyError
from hf_lossy_assist.generation import kinds
from hf_lossy_assist.generation.kinds import KINDS
from tests.generation import made_up_kind
from tests.parity import assert_lossless
from tests.tiny_models import noisy_copy, padded, prompt, tiny

GREEDY = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": None, "return_dict_in_generate": True}
PACKAGE = Path(hf_lossy_assist.__file__).parent
# Classes that draft, by the file of their kind.
NAMES = {
    "dflash": ("BlockDrafter", "DFlashRunner"),
    "draft_model": ("RUNS_AHEAD",),
    "eagle3": ("Eagle3Runner",),
    "encoder_decoder": ("encoded_runner",),
    "generators": ("PerRowDrafter",),
    "lookup_first": ("LookupFirstDrafter",),
    "mtp": ("mtp_of",),
    "other_tokenizer": ("TranslatedSource",),
    "shared_keys": ("SharedKeysSource",),
}


@pytest.fixture
def _made_up():
    KINDS.insert(0, made_up_kind.Echo)
    yield
    KINDS.remove(made_up_kind.Echo)


@pytest.mark.usefixtures("_made_up")
@pytest.mark.parametrize("inputs", [{"input_ids": prompt()}, padded()], ids=["one", "batch"])
def test_a_made_up_kind_drafts(inputs: dict):
    assert len(inspect.getsource(made_up_kind).splitlines()) <= 60
    target = tiny()
    _, ours = assert_lossless(target, {"assistant_model": made_up_kind.EchoModel()}, **inputs, **GREEDY)
    assert ours.lossy_stats.drafted > ours.lossy_stats.accepted > 0
    target.generate(**inputs, **GREEDY, assistant_model=made_up_kind.EchoModel(), lossy_mode="topk")
    for config, words in (
        ({"lossy_mode": "fsd"}, "'fsd' needs the draft's distribution, but an echo gives none"),
        ({"lossy_mode": "lossless", "lossy_config": {"tree": {}}}, "`tree` in `lossy_config` is for"),
        ({"lossy_mode": "lossless", "lossy_config": {"stop_drafting": {"by": "acceptance"}}}, "`stop_drafting`"),
    ):
        with pytest.raises(LossyError, match=re.escape(words)):
            target.generate(**inputs, **GREEDY, assistant_model=made_up_kind.EchoModel(), **config)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_is_of_one_kind(kind: type):
    """The order in which kinds are asked changes nothing."""
    target = tiny()
    for options in ({}, {"prompt_lookup_num_tokens": 3}, {"speculation_type": "dflash"}):
        for assistant in (None, noisy_copy(target)):
            asked = kinds.Asked(target, assistant, options=options)
            found = {type(x) for each in KINDS if (x := each.chosen(asked)) is not None}
            assert len(found) == (0 if assistant is None and not options else 1)


@pytest.mark.parametrize("kind", NAMES)
def test_a_kind_s_name_stands_in_its_own_file_alone(kind: str):
    for name in NAMES[kind]:
        own = [path for path in PACKAGE.rglob("*.py") if re.search(rf"\b{name}\b", path.read_text())]
        rooms = {path.relative_to(PACKAGE).parts[0] for path in own}
        assert [path.name for path in own if "generation" in path.parts] == [f"{kind}.py"], name
        assert not rooms & {"decoding", "models", "acceptors", "core", "heads", "compat"}, name
