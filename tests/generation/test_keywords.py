"""The types of keywords name what the code takes."""

from __future__ import annotations

from typing import get_args, get_type_hints

from hf_lossy_assist import acceptors
from hf_lossy_assist.generation.config import FIELDS
from hf_lossy_assist.generation.drafter_choice import DRAFTING
from hf_lossy_assist.generation.enabling import LossyKeywords, enable, enabled
from hf_lossy_assist.generation.spelling import LossyMode


def test_every_rule_of_the_package_is_named():
    own = [name for name, rule in acceptors.REGISTRY.items() if rule.__module__.startswith("hf_lossy_assist.")]
    assert sorted(get_args(LossyMode)) == sorted(own)


def test_every_keyword_is_named():
    assert {*LossyKeywords.__annotations__} == {*FIELDS, *DRAFTING}
    for function in (enable, enabled):
        assert get_args(get_type_hints(function)["defaults"]) == (LossyKeywords,)
