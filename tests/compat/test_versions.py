"""Only `compat` knows versions of transformers and names that transformers keeps to itself, or is about to remove."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import DynamicCache
from transformers.utils import logging as their_logging

import hf_lossy_assist
from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.integrations.transformers_loop import LossyVerification
from tests.acceptors.fixtures import verifier_head
from tests.tiny_models import noisy_copy, padded, prompt, tiny

PACKAGE = Path(hf_lossy_assist.__file__).parent
SOURCES = [
    path
    for folder in (PACKAGE, PACKAGE.parent / "examples")
    for path in folder.rglob("*.py")
    if not {PACKAGE / "compat", PACKAGE / "integrations" / "vllm" / "inside"} & set(path.parents)  # vLLM's, too
]
ASKED = re.compile(r"""(?:get|has|set|del)attr\([^,]+, ["']_[a-z]|version\(["'](?:transformers|peft|accelerate)""")


def test_nothing_asks_for_private_names_or_versions_by_text():
    """Ruff finds the other ways: see pyproject.toml."""
    assert len(SOURCES) > 100
    assert not {path: found for path in SOURCES if (found := ASKED.findall(path.read_text(encoding="utf-8")))}
    for text in ("getattr(config, '_commit_hash', None)", 'metadata.version("transformers")'):
        assert ASKED.search(text)


TARGET = tiny()
DRAFT = noisy_copy(TARGET, 0.05)
ONE, DRAFTED = {"input_ids": prompt(), "lossy_mode": "topk"}, {"assistant_model": DRAFT}
CALLS = {
    "chain": ONE | DRAFTED,
    "sampled": ONE | DRAFTED | {"do_sample": True, "temperature": 0.8, "top_k": 5},
    "batch": {**padded(), "lossy_mode": "lossless"} | DRAFTED,
    "tree": ONE | DRAFTED | {"lossy_config": {"tree": {"depth": 3, "top_k": 2, "nodes": 4}}},
    "look-up": ONE | {"prompt_lookup_num_tokens": 3},
    "static cache": ONE | DRAFTED | {"cache_implementation": "static"},
    "a cache of the caller's": ONE | DRAFTED | {CACHE: DynamicCache(config=TARGET.config)},
    "dropped heads": ONE | DRAFTED | {"lossy_mode": "dropmatch"},
    "sprinter": ONE | DRAFTED | {"lossy_mode": "sprinter", "lossy_head": verifier_head(TARGET, DRAFT)},
    "all outputs": ONE | DRAFTED | {"return_dict_in_generate": True, "output_scores": True, "output_attentions": True},
    "transformers' loop": {"input_ids": prompt()} | DRAFTED,
}


def warned_of(call: Callable[[], Any]) -> list[str]:
    """Return what transformers says of deprecated names, in warnings and in its log."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = their_logging.get_logger("transformers")
    their_logging.warning_once.cache_clear()  # said once in a process
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
    finally:
        logger.removeHandler(handler)
    said = [*lines, *(str(each.message) for each in caught)]
    return [line for line in said if "deprecat" in line.lower() or "will be removed" in line]


@pytest.mark.parametrize("name", CALLS)
def test_no_call_uses_what_transformers_is_about_to_remove(name: str):
    kwargs = {"max_new_tokens": 8, "do_sample": False} | CALLS[name]
    if name == "transformers' loop":
        with LossyVerification("topk", TARGET, assistant_model=DRAFT) as hook:
            assert warned_of(lambda: TARGET.generate(**kwargs, logits_processor=[hook])) == []
    else:
        assert warned_of(lambda: TARGET.generate(**kwargs)) == []


def test_a_deprecated_name_would_be_found():
    if CACHE == "past_key_values":
        pytest.skip("this version's own name")
    cache = DynamicCache(config=TARGET.config)
    assert warned_of(lambda: TARGET(prompt(), past_key_values=cache))
