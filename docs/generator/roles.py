"""Turns the Sphinx roles of docstrings into code, since the site's generator does not know them."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":\w+:`(~?)([\w.]+)`")


def linked(text: str) -> str:
    """Return a docstring in which each role is code.

    Examples
    --------
    >>> linked("Raises :class:`~hf_lossy_assist.LossyError`, see :func:`decide`.")
    'Raises `LossyError`, see `decide`.'
    """
    return _ROLE.sub(lambda role: f"`{role[2].rpartition('.')[2] if role[1] else role[2]}`", text)


class Roles(griffe.Extension):
    """Reads roles in every docstring."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = linked(obj.docstring.value)
