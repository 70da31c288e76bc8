"""One configuration of a lossy run, its only translation from and to fields of ``generate()``, and who set these."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from ..acceptors import REGISTRY, Acceptor, AllOf, AnyOf, head_type, place_rule_head, settings_of
from ..compat.models import without_defaults
from ..core.limits import UNLIMITED, Limits
from ..drafting.draft_ends import STOPS, AcceptanceStop, DraftStop
from ..drafting.tree import TreeConfig
from ..errors import LossyError, LossyValueError, brief, nearest
from ..values import BOOL, LARGEST_INT, SETTINGS, Checked, Flag, bounded, check_keys, check_name
from .certificate import Certificate
from .spelling import Spelling

FIELDS = ("lossy_mode", "lossy_config", "lossy_head")
"""The fields that may stand in a ``GenerationConfig`` or be given to ``generate()``."""

_LIMITS = tuple(x.name for x in fields(Limits))
_SWITCHES = ("require_lossless", "compile", "inspect")
RUN_KEYS = ("seed", *_SWITCHES, "tree", "stop_drafting", "certificate", *_LIMITS)
"""The keys of ``lossy_config`` that every rule has."""


@dataclass(frozen=True)
class LossyConfig(Checked):
    """How a run is lossy: a rule, and the settings that every rule has.

    ``generate()`` and saved configurations have it as the fields ``lossy_mode``, ``lossy_config`` and ``lossy_head``.

    Attributes
    ----------
    rule
        The rule with its settings and its head; several rules as ``AnyOf`` or ``AllOf``.
    seed
        Of the run's own random generators; None for torch's global one.
    require_lossless
        Refuse to run where the rule could change the output's distribution.
    limits
        Where the run may be lossy.
    compile
        Decode on static caches in compiled forwards; None records graphs on CUDA, where the call is long enough, and
        compiles where ``generate()`` itself would.
    tree
        How trees are drafted; None for chains.
    stop_drafting
        What ends a round's draft early.
    certificate
        Refuse to run with anything but the certified setting and models.
    inspect
        Record the probabilities of every token.

    Examples
    --------
    >>> from hf_lossy_assist import LossyConfig
    >>> from hf_lossy_assist.acceptors import TopK
    >>> LossyConfig(TopK(k=3), seed=0).to_fields()
    {'lossy_mode': 'topk', 'lossy_config': {'k': 3, 'seed': 0}, 'lossy_head': None}
    """

    where = SETTINGS
    rule: Acceptor
    seed: Annotated[int | None, bounded(0, LARGEST_INT, integer=True)] = None
    require_lossless: Flag = False
    limits: Limits = UNLIMITED
    compile: Annotated[bool | None, BOOL] = None
    tree: TreeConfig | None = None
    stop_drafting: DraftStop | None = None
    certificate: Certificate | None = None
    inspect: Flag = False

    @classmethod
    def from_fields(
        cls, mode: Any, config: Any = None, head: Any = None, *, device: torch.device | str = "cpu"
    ) -> LossyConfig:
        """Return the configuration that the fields of ``generate()`` describe.

        Parameters
        ----------
        mode
            ``lossy_mode``: a rule's name, a list of names (a token is kept if any rule keeps it), or ``{"all_of":
            [names]}``. A rule with its settings, such as ``TopK(k=3)``, may stand for a name.
        config
            ``lossy_config``: the rule's settings, or for several rules a dict of them by name; the keys that every
            rule has stand beside them.
        head
            ``lossy_head``: a Hub id (``"org/name"``, ``"org/name@revision"``), a folder or a loaded head, or for
            several rules with heads a dict of them by name.
        device
            Where heads are placed.

        Raises
        ------
        LossyValueError
            For an unknown rule or key, a bad value, a missing head, or a setting that is given twice.

        Examples
        --------
        >>> LossyConfig.from_fields("ears", {"beta": 0.2, "seed": 0}).rule
        Ears(beta=0.2)
        """
        settings = _as_dict("lossy_config", config)
        members, compose = members_of(mode)
        given = _run_settings(settings)
        own = _settings_by_rule(members, settings, several=compose is not None)
        if head is None and "certificate" in given:
            head = given["certificate"].head_folders(own) or None
        for name, source in _heads(members, head).items():
            own[name] = {**own[name], "head": place_rule_head(REGISTRY[name], source, device)}
        rules = [REGISTRY[x](**own[x]) if isinstance(x, str) else x for x in members]
        if compose is None:
            return cls(rules[0], **given)
        if compose is AnyOf:
            rules[:-1] = [rule.without_base() for rule in rules[:-1]]
        return cls(compose(tuple(rules)), **given)

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of ``generate()`` that mean this; :meth:`from_fields` takes them back.

        JSON can hold all of them except loaded heads. Settings at their defaults are left out.

        Raises
        ------
        LossyValueError
            When fields can't say it: a rule without a registered name, or a certificate that no folder has.
        """
        rules = self._rules
        own = {rule.name: _own_settings(rule) for rule in rules}
        heads = {rule.name: rule.head for rule in rules if head_type(type(rule)) is not None}
        mode: Any = [rule.name for rule in rules]
        if rules == (self.rule,):
            (mode,), (own,), heads = mode, own.values(), next(iter(heads.values()), None)
        elif isinstance(self.rule, AllOf):
            mode = {"all_of": mode}
        config = {**{key: value for key, value in own.items() if value != {}}, **self._run_fields()}
        return dict(zip(FIELDS, (mode, config or None, heads or None), strict=True))

    @property
    def default_stop(self) -> DraftStop | None:
        """Ends drafts where the user says nothing about their length; None where the run has no such drafts."""
        if self.tree is not None or self.rule.unverified_drafting is not None:
            return None
        return AcceptanceStop(1 - self.rule.drafts_until)

    @property
    def _rules(self) -> tuple[Acceptor, ...]:
        return getattr(self.rule, "rules", (self.rule,))

    @property
    def _drafts(self) -> dict[str, Any]:
        """How drafts grow and end, as values of ``lossy_config``."""
        found: dict[str, Any] = {} if self.tree is None else {"tree": asdict(self.tree)}
        if (stop := self.stop_drafting) is not None:
            found["stop_drafting"] = {"by": stop.name, "threshold": stop.threshold}
        return found

    def _run_fields(self) -> dict[str, Any]:
        switches = [x for x in fields(self) if x.name in ("seed", *_SWITCHES)]
        found = {**_changed(self, switches), **self._drafts, **_changed(self.limits, fields(Limits))}
        if self.certificate is None:
            return found
        if self.certificate.source is None:
            raise LossyValueError("`certificate` has to be in a folder to be named by `lossy_config`; save and load it")
        return {**found, "certificate": self.certificate.source}

    def in_full(self) -> dict[str, Any]:
        """Return the rule with all of its settings, the limits, and the tree or draft end, as plain values."""
        rules = [
            {"rule": rule.name, **{each.name: _finite(getattr(rule, each.name)) for each in settings_of(type(rule))}}
            for rule in self._rules
        ]
        values = rules[0] if self._rules == (self.rule,) else {self.rule.conjunction: rules}
        return json.loads(json.dumps({**values, "limits": asdict(self.limits), **self._drafts}))


