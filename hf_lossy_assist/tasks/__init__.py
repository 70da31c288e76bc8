"""Tasks: prompts, and a check of the answers; the package's by name, and a user's own by dotted path."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from ..errors import LossyValueError, nearest
from ..values import json_or_text
from .arithmetic import Arithmetic
from .task import Example, Task

__all__ = ["Arithmetic", "Example", "Task", "load"]

# Imported on request: most callers need one.
SHIPPED = {
    "arithmetic": f"{__name__}.arithmetic:Arithmetic",
    "gsm8k": f"{__name__}.gsm8k:GSM8K",
    "code": f"{__name__}.code:Code",
    "prompts": f"{__name__}.prompts:Prompts",
    "refusals": f"{__name__}.refusals:Refusals",
}
_TEXT = ("str", "str | None", str, str | None)


def load(task: str, data: str | None = None, **options: Any) -> Task:
    """Return a task by name or by dotted path.

    Parameters
    ----------
    task
        A task of the package, or ``"package.module:Name"``: your own subclass of :class:`Task`, or a function that
        returns a task. The current directory is searched too.
    data
        The task's argument ``data``, if given.
    **options
        Further arguments of the task. A string is read as JSON if it is JSON (``"3"``, ``"true"``, ``"[1, 2]"``) and
        the parameter is not annotated as a string.

    Raises
    ------
    LossyValueError
        If there is no such task, or it does not take an argument.

    Examples
    --------
    >>> load("arithmetic", seed="3").seed
    3
    >>> load("hf_lossy_assist.tasks.arithmetic:Arithmetic").name
    'arithmetic'
    """
    path = SHIPPED.get(task, task)
    if not all(path.partition(":")):
        raise LossyValueError(
            f"`task` has to be one of {sorted(SHIPPED)} or a dotted path 'package.module:Name', but is {task!r}"
            f"{nearest(task, SHIPPED)}"
        )
    factory = find(path, "task")
    given = options if data is None else {"data": data, **options}
    made = factory(**_typed(factory, given, task))
    if not isinstance(made, Task):
        raise LossyValueError(
            f"`task` has to name a subclass of hf_lossy_assist.tasks.Task or a function that returns one, but {task!r} "
            f"gives a {type(made).__name__}"
        )
    return made


def find(path: str, argument: str) -> Callable[..., Any]:
    """Return what ``package.module:Name`` names, also in the current directory; ``argument`` has it."""
    module_name, _, attribute = path.partition(":")
    if not {"", os.getcwd()} & set(sys.path):
        # Unlike `python -m`, a console script does not search the current directory.
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        raise LossyValueError(f"`{argument}` has {path!r}, but importing {module_name!r} failed: {error}") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        missing = "has no" if factory is None else "has, but can't call,"
        raise LossyValueError(f"`{argument}` has {path!r}, but the module {module_name!r} {missing} {attribute!r}")
    return factory


def _typed(factory: Callable[..., Any], options: dict[str, Any], task: str) -> dict[str, Any]:
    signature = inspect.signature(factory)
    try:
        signature.bind(**options)
    except TypeError as error:
        takes = ", ".join(f"`{name}`" for name in signature.parameters) or "no options"
        raise LossyValueError(f"the task {task!r} takes {takes}, but {error}") from error
    texts = [name for name, parameter in signature.parameters.items() if parameter.annotation in _TEXT]
    said = {name: value for name, value in options.items() if isinstance(value, str) and name not in texts}
    return options | {name: json_or_text(text) for name, text in said.items()}
