"""Every study: its examples, its help, and where the README says how it is run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import benchmarks
from benchmarks.tests.running import README, run

MODULES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
APPS = [name for name in MODULES if hasattr(importlib.import_module(f"benchmarks.{name}"), "app")]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str):
    assert doctest.testmod(importlib.import_module(f"benchmarks.{name}")).failed == 0


@pytest.mark.parametrize("name", APPS)
def test_every_command_explains_itself_and_is_documented(name: str):
    assert "Usage" in run(importlib.import_module(f"benchmarks.{name}").app, "--help").stdout
    assert f"python -m benchmarks.{name}" in README.read_text(encoding="utf-8")
