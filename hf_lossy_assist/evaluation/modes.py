"""Ways to decode: the target alone, transformers' assisted generation, and this package's rules."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from ..acceptors import REGISTRY, Acceptor, head_type, register
from ..acceptors.base import AUTO
from ..compat.drafters import drafts_from_target_states
from ..drafting.draft_ends import DEFAULT_NUM_TOKENS
from ..drafting.state_head import StateHead
from ..errors import LossyUnsupportedError, LossyValueError
from ..generation.certificate import CERTIFICATE, GENERATION_CONFIG, Certificate, head_sums
from ..generation.config import FIELDS, LossyConfig
from ..generation.enabling import enabled
from ..generation.spelling import OWN_RULE, Spelling, split
from ..heads import Head
from ..pairs import Pair
from ..tasks import find
from ..values import SHARE, Rule, check_keys, check_name, is_number

EVERYTHING = "everything"
"""The baseline that keeps every drafted token."""


_STOCK = {
    "threshold": Rule("a number from 0 to 1", lambda x: is_number(x) and 0 <= x <= 1),
    "cache": Rule("dynamic or static", lambda x: x in ("dynamic", "static")),
}
"""Settings of transformers' assisted generation.

Drafts always have γ tokens, but with a threshold of 0.4 they end where the draft is less sure. On a static cache of the
target, transformers compiles its forward on a GPU.
"""


_STORED = {
    *FIELDS, "num_assistant_tokens", "do_sample", "temperature", "top_k", "top_p", "max_length", "max_new_tokens",
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "transformers_version",
}  # fmt: skip
"""Fields of a folder's generation configuration that a mode says, or that an evaluation has of its own."""


