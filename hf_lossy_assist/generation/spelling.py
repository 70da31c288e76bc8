"""How commands, harnesses and engines write a mode: rules, draft length and settings in one text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import LossyValueError, brief
from ..values import json_or_text

LossyMode = Literal[
    "lossless", "dropmatch", "ears", "topk", "typical", "relaxed", "ensemble", "thresholds", "near_top", "lenience",
    "fsd", "fly", "cactus", "margin", "regret", "judge", "sprinter", "min_p",
]  # fmt: skip
"""The rules of this package."""

FORM = "RULE[+RULE…][@GAMMA][:KEY=VALUE…]"

OWN_RULE = re.compile(r"([\w.]+):([A-Za-z_]\w*)(?=[@:+^]|$)")
"""A user's own rule in a mode, ``package.module:Rule``."""

LONGEST = 1 << 14
"""Characters of a text that is read as modes, far above any that makes sense."""

_SIGNS = re.compile(r'"(?:\\.|[^"\\])*"?|[][{},:]', re.DOTALL)
_BARE = re.compile(r"[\w./@%+*-]+")


@dataclass(frozen=True)
class Spelling:
    """A mode in one text, :data:`FORM`: the fields of ``generate()`` that it stands for.

    ``+`` joins rules of which any may keep a token, and ``^`` rules that all have to. Among several rules, a rule's own
    key follows its name and a dot. A value is JSON, or else a text.

    Examples
    --------
    >>> Spelling.read("judge+topk@8:topk.k=3:seed=0")
    Spelling(mode=['judge', 'topk'], config={'topk': {'k': 3}, 'seed': 0}, gamma=8)
    >>> str(Spelling({"all_of": ["topk", "typical"]}, {"tree": {"depth": 3}}))
    'topk^typical:tree.depth=3'
    """

    mode: str | list[str] | dict[str, list[str]]  # `lossy_mode`
    config: Mapping[str, Any] = field(default_factory=dict)  # `lossy_config`
    gamma: int | str | None = None  # `num_assistant_tokens`

    @classmethod
    def read(cls, text: str, argument: str = "lossy_mode") -> Spelling:
        """Read one mode. Rules and keys are not looked up yet; ``argument`` is the option or field that has the text.

        Raises
        ------
        LossyValueError
            For several modes, a bad setting or a bad draft length.
        """
        if len(parts := split(text, ",")) > 1:
            rules = [part.strip() for part in parts]
            instead = f"; write `{'+'.join(rules)}`" if all(map(str.isidentifier, rules)) else ""
            raise LossyValueError(f"`{argument}` has to be one mode, {FORM}, but is {brief(text)}{instead}")
        head, *settings = split(text, ":")
        names, at, gamma = head.strip().partition("@")
        mode: Any = names
        for sign in ("+", "^"):
            if sign in names:
                mode = names.split(sign)
        if "^" in names:
            mode = {"all_of": mode}
        return cls(mode, read_settings(settings, argument), read_gamma(gamma, argument) if at else None)

    @property
    def names(self) -> list[str]:
        """The rules' names."""
        named = self.mode["all_of"] if isinstance(self.mode, Mapping) else self.mode
        return [named] if isinstance(named, str) else list(named)

    def __str__(self) -> str:
        together = "^" if isinstance(self.mode, Mapping) else "+"
        items = [
            (f"{key}.{part}" if part else key, value)
            for key, parts in self.config.items()
            for part, value in (parts.items() if isinstance(parts, Mapping) else [("", parts)])
        ]
        at = "" if self.gamma is None else f"@{self.gamma}"
        return ":".join([together.join(self.names) + at, *(f"{key}={_written(value)}" for key, value in items)])


def spelt(mode: Any, config: Any, argument: str) -> tuple[Any, Any]:
    """Return ``lossy_mode`` and ``lossy_config`` of a mode that may be one text; other modes stay as they are.

    Raises
    ------
    LossyValueError
        For a draft length, which is not for the mode to say here, and for settings that are given twice.
    """
    if not isinstance(mode, str):
        return mode, config
    spelling = Spelling.read(mode, argument)
    if spelling.gamma is not None:
        raise LossyValueError(f"`{argument}` can't have a draft length here, but is {brief(mode)}; leave out the @")
    if not spelling.config or not isinstance(config, Mapping):
        return spelling.mode, config if config is not None else spelling.config or None
    if twice := spelling.config.keys() & config.keys():
        both = f"`{argument}` {brief(mode)} and its settings both have {brief(min(twice))}"
        raise LossyValueError(f"{both}; leave out either")
    return spelling.mode, {**spelling.config, **config}


def split(text: str, separator: str) -> list[str]:
    """Split a text at commas or colons outside JSON's strings, lists and dicts.

    Examples
    --------
    >>> split('topk:k=3,topk:tree={"depth": 3, "top_k": 2}', ",")
    ['topk:k=3', 'topk:tree={"depth": 3, "top_k": 2}']
    """
    if len(text) > LONGEST:
        raise LossyValueError(f"a mode has to have at most {LONGEST:,} characters, but {brief(text)} has {len(text):,}")
    ends, depth = [-1], 0
    for sign in _SIGNS.finditer(text):
        depth += (sign[0] in "[{") - (sign[0] in "]}")
        if sign[0] == separator and depth == 0:
            ends.append(sign.start())
    return [text[start + 1 : end] for start, end in zip(ends, [*ends[1:], len(text)], strict=True)]


def read_settings(items: Iterable[str], argument: str) -> dict[str, Any]:
    """Turn ``KEY=VALUE`` and ``RULE.KEY=VALUE`` into a ``lossy_config``; a value that is not JSON is a text.

    Examples
    --------
    >>> read_settings(["beta=0.2", "criterion=naive", "topk.k=2"], "modes")
    {'beta': 0.2, 'criterion': 'naive', 'topk': {'k': 2}}
    """
    found: dict[str, Any] = {}
    for item in items:
        path, equals, value = item.partition("=")
        *rule, key = path.split(".")
        settings = found.setdefault(rule[0], {}) if len(rule) == 1 else found
        if not equals or not key or len(rule) > 1 or not isinstance(settings, dict) or key in settings:
            form = "settings KEY=VALUE or RULE.KEY=VALUE, each once"
            raise LossyValueError(f"`{argument}` has to have {form}, but has {brief(item)}")
        settings[key] = json_or_text(value)
    return found


def read_gamma(text: str, argument: str) -> int | str:
    """Read a draft length: a number of tokens, or ``auto``; with 0, the target decodes alone."""
    if text == "auto":
        return text
    if re.fullmatch("[0-9]{1,18}", text) is None:
        raise LossyValueError(f"`{argument}` has to have a γ >= 0 and < 10**18 or 'auto', but has {brief(text)}")
    return int(text)


def _written(value: Any) -> str:
    bare = isinstance(value, str) and _BARE.fullmatch(value) and json_or_text(value) == value
    return value if bare else json.dumps(value, ensure_ascii=False)
