"""From the plain fields of a ``GenerationConfig`` to a rule and the settings of a run."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from .acceptors import REGISTRY, Acceptor, AllOf, AnyOf
from .errors import LossyUnsupportedError, LossyValueError

FIELDS = ("lossy_mode", "lossy_config", "lossy_head")
"""The fields that may stand in a ``GenerationConfig`` or be given to ``generate()``."""

LATER_KEYS = ("strict_first_n", "scope", "budget", "compile", "break_even")


@dataclass(frozen=True)
class RunConfig:
    """What the lossy fields of one call mean.

    Attributes
    ----------
    acceptor
        The rule.
    seed
        Seed of the run's own random generators, or None for torch's global one.
    require_lossless
        Refuse to run where the rule could change the output's law.
    """

    acceptor: Acceptor
    seed: int | None = None
    require_lossless: bool = False


def parse(mode: Any, config: Any = None, head: Any = None) -> RunConfig:
    """Turn ``lossy_mode``, ``lossy_config`` and ``lossy_head`` into a rule and run settings.

    Parameters
    ----------
    mode
        A rule's name, a list of names (a token is kept if any rule keeps it), or ``{"all_of": [names]}``.
    config
        The rule's settings, or for several rules a dict of them by name; the run's own keys beside them.
    head
        A head's id or folder, for rules that use one.

    Raises
    ------
    LossyValueError
        For an unknown mode or key, a wrong type, or a value out of range.

    Examples
    --------
    >>> parse("ears", {"beta": 0.2, "seed": 0})
    RunConfig(acceptor=Ears(beta=0.2), seed=0, require_lossless=False)
    """
    names, compose = _names(mode)
    settings = _as_dict("lossy_config", config)
    if head is not None:
        raise LossyValueError(f"`lossy_head` is not used by `lossy_mode` {mode!r}; leave it out, but got {head!r}")
    for key in LATER_KEYS:
        if settings.pop(key, None) is not None:
            raise LossyUnsupportedError(f"`lossy_config` key {key!r} is not supported yet; leave it out")
    require_lossless = settings.pop("require_lossless", False)
    if not isinstance(require_lossless, bool):
        raise LossyValueError(f"`require_lossless` in `lossy_config` has to be a bool, but is {require_lossless!r}")
    seed = settings.pop("seed", None)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
        raise LossyValueError(f"`seed` in `lossy_config` has to be an int >= 0 and < 2**63, but is {seed!r}")
    per_rule = {names[0]: settings} if compose is None else settings
    unknown = [key for key in per_rule if key not in names]
    if unknown:
        raise LossyValueError(
            f"`lossy_config` for several rules is keyed by rule, one of {names}, but has the key {unknown[0]!r}"
            + nearest(unknown[0], names)
        )
    rules = tuple(build_rule(name, _as_dict(f"lossy_config[{name!r}]", per_rule.get(name))) for name in names)
    acceptor = rules[0] if compose is None else compose(rules)
    return RunConfig(acceptor, seed, require_lossless)


def build_rule(name: str, settings: Mapping[str, Any]) -> Acceptor:
    """Build one rule from its name and settings, with errors that name both."""
    rule = REGISTRY[name]
    keys = [field.name for field in fields(rule)]
    for key in settings:
        if key not in keys:
            raise LossyValueError(
                f"`lossy_config` key {key!r} is unknown to the rule {name!r}, which has "
                f"{keys or 'no keys of its own'}{nearest(key, keys)}"
            )
    return rule(**settings)


def nearest(value: Any, names: Iterable[str]) -> str:
    """Return ``"; did you mean 'name'?"`` for the most similar name, or an empty string."""
    close = difflib.get_close_matches(str(value), list(names), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _names(mode: Any) -> tuple[list[str], type[AnyOf] | type[AllOf] | None]:
    compose = AnyOf if isinstance(mode, list | tuple) else None
    names = list(mode) if compose else [mode]
    if isinstance(mode, dict):
        if list(mode) != ["all_of"] or not isinstance(mode["all_of"], list | tuple):
            raise LossyValueError(f"`lossy_mode` as a dict has to be {{'all_of': [modes]}}, but is {mode!r}")
        names, compose = list(mode["all_of"]), AllOf
    if not names:
        raise LossyValueError(f"`lossy_mode` has to name at least one rule, but is {mode!r}")
    for name in names:
        if not isinstance(name, str):
            raise LossyValueError(
                f"`lossy_mode` has to be a str, a list of str, or {{'all_of': [str]}}, but is {mode!r}"
            )
        if name not in REGISTRY:
            raise LossyValueError(
                f"`lossy_mode` has to be one of {list(REGISTRY)}, but is {name!r}{nearest(name, REGISTRY)}"
            )
    if len(set(names)) < len(names):
        raise LossyValueError(f"`lossy_mode` has to name every rule once, but is {mode!r}")
    return names, compose


def _as_dict(argument: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise LossyValueError(f"`{argument}` has to be a dict, but is {value!r}")
    return dict(value)