def guarded(fields: dict[str, Any], *lower: Any) -> dict[str, Any]:
    """Return lossy fields with ``require_lossless`` of ``lower`` configs: it outlives the mode that it came with."""
    own = fields.get("lossy_config") or {}
    for config in (own, *lower):
        if isinstance(config, Mapping) and "require_lossless" in config:
            if config["require_lossless"] and isinstance(own, Mapping):
                return {**fields, "lossy_config": {**own, "require_lossless": True}}
            break
    return fields


def members_of(mode: Any) -> tuple[list[str | Acceptor], type[AnyOf] | type[AllOf] | None]:
    """Return a mode's rules, by name or as they are, and how several are combined."""
    if isinstance(mode, AnyOf | AllOf):
        return list(mode.rules), type(mode)
    compose = AnyOf if isinstance(mode, list | tuple) else None
    members = list(mode) if compose else [mode]
    if isinstance(mode, dict):
        if list(mode) != ["all_of"] or not isinstance(mode["all_of"], list | tuple):
            raise LossyValueError(f"`lossy_mode` as a dict has to be {{'all_of': [modes]}}, but is {brief(mode)}")
        members, compose = list(mode["all_of"]), AllOf
    if not members:
        raise LossyValueError(f"`lossy_mode` has to name at least one rule, but is {brief(mode)}")
    for member in members:
        if not isinstance(member, str | Acceptor):
            raise LossyValueError(
                f"`lossy_mode` has to be a str, a list of str, or {{'all_of': [str]}}, but is {brief(mode)}"
            )
        if isinstance(member, str) and member not in REGISTRY:
            if (meant := Spelling.read(member)) != Spelling(member):
                said = {"lossy_mode": meant.mode, "lossy_config": meant.config, "num_assistant_tokens": meant.gamma}
                instead = [f"`{name}={value!r}`" for name, value in said.items() if value]
                raise LossyValueError(
                    f"`lossy_mode` has to name rules only, but is {brief(mode)}; pass {' and '.join(instead)}"
                )
            check_name("lossy_mode", member, REGISTRY)
    if len(members) > 1 and len({*map(name_of, members)}) < len(members):
        raise LossyValueError(f"`lossy_mode` has to name every rule once, but is {brief(mode)}")
    return members, compose


