"""Turns the plain fields of a ``GenerationConfig`` into a rule and the settings of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from ..acceptors import REGISTRY, Acceptor, AllOf, AnyOf, head_type, place_rule_head, settings_of
from ..core.limits import Limits
from ..drafting.draft_stop import STOPS, AcceptanceStop, DraftStop
from ..drafting.tree_config import DrawnTreeConfig, TreeConfig
from ..errors import LossyValueError, nearest
from ..gone import check_gone, check_name
from ..heads import Head, VerifierHead, place_head
from .certificate import Certificate, certificate_folder

FIELDS = ("lossy_mode", "lossy_config", "lossy_head")
"""The fields that may stand in a ``GenerationConfig`` or be given to ``generate()``."""

_LIMITS = tuple(x.name for x in fields(Limits))
RUN_KEYS = (
    "seed", "require_lossless", "break_even", "compile", "tree", "stop_drafting", "certificate", "inspect", *_LIMITS,
)  # fmt: skip
"""The keys of ``lossy_config`` that every rule has."""


KEY = "key of `lossy_config`"
"""The kind of a removed key."""


@dataclass(frozen=True)
class RunConfig:
    """The meaning of one call's lossy fields."""

    acceptor: Acceptor
    seed: int | None = None  # of the run's own random generators; None for torch's global one
    require_lossless: bool = False  # refuse to run where the rule could change the output's distribution
    limits: Limits = field(default_factory=Limits)  # where the run may be lossy
    # Decode calls plainly where earlier calls have shown that drafting is slower. A text then depends on earlier calls,
    # so a seed turns this off unless it is asked for.
    break_even: bool = True
    compile: bool | None = None  # decode on static caches in compiled forwards; None where `generate()` itself would
    tree: TreeConfig | DrawnTreeConfig | None = None  # None for chains
    stop_drafting: DraftStop | None = None  # ends a round's draft early
    certificate: Certificate | None = None  # refuse to run with anything but the certified setting and models
    inspect: bool = False  # record the probabilities of every token

    @property
    def default_stop(self) -> DraftStop | None:
        """Ends drafts where the user says nothing about their length; None where the run has no such drafts."""
        if self.tree is not None or self.acceptor.unverified_drafting is not None:
            return None
        return AcceptanceStop(1 - self.acceptor.drafts_until)


def parse(mode: Any, config: Any = None, head: Any = None, *, device: torch.device | str = "cpu") -> RunConfig:
    """Turn ``lossy_mode``, ``lossy_config`` and ``lossy_head`` into a rule and run settings.

    ``mode`` is a rule's name, a list of names (a token is kept if any rule keeps it), or ``{"all_of": [names]}``. A
    rule with its settings, such as ``TopK(k=3)``, may replace a name. ``config`` has the rule's settings, or for
    several rules a dict of them by name; the run's own keys stand beside them. ``head`` is a Hub id (``"org/name"``,
    ``"org/name@revision"``), a folder or a loaded head, or for several rules with heads a dict of them by name. Heads
    are placed on ``device``.

    Examples
    --------
    >>> parse("ears", {"beta": 0.2, "seed": 0}).acceptor
    Ears(beta=0.2)
    """
    mode, config, head = lossy_fields(mode, config, head).values()
    names, compose = _names(mode)
    settings = _as_dict("lossy_config", config)
    certificate, certified_heads = _certificate(settings.pop("certificate", None))
    if head is None:
        head = {name: certified_heads[name] for name in names if name in certified_heads} or None
    heads = _heads(names, head)
    require_lossless = _switch(settings, "require_lossless", False)
    seed = settings.pop("seed", None)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
        raise LossyValueError(f"`seed` in `lossy_config` has to be an int >= 0 and < 2**63, but is {seed!r}")
    break_even = _switch(settings, "break_even", seed is None)
    compiled = _switch(settings, "compile", None)
    tree = _tree(settings.pop("tree", None))
    stop = _stop(settings.pop("stop_drafting", None), device)
    inspect = _switch(settings, "inspect", False)
    limits = Limits(**{key: value for key in _LIMITS if (value := settings.pop(key, None)) is not None})
    per_rule = {names[0]: settings} if compose is None else settings
    unknown = [key for key in per_rule if key not in names]
    if unknown:
        check_gone(KEY, unknown[0])
        raise LossyValueError(
            f"`lossy_config` for several rules is keyed by rule, one of {names}, but has the key {unknown[0]!r}"
            + nearest(unknown[0], [*names, *RUN_KEYS])
        )
    for name in names:
        # Settings are cheaper to check than a head is to load.
        check_settings(name, _as_dict(f"lossy_config[{name!r}]", per_rule.get(name)))
    loaded = {name: place_rule_head(REGISTRY[name], source, device) for name, source in heads.items()}
    rules = [build_rule(name, per_rule.get(name) or {}, loaded.get(name)) for name in names]
    if compose is AnyOf:
        rules = [*(rule.without_base() for rule in rules[:-1]), rules[-1]]
    acceptor = rules[0] if compose is None else compose(tuple(rules))
    return RunConfig(acceptor, seed, require_lossless, limits, break_even, compiled, tree, stop, certificate, inspect)


