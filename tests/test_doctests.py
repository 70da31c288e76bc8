"""Every example in a docstring runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import hf_lossy_assist

# These need no import here, or an environment with vLLM.
ELSEWHERE = ("__main__", ".vllm.inside.")
MODULES = [
    m.name
    for m in pkgutil.walk_packages(hf_lossy_assist.__path__, "hf_lossy_assist.")
    if not any(name in m.name for name in ELSEWHERE)
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str):
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0