def name_of(member: str | Acceptor) -> str:
    return member if isinstance(member, str) else member.name


def head_users(mode: Any) -> list[str]:
    """Return the rules that a mode names and that need a head."""
    return [x for x in members_of(mode)[0] if isinstance(x, str) and head_type(REGISTRY[x]) is not None]


def _run_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Take the keys that every rule has out of a ``lossy_config``; return arguments of :class:`LossyConfig`."""
    given = {key: value for key in RUN_KEYS if (value := settings.pop(key, None)) is not None}
    if not given.keys().isdisjoint(_LIMITS):
        given["limits"] = Limits(**{key: given.pop(key) for key in _LIMITS if key in given})
    if (source := given.get("certificate")) is not None:
        if not isinstance(source, str | Path):
            raise LossyValueError(f"`certificate` in `lossy_config` has to be a folder or a Hub id, but is {source!r}")
        given["certificate"] = Certificate.load(source)
    if "tree" in given:
        tree = _as_dict("lossy_config['tree']", given["tree"])
        check_keys("`tree` in `lossy_config`", [x.name for x in fields(TreeConfig)], tree)
        given["tree"] = TreeConfig(**tree)
    if "stop_drafting" in given:
        stop = _as_dict("lossy_config['stop_drafting']", given["stop_drafting"])
        by = stop.pop("by", None)
        check_name("by` of `stop_drafting` in `lossy_config", by, STOPS)
        check_keys(f"`stop_drafting` in `lossy_config` by {by!r}", [x.name for x in fields(STOPS[by]) if x.init], stop)
        given["stop_drafting"] = STOPS[by](**stop)
    return given


def _settings_by_rule(
    members: Sequence[str | Acceptor], settings: dict[str, Any], *, several: bool
) -> dict[str, dict[str, Any]]:
    """Return the checked keys of each rule's settings; values are checked when the rule is made."""
    left = dict(settings) if several else {}
    found: dict[str, dict[str, Any]] = {}
    for member in members:
        name = name_of(member)
        own = _as_dict(f"lossy_config[{name!r}]", left.pop(name, None)) if several else settings
        found[name] = own
        kind = REGISTRY[name] if isinstance(member, str) else type(member)
        keys = [x.name for x in settings_of(kind)] if own else []
        for key in own:
            if key not in keys:
                others = sorted(x for x in REGISTRY if key in [each.name for each in settings_of(REGISTRY[x])])
                owners = f"the rule{'s' * (len(others) > 1)} {', '.join(map(repr, others))}"
                hint = f"; it belongs to {owners}" if others else nearest(key, [*keys, *RUN_KEYS])
                if key == "head" and head_type(kind) is not None:
                    hint = "; give its head by `lossy_head`"
                raise LossyValueError(
                    f"`lossy_config` key {key!r} is unknown to the rule {name!r}, which has "
                    f"{keys or 'no keys of its own'}{hint}"
                )
        if own and isinstance(member, Acceptor):
            raise LossyValueError(f"`lossy_config` has {own!r}, but {member!r} has its settings; leave out either")
    for unknown in left:
        raise LossyValueError(
            f"`lossy_config` for several rules is keyed by rule, one of {[*found]}, but has the key {unknown!r}"
            + nearest(unknown, [*found, *RUN_KEYS])
        )
    return found