def lossy_fields(mode: Any, config: Any = None, head: Any = None) -> dict[str, Any]:
    """Return the fields of a ``GenerationConfig`` for a mode that holds rules: their names, settings and heads.

    Parameters
    ----------
    mode, config, head
        As for ``generate()``.

    Raises
    ------
    LossyValueError
        When a rule's settings or its head are given twice.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import Ears, TopK
    >>> lossy_fields(TopK(k=3), {"seed": 0})
    {'lossy_mode': 'topk', 'lossy_config': {'k': 3, 'seed': 0}, 'lossy_head': None}
    >>> lossy_fields([TopK(k=3), "ears"])
    {'lossy_mode': ['topk', 'ears'], 'lossy_config': {'topk': {'k': 3}}, 'lossy_head': None}
    """
    if isinstance(mode, AnyOf | AllOf):
        mode = list(mode.rules) if isinstance(mode, AnyOf) else {"all_of": list(mode.rules)}
    members = mode.get("all_of") if isinstance(mode, dict) else mode
    several = isinstance(members, list | tuple)
    members = list(members) if several else [members]
    rules = [x for x in members if isinstance(x, Acceptor)]
    if not rules:
        return dict(zip(FIELDS, (mode, config, head), strict=True))
    settings, heads = _as_dict("lossy_config", config), dict(head) if isinstance(head, dict) else {}
    for rule in rules:
        own, keys = _own_settings(rule), [x.name for x in settings_of(type(rule))]
        given = settings.pop(rule.name, None) if several else [key for key in keys if key in settings]
        if given:
            raise LossyValueError(f"`lossy_config` has {given!r}, but {rule!r} has its settings; leave out either")
        if own:
            settings = {rule.name: own, **settings} if several else {**own, **settings}
        if head_type(type(rule)) is not None:
            if rule.name in heads or (head is not None and not isinstance(head, dict)):
                raise LossyValueError(f"`lossy_head` is given, but the rule {rule.name!r} has a head; leave it out")
            heads[rule.name] = rule.head
    names = [x.name if isinstance(x, Acceptor) else x for x in members]
    mode = {"all_of": names} if isinstance(mode, dict) else names if several else names[0]
    return dict(zip(FIELDS, (mode, settings or None, heads or head), strict=True))


def _own_settings(rule: Acceptor) -> dict[str, Any]:
    """Return the settings of a rule that differ from its defaults."""
    declared = settings_of(type(rule))
    own = {x.name: value for x in declared if (value := getattr(rule, x.name)) != x.default}
    for x in declared:
        if x.name in own and x.instead_of is not None:
            own.pop(x.instead_of, None)  # it follows from this one
    return own


