"""Options that ``generate`` and ``chat`` share, and the drafter and rule that they name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from transformers import set_seed

from ..acceptors import REGISTRY, head_type
from ..call.config import parse
from ..drafting.vocabulary import same_tokenizer
from ..errors import LossyValueError
from ..evaluation.modes import parse_config
from .models import LoadedModels, ModelOptions
from .options import (
    DraftDtype,
    DraftSource,
    Dtype,
    PairInstead,
    Prepack,
    PromptLookup,
    RuleSettings,
    Sample,
    TargetSource,
    Where,
    parse_mode,
    stored,
)

LOOKED_UP = 10
"""Default draft length of prompt lookup."""


@dataclass(frozen=True)
class AssistedDecoding:
    """A rule with its settings and drafter, as the options name them."""

    mode: Any
    config: dict[str, Any] = field(default_factory=dict)
    head: Any = None
    gamma: int | None = None
    lookup: int | None = None  # draft length of prompt lookup

    @classmethod
    def of(
        cls,
        mode: str | None,
        config: Sequence[str] | None,
        head: str | None,
        gamma: int | None,
        seed: int | None = None,
        **more: Any,
    ) -> AssistedDecoding:
        """Read the options ``--mode``, ``--config``, ``--head``, ``--num-assistant-tokens`` and ``--seed``."""
        found = stored(mode, config, head, gamma)
        rule, settings, head, gamma = found or (parse_mode(mode or "lossless"), parse_config(config or ()), head, gamma)
        if seed is not None:
            settings.setdefault("seed", seed)
            set_seed(seed)
        return cls(rule, settings, head, gamma, **more)

    @property
    def rules_with_head(self) -> list[str]:
        names = self.mode if isinstance(self.mode, list) else [self.mode]
        return [name for name in names if name in REGISTRY and head_type(REGISTRY[name]) is not None]

    def check_rule(self, *, brings_heads: bool) -> None:
        if self.head is not None or not brings_heads or not self.rules_with_head:
            parse(self.mode, self.config, self.head)

    def keywords(self, loaded: LoadedModels) -> dict[str, Any]:
        """Return the keywords of ``generate()`` for drafting and the rule."""
        own = {name: loaded.heads[name] for name in self.rules_with_head if name in loaded.heads}
        rule = {"lossy_mode": self.mode, "lossy_config": self.config, "lossy_head": self.head or own or None}
        rule["tokenizer"] = loaded.tokenizer
        if self.lookup is not None:
            return rule | {"prompt_lookup_num_tokens": self.lookup}
        drafting = {"assistant_model": loaded.draft}
        if self.gamma is not None:
            drafting["num_assistant_tokens"] = self.gamma
        other = loaded.draft_tokenizer
        if other is None or same_tokenizer(loaded.tokenizer, other):
            return rule | drafting
        return rule | drafting | {"assistant_tokenizer": other}


@dataclass(frozen=True)
class AssistedOptions:
    """The options that ``generate`` and ``chat`` share."""

    model: TargetSource = None
    assistant: DraftSource = None
    assistant_tokenizer: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="The draft's tokenizer, if its folder has none.")
    ] = None
    prompt_lookup: PromptLookup = None
    pair: PairInstead = None
    mode: Annotated[
        str | None, typer.Option(help="The rule, lossless by default; RULE,RULE keeps a token if any rule does.")
    ] = None
    config: RuleSettings = None
    head: Annotated[
        str | None,
        typer.Option(help="The trained head of judge or sprinter: a Hub id or a folder; a pair's own by default."),
    ] = None
    num_assistant_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Drafted tokens per round; by default while the draft is sure of itself."),
    ] = None
    sample: Sample = False
    temperature: Annotated[float | None, typer.Option(help="Temperature; needs --sample.")] = None
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of every random number.")] = None
    dtype: Dtype = None
    draft_dtype: DraftDtype = None
    prepack: Prepack = False
    device: Where = None

    def checked(
        self, others: Mapping[str, Any] | None = None, optional: Collection[str] = ()
    ) -> tuple[ModelOptions, AssistedDecoding]:
        """Return what to load and how to decode; refuse options that conflict before reading any weights.

        See :meth:`ModelOptions.check` for ``others`` and ``optional``.
        """
        if self.temperature is not None and not self.sample:
            raise LossyValueError(
                f"`--temperature` {self.temperature} needs `--sample`; add it, or leave out the temperature"
            )
        device = self.device or ("cpu" if self.pair is not None else "auto")
        options = ModelOptions(
            self.pair, self.model, self.assistant, self.dtype, device,
            assistant_tokenizer=self.assistant_tokenizer, prompt_lookup=self.prompt_lookup,
            draft_dtype=self.draft_dtype, prepack=self.prepack,
        )  # fmt: skip
        options.check(others, optional)
        decoding = AssistedDecoding.of(
            self.mode, self.config, self.head, self.num_assistant_tokens, self.seed, lookup=self.prompt_lookup
        )
        decoding.check_rule(brings_heads=self.pair is not None)
        return options, decoding

    @property
    def sampling(self) -> dict[str, Any]:
        """The keywords of ``generate()`` for sampling."""
        return {"do_sample": self.sample} | ({} if self.temperature is None else {"temperature": self.temperature})