def _heads(members: Sequence[str | Acceptor], head: Any) -> dict[str, Any]:
    """Return the head of each named rule that needs one, as it was given."""
    users, own = [], []
    for member in members:
        if head_type(REGISTRY[member] if isinstance(member, str) else type(member)) is not None:
            (users if isinstance(member, str) else own).append(name_of(member))
    if head is None and not users:
        return {}
    if head is not None and (twice := [name for name in own if not isinstance(head, dict) or name in head]):
        raise LossyValueError(f"`lossy_head` is given, but the rule {twice[0]!r} has a head; leave it out")
    if head is not None and not users:
        raise LossyValueError(
            f"`lossy_head` is not used by `lossy_mode` {[*map(name_of, members)]!r}; leave it out, but got {head!r}"
        )
    given = head if isinstance(head, dict) else dict.fromkeys(users, head)
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


def _changed(owner: Any, settings: Iterable[Any]) -> dict[str, Any]:
    return {x.name: value for x in settings if (value := getattr(owner, x.name)) != x.default}


def _own_settings(rule: Acceptor) -> dict[str, Any]:
    """Return the settings of a rule that differ from its defaults."""
    kind = type(rule)
    if REGISTRY.get(rule.name) is not kind:
        raise LossyValueError(f"`lossy_mode` can't name {rule!r}; make its class known by `acceptors.register`")
    declared = settings_of(kind)
    own = _changed(rule, declared)
    for x in declared:
        if x.name in own and x.instead_of is not None:
            own.pop(x.instead_of, None)  # it follows from this one
    rebuilt = kind(**own, **({} if head_type(kind) is None else {"head": rule.head}))
    if rule not in (rebuilt, rebuilt.without_base()):
        raise LossyValueError(f"`lossy_config` can't hold all of {rule!r}; pass the rule itself as `lossy_mode`")
    return own


def _as_dict(argument: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise LossyValueError(f"`{argument}` has to be a dict, but is {value!r}")
    return dict(value)


def _finite(value: Any) -> Any:
    return str(value) if value == float("inf") else value  # JSON has no infinity


class GivenFields:
    """What was said about the fields of one call, before transformers fills in its own defaults.

    A field's value is the first of: keyword, ``generation_config`` argument, the model's own configuration.
    """

    def __init__(self, model: PreTrainedModel, keywords: Mapping[str, Any]) -> None:
        self._keywords = dict(keywords)
        self._argument, self._own = keywords.get("generation_config"), model.generation_config
        self._said = self._argument and without_defaults(self._argument, self._own)

    def __call__(self, name: str, *more: GenerationConfig | None) -> Any:
        """Return a field's value; look into the configurations ``more`` of an assistant last."""
        value = self._keywords.get(name)
        for config in (self._said, self._own, *more):
            if value is not None:
                break
            value = getattr(config, name, None)
        return value

    def merged(self, *names: str) -> dict[str, Any]:
        """Return the values, other than None, that transformers' merge keeps: a keyword of None overrides files."""
        values = {}
        for name in names:
            if (value := self._keywords.get(name, ...)) is ...:
                value = getattr(self._argument, name, None)
                value = getattr(self._own, name, None) if value is None else value
            if value is not None:
                values[name] = value
        return values

    def explain(self, error: LossyError, field: str | None = None) -> None:
        """Let an error say which configuration set the ``field`` at fault; by default these are all that it names."""
        text = error.args[0]
        named = re.findall(r"`(\w+)`", text) if field is None else [field]
        at_fault = dict.fromkeys(name for name in named if field or not name.startswith("lossy_"))
        notes = [f"; `{name}` is set in {place}" for name in at_fault if (place := self._place(name))]
        error.args = (text.removesuffix("?") + "".join(notes) if notes else text,)

    def _place(self, name: str) -> str:
        """Return which configuration set a field; nothing for a keyword."""
        assistant = getattr(self._keywords.get("assistant_model"), "generation_config", None)
        places = {
            "": SimpleNamespace(**self._keywords),
            "the `generation_config` argument": self._said,
            "the model's `generation_config`": self._own,
            "the assistant's `generation_config`": assistant,
        }
        fields = ((place, getattr(config, "__dict__", {})) for place, config in places.items())  # no methods
        return next((place for place, given in fields if given.get(name) is not None), "")
