"""Everything public says what it is, and the examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import hf_lossy_assist
from docs.generator.tables import MODULES

# These need no import here, or an environment with vLLM.
ELSEWHERE = ("__main__", ".vllm.inside.")
WITH_EXAMPLES = [
    m.name
    for m in pkgutil.walk_packages(hf_lossy_assist.__path__, "hf_lossy_assist.")
    if not any(name in m.name for name in ELSEWHERE)
]


def public() -> Iterator[Any]:
    """Yield the modules, classes and functions that the reference shows."""
    modules = [importlib.import_module(f"{hf_lossy_assist.__name__}.{name}") for name in MODULES]
    yield from [hf_lossy_assist, *modules]
    yield from (getattr(hf_lossy_assist, name) for name in hf_lossy_assist.__all__ if name not in MODULES)
    for module in modules:
        own = (value for name, value in vars(module).items() if not name.startswith("_"))
        own = (value for value in own if inspect.isclass(value) or inspect.isfunction(value))
        yield from (value for value in own if value.__module__.startswith(module.__name__))


def members(owner: ModuleType | type) -> Iterator[tuple[str, Any]]:
    """Yield the public classes, functions, methods and properties that ``owner`` itself defines."""
    module = owner if isinstance(owner, ModuleType) else inspect.getmodule(owner)
    for name, value in vars(owner).items():
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        function = inspect.unwrap(getattr(function, "fget", None) or getattr(function, "func", None) or function)
        is_ours = getattr(function, "__module__", None) == module.__name__
        is_code = inspect.isclass(function) or (inspect.isfunction(function) and function.__name__ != "<lambda>")
        if not name.startswith("_") and is_ours and is_code:
            yield name, function


def undocumented(owner: Any) -> Iterator[str]:
    """Name every public thing in ``owner`` without documentation; one that overrides another inherits the other's."""
    if not owner.__doc__ or _made_by_dataclass(owner):
        yield _place(owner, owner)
    for name, value in members(owner):
        if inspect.isclass(value):
            yield from undocumented(value)
        elif not inspect.getdoc(getattr(owner, name)) and not inspect.getdoc(value):
            yield _place(owner, value)


def _made_by_dataclass(owner: Any) -> bool:
    return inspect.isclass(owner) and owner.__doc__.startswith(f"{owner.__name__}(")


def _place(owner: Any, thing: Any) -> str:
    if isinstance(thing, ModuleType):
        return f"{thing.__file__}: the module"
    return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]}: {thing.__qualname__}"


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name: str):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_everything_public_is_documented():
    assert not [place for owner in public() for place in undocumented(owner)]


def test_the_test_would_find_them():
    documented = ModuleType(__name__, "Some module.")
    documented.__file__ = __file__
    assert not list(undocumented(documented))
    documented.Silent = Silent
    assert [place.split(": ")[1] for place in undocumented(documented)] == ["Silent", "Silent.method", "Silent.value"]


class Silent:
    def method(self) -> None:
        pass

    @property
    def value(self) -> None:
        pass
