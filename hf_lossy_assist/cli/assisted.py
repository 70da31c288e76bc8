"""Options that ``generate`` and ``chat`` share, and the drafter and rule that they name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from transformers import set_seed

from ..acceptors import REGISTRY, head_type
from ..call.config import LossyConfig
from ..drafting.vocabulary import same_tokenizer
from ..errors import LossyValueError
from ..evaluation.modes import parse_config
from .models import LoadedModels, ModelOptions
from .options import DraftDtype, Prepack, PromptLookup, RuleSettings, Sample, parse_mode, stored

LOOKED_UP = 10
"""Default draft length of prompt lookup."""


@dataclass(frozen=True)
class AssistedDecoding:
    """A rule with its settings and drafter, as the options name them."""

    mode: Any
    config: dict[str, Any]
    head: Any
    gamma: int | None
    lookup: int | None  # draft length of prompt lookup

    @property
    def rules_with_head(self) -> list[str]:
        names = self.mode if isinstance(self.mode, list) else [self.mode]
        return [name for name in names if name in REGISTRY and head_type(REGISTRY[name]) is not None]

    def check_rule(self, *, brings_heads: bool) -> None:
        if self.head is not None or not brings_heads or not self.rules_with_head:
            LossyConfig.from_fields(self.mode, self.config, self.head)

    def keywords(self, loaded: LoadedModels) -> dict[str, Any]:
        """Return the keywords of ``generate()`` for drafting and the rule."""
        own = {name: loaded.heads[name] for name in self.rules_with_head if name in loaded.heads}
        keywords = {"lossy_mode": self.mode, "lossy_config": self.config, "lossy_head": self.head or own or None}
        keywords["tokenizer"] = loaded.tokenizer
        if self.lookup is not None:
            return keywords | {"prompt_lookup_num_tokens": self.lookup}
        keywords["assistant_model"] = loaded.draft
        if self.gamma is not None:
            keywords["num_assistant_tokens"] = self.gamma
        other = loaded.draft_tokenizer
        if other is not None and not same_tokenizer(loaded.tokenizer, other):
            keywords["assistant_tokenizer"] = other
        return keywords


@dataclass(frozen=True)
class AssistedOptions(ModelOptions):
    """The options that ``generate`` and ``chat`` share."""

    assistant_tokenizer: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="The draft's tokenizer, if its folder has none.")
    ] = None
    prompt_lookup: PromptLookup = None
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
    draft_dtype: DraftDtype = None
    prepack: Prepack = False

    def checked(
        self, others: Mapping[str, Any] | None = None, optional: Collection[str] = ()
    ) -> tuple[ModelOptions, AssistedDecoding]:
        """Return what to load and how to decode, if :meth:`check` finds no conflict; no weights are read."""
        if self.temperature is not None and not self.sample:
            raise LossyValueError(
                f"`--temperature` {self.temperature} needs `--sample`; add it, or leave out the temperature"
            )
        self.check(others, optional)
        gamma = self.num_assistant_tokens
        mode, config, head, gamma = stored(self.mode, self.config, self.head, gamma) or (
            parse_mode(self.mode or "lossless"), parse_config(self.config or ()), self.head, gamma
        )  # fmt: skip
        if self.seed is not None:
            config.setdefault("seed", self.seed)
            set_seed(self.seed)
        decoding = AssistedDecoding(mode, config, head, gamma, self.prompt_lookup)
        decoding.check_rule(brings_heads=self.pair is not None)
        return replace(self, device=self.device or ("cpu" if self.pair is not None else "auto")), decoding

    @property
    def sampling(self) -> dict[str, Any]:
        """The keywords of ``generate()`` for sampling."""
        return {"do_sample": self.sample} | ({} if self.temperature is None else {"temperature": self.temperature})