def _certificate(source: Any) -> tuple[Certificate | None, dict[str, str]]:
    """Return a certificate, and the places of its heads by rule."""
    if source is None:
        return None, {}
    if not isinstance(source, str):
        raise LossyValueError(f"`certificate` in `lossy_config` has to be a folder or a Hub id, but is {source!r}")
    folder = certificate_folder(source)
    certificate = Certificate.load(folder)
    return certificate, {rule: str(folder / rule) for rule in certificate.heads if (folder / rule).is_dir()}


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    keys = [x.name for x in settings_of(REGISTRY[name])]
    for key in settings:
        if key not in keys:
            check_gone(KEY, key)
            raise LossyValueError(
                f"`lossy_config` key {key!r} is unknown to the rule {name!r}, which has "
                f"{keys or 'no keys of its own'}{nearest(key, [*keys, *RUN_KEYS])}"
            )


def build_rule(name: str, settings: Mapping[str, Any], head: Head | None = None) -> Acceptor:
    """Build one rule from its name, its settings and its head, if it has one."""
    check_settings(name, settings)
    return REGISTRY[name](**settings, **({} if head is None else {"head": head}))


def _heads(names: list[str], head: Any) -> dict[str, Any]:
    users = [name for name in names if head_type(REGISTRY[name]) is not None]
    given = head if isinstance(head, dict) else dict.fromkeys(users, head)
    if head is not None and not users:
        raise LossyValueError(f"`lossy_head` is not used by `lossy_mode` {names!r}; leave it out, but got {head!r}")
    for name in given:
        if name not in users:
            raise LossyValueError(
                f"`lossy_head` as a dict is keyed by the rules that use a head, {users}, but has the key {name!r}"
                + nearest(name, users)
            )
    for name in users:
        if given.get(name) is None:
            raise LossyValueError(
                f"`lossy_head` has to be given for the rule {name!r}: a Hub id, a folder or a loaded head"
            )
    return given


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
        if "," in name:
            raise LossyValueError(
                f"`lossy_mode` has to be a list for several rules, but is {name!r}; pass a list, "
                f"{[x.strip() for x in name.split(',')]}"
            )
        check_name("lossy_mode", name, REGISTRY, "rule")
    if len(set(names)) < len(names):
        raise LossyValueError(f"`lossy_mode` has to name every rule once, but is {mode!r}")
    return names, compose


def _switch(settings: dict[str, Any], key: str, default: bool | None) -> bool | None:
    value = settings.pop(key, None)
    if value is not None and not isinstance(value, bool):
        raise LossyValueError(f"`{key}` in `lossy_config` has to be a bool, but is {value!r}")
    return default if value is None else value


def _tree(value: Any) -> TreeConfig | DrawnTreeConfig | None:
    if value is None:
        return None
    settings = _as_dict("lossy_config['tree']", value)
    kind = DrawnTreeConfig if "branches" in settings else TreeConfig
    check_keys("`tree` in `lossy_config`", [x.name for x in fields(kind)], settings)
    return kind(**settings)


def _stop(value: Any, device: torch.device | str) -> DraftStop | None:
    if value is None:
        return None
    settings = _as_dict("lossy_config['stop_drafting']", value)
    by = settings.pop("by", None)
    if by not in STOPS:
        raise LossyValueError(
            f"`by` of `stop_drafting` in `lossy_config` has to be one of {list(STOPS)}, but is {by!r}"
            + nearest(by, STOPS)
        )
    keys = [x.name for x in fields(STOPS[by]) if x.init]
    check_keys(f"`stop_drafting` in `lossy_config` by {by!r}", keys, settings)
    if settings.get("head") is not None:
        settings["head"] = place_head(
            "`head` of `stop_drafting` in `lossy_config`", VerifierHead, settings["head"], device
        )
    return STOPS[by](**settings)


def check_keys(argument: str, keys: Sequence[str], given: Iterable[str]) -> None:
    for key in given:
        if key not in keys:
            raise LossyValueError(f"{argument} has the keys {list(keys)}, but not {key!r}{nearest(key, keys)}")


def _as_dict(argument: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise LossyValueError(f"`{argument}` has to be a dict, but is {value!r}")
    return dict(value)