@dataclass(frozen=True)
class DecodingMode:
    """One way to call ``generate()``.

    Without ``gamma`` the target decodes alone. With ``gamma`` only, transformers' assisted generation runs; with a rule
    too, this package's. With ``lossless`` and no tokens to draft, the target decodes alone on this package's runners. A
    rule's run is seeded, so it keeps drafting even where plain decoding would be faster.

    Examples
    --------
    >>> DecodingMode("topk", "topk", {"k": 2}, gamma=5).config
    {'lossy_mode': 'topk', 'lossy_config': {'k': 2}, 'num_assistant_tokens': 5}
    """

    label: str = "target alone"  # its name in tables and files
    rule: Any = None  # ``lossy_mode``
    settings: Mapping[str, Any] = field(default_factory=dict)  # ``lossy_config``
    gamma: int | str | None = None  # ``num_assistant_tokens``, drafted tokens per round
    temperature: float | None = None  # of sampling, with no other warper but top_p; None decodes greedily
    top_p: float = 1.0
    answers: str = "target"  # the model that generates
    engine: Any = None  # what decodes, if not this process: `VllmEngines`
    head: Any = None  # ``lossy_head``, where the mode brings its own

    @classmethod
    def stored(cls, folder: str) -> DecodingMode:
        """Return the mode in a folder's generation configuration; it keeps to a certificate beside it."""
        if certified := (Path(folder) / CERTIFICATE).is_file():
            Certificate.load(folder).setting  # noqa: B018 - raises where none is certified
        config = GenerationConfig.from_pretrained(folder)
        if getattr(config, "lossy_mode", None) is None:
            raise LossyValueError(
                f"`modes` has the folder {folder!r}, whose {GENERATION_CONFIG} has no `lossy_mode`; if `advise` "
                "wrote it, drafting does not pay: take 'lossless@0', the target alone"
            )
        settings = dict(getattr(config, "lossy_config", None) or {})
        if certified:
            settings["certificate"] = folder
        temperature = (1.0 if config.temperature is None else config.temperature) if config.do_sample else None
        if config.do_sample and (config.top_k != 0 or (config.top_p or 1) < 1):  # transformers' own `top_k` is 50
            raise LossyValueError(
                f"`modes` has the folder {folder!r}, which draws by `top_k` or `top_p`; set `top_k=0` there, and no "
                "`top_p`"
            )
        if ignored := config.to_diff_dict().keys() - _STORED:
            raise LossyValueError(
                f"`modes` has the folder {folder!r}, whose {GENERATION_CONFIG} sets `{min(ignored)}`, which no mode "
                "can say; take it out of the file, or set it in the model's own, which all modes follow"
            )
        head, gamma = getattr(config, "lossy_head", None), config.num_assistant_tokens
        return cls(folder, config.lossy_mode, settings, AUTO if gamma is None else gamma, temperature, head=head)

    @property
    def rules(self) -> list[str]:
        return [] if self.rule is None else Spelling(self.rule).names

    @property
    def is_alone(self) -> bool:
        """Whether the target decodes alone, in ``generate()`` itself."""
        return self.rule is None and self.gamma is None and self.answers == "target"

    @property
    def is_stock(self) -> bool:
        """Whether transformers' assisted generation runs."""
        return self.rule is None and self.gamma is not None

    @property
    def config(self) -> dict[str, Any]:
        """The settings, as they are written to files."""
        engine = {} if self.engine is None else {"engine": self.engine.name}
        own = {"lossy_mode": self.rule, "lossy_config": dict(self.settings)} if self.rule else dict(self.settings)
        return {**engine, **own, **({} if self.gamma is None else {"num_assistant_tokens": self.gamma})}

    def heads_of(self, known: Mapping[str, Head]) -> Any:
        """Return ``lossy_head``: the heads of its rules that are known, else its own; a certificate brings its own."""
        known = {} if "certificate" in self.settings else known
        return {rule: known[rule] for rule in self.rules if rule in known} or self.head

    def run(self, heads: Mapping[str, Head]) -> LossyConfig:
        """Return the run of a mode with a rule."""
        return LossyConfig.from_fields(self.rule, dict(self.settings), self.heads_of(heads))

    def described(self, heads: Mapping[str, Head]) -> dict[str, Any]:
        """Return all that its texts depend on besides models and prompts.

        Settings that are left out are there too, as defaults and heads say them.
        """
        nucleus = {} if self.top_p == 1 else {"top_p": self.top_p}
        found = {**self.config, "temperature": self.temperature, **nucleus, "heads": {}}
        if self.rule is not None:
            run = self.run(heads)
            found |= {"rule": run.in_full(), "heads": head_sums(run.rule)}
        return found

    def decides_losslessly(self, heads: Mapping[str, Head]) -> bool:
        """Tell whether a lossy rule decides as the lossless one here: by its setting, or since nothing is drawn."""
        if self.rule in (None, "lossless") or "certificate" in self.settings:
            return False
        rule = self.run(heads).rule
        drawn = self.temperature is not None
        longest = self.gamma if isinstance(self.gamma, int) else None
        return rule.is_lossless(drawn) or rule.check_mode(drawn, longest) is not None

    def check_heads(self, heads: Mapping[str, Head]) -> None:
        if self.head is not None or "certificate" in self.settings:
            return
        for rule in self.rules:
            if head_type(REGISTRY[rule]) is not None and rule not in heads:
                raise LossyValueError(
                    f"`modes` has {self.label!r}, which needs a head; give one for {rule!r} by `heads`"
                )

    def check_draft(self, *, model: bool, lookup: bool) -> None:
        """Refuse a mode without a drafter, be it a draft ``model`` or prompt ``lookup``."""
        if not model and (self.answers == "draft" or (self.gamma and not lookup)):
            instead = "" if self.answers == "draft" else ", or `prompt_lookup_num_tokens` instead"
            raise LossyValueError(f"`draft` has to be given for the mode {self.label!r}{instead}")
        if lookup and not model and self.gamma == AUTO:
            raise LossyValueError(
                f"`modes` has {self.label!r}, but prompt lookup needs a number of tokens; put it after the @"
            )

    def check_pair(self, pair: Pair) -> None:
        """Refuse a mode that a pair can't run."""
        self.check_draft(model=pair.draft is not None, lookup=pair.lookup > 0)
        self.check_heads(pair.rule_heads)
        head = isinstance(pair.draft, StateHead)
        if (self.is_stock and head) or (self.answers == "draft" and (head or drafts_from_target_states(pair.draft))):
            kind = pair.draft.title if head else f"a {type(pair.draft).__name__}"
            what = "transformers' own loop can't draft with it" if self.is_stock else "it can't write texts by itself"
            raise LossyUnsupportedError(
                f"`modes` has {self.label!r}, but `draft` is {kind}, and {what}; leave the mode out, or take 'lossless'"
            )

    def generating(self, pair: Pair) -> PreTrainedModel:
        return getattr(pair, self.answers)

    @contextmanager
    def prepared(self, pair: Pair) -> Iterator[None]:
        """Make ``generate()`` understand :meth:`keywords` inside a block; the models are restored afterwards."""
        stock = self.is_stock and not pair.only_looks_up
        changed = _stock_drafts(pair.draft, self.gamma, self.settings) if stock else nullcontext()
        with enabled(self.generating(pair)), changed:
            yield

    @property
    def law(self) -> dict[str, Any]:
        """How tokens are drawn, by keywords of ``generate()``."""
        if self.temperature is None:
            return {"do_sample": False}
        return {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": self.top_p}

    def keywords(self, pair: Pair, seed: int) -> dict[str, Any]:
        """Return the keywords of ``generate()`` besides prompt and length; they override the models' defaults."""
        keywords: dict[str, Any] = {
            **self.law,
            "return_dict_in_generate": True,
            "lossy_mode": self.rule,  # None keeps an enabled model's own defaults away
            **self.drafting(pair),
        }
        if self.rule is None and self.settings.get("cache") == "static":
            keywords["cache_implementation"] = "static"
        if self.rule is not None:
            heads = self.heads_of(pair.rule_heads)
            keywords |= {
                "lossy_config": {"seed": seed, **self.settings},
                **({"lossy_head": heads} if heads else {}),
                **({} if pair.tokenizer is None else {"tokenizer": pair.tokenizer}),
            }
        return keywords

    def drafting(self, pair: Pair) -> dict[str, Any]:
        """Return the keywords for drafting; a rule without a draft length has the models' own."""
        if not self.gamma and (self.rule is None or self.gamma == 0):
            return {} if self.rule is None else {"num_assistant_tokens": 0}
        if pair.only_looks_up:
            return {"prompt_lookup_num_tokens": self.gamma or pair.lookup}
        keywords: dict[str, Any] = {"assistant_model": pair.draft}
        if self.rule is not None:  # transformers' loop takes a model or looks up, and has γ of the model
            keywords |= {"prompt_lookup_num_tokens": pair.lookup} if pair.lookup else {}
            keywords |= {} if self.gamma is None else {"num_assistant_tokens": self.gamma}
        return keywords


def usual_modes(heads: Mapping[str, Head], gamma: int | str, temperature: float | None = None) -> list[DecodingMode]:
    """Return ``lossless``, then every rule that can differ from it here, with drafts of ``gamma`` tokens.

    A rule that needs a head takes part only if there is one.

    Examples
    --------
    >>> [mode.label for mode in usual_modes({}, 5, temperature=0.9)][:3]
    ['lossless', 'dropmatch', 'ears']
    """
    modes = []
    for name, rule in REGISTRY.items():
        if head_type(rule) is not None and name not in heads:
            continue
        mode = DecodingMode(name, name, rule.usual, gamma, temperature)
        if not mode.decides_losslessly(heads):
            modes.append(mode)
    return modes


def modes_of(
    text: str, gamma: int | str, temperature: float | None, top_p: float, heads: Mapping[str, Head]
) -> list[DecodingMode]:
    """Read modes like :func:`parse_modes`, of which ``all`` stands for :func:`usual_modes`."""
    SHARE.check("top_p", top_p)
    if top_p < 1 and temperature is None:
        raise LossyValueError(f"`top_p` is {top_p}, but without a `temperature` nothing is drawn; leave it out")
    modes = []
    for name in split(text, ","):
        all_rules = name.strip() == "all"
        modes += usual_modes(heads, gamma, temperature) if all_rules else parse_modes(name, gamma, temperature)
    return [replace(mode, top_p=top_p) for mode in modes]


@contextmanager
def _stock_drafts(draft: PreTrainedModel, gamma: int, settings: Mapping[str, Any]) -> Iterator[None]:
    # By default transformers drafts up to 20 tokens and stops where the draft is less than 40 % sure. It reads γ from
    # the assistant's configuration only.
    config = draft.generation_config
    wanted = {
        "num_assistant_tokens": gamma,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": settings.get("threshold", 0.0),
    }
    before = {name: getattr(config, name, None) for name in wanted}
    try:
        config.__dict__.update(wanted)
        yield
    finally:
        config.__dict__.update(before)


def parse_modes(text: str, gamma: int | str | None = 5, temperature: float | None = None) -> list[DecodingMode]:
    """Read modes separated by commas.

    Each is a :class:`~hf_lossy_assist.generation.spelling.Spelling`, or a calibrated folder. A rule of your own is
    ``package.module:Rule``.

    ``plain`` is the target alone, ``draft`` the draft alone, ``stock`` transformers' assisted generation;
    ``everything`` keeps every drafted token. A mode's label is its text.

    Examples
    --------
    >>> [mode.label for mode in parse_modes("plain,stock,topk@8:k=3,topk+typical", 5)]
    ['plain', 'stock', 'topk@8:k=3', 'topk+typical']
    """
    return [_mode(part.strip(), gamma, temperature) for part in split(text, ",")]


def by_name(text: str) -> str:
    """Return a mode whose rules are named; those of a user's modules are imported."""
    return OWN_RULE.sub(_registered, text)


def _registered(path: re.Match[str]) -> str:
    """Return the name of a user's rule, once it is imported."""
    if path[1] in REGISTRY:
        return path[0]  # a setting without a value, which is refused later
    rule = find(path[0], "modes")
    if not (isinstance(rule, type) and issubclass(rule, Acceptor)):
        raise LossyValueError(f"`modes` has {path[0]!r}, which is no rule, a class with the base `acceptors.Acceptor`")
    return register(rule).name


def _mode(text: str, gamma: int | str | None, temperature: float | None) -> DecodingMode:
    # Any text; a path's own method raises on a long one.
    if any(os.path.isfile(os.path.join(text, name)) for name in (GENERATION_CONFIG, CERTIFICATE)):
        return DecodingMode.stored(text)
    spelt = Spelling.read(by_name(text), "modes")
    name, own = spelt.mode, spelt.gamma
    gamma = gamma if own is None else own
    if gamma == 0 and name not in ("plain", "draft", "lossless"):
        raise LossyValueError(f"`modes` has {text!r}, but only 'lossless@0' runs without drafts; take 1 token or more")
    if name in ("plain", "draft") and spelt.config:
        raise LossyValueError(f"`modes` has to name {name!r} without settings, but is {text!r}")
    if name == "plain":
        return DecodingMode(text, temperature=temperature)
    if name == "stock":
        check_keys("`modes` 'stock'", [*_STOCK], spelt.config)
        for key, value in spelt.config.items():
            _STOCK[key].check(f"{key} of stock", value)
        return DecodingMode(text, None, spelt.config, DEFAULT_NUM_TOKENS if gamma == AUTO else gamma, temperature)
    if name == "draft":
        return DecodingMode(text, temperature=temperature, answers="draft")
    if name == EVERYTHING:
        return DecodingMode(text, "thresholds", {**spelt.config, "threshold_single": 0}, gamma, temperature)
    for rule in spelt.names:
        check_name("modes", rule, ["plain", "draft", "stock", EVERYTHING, *REGISTRY])
    return DecodingMode(text, name, spelt.config, gamma, temperature)
