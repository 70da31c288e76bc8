"""``lossy-assist generate``: continue one prompt under a rule, streaming."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import typer
from rich.text import Text
from transformers import set_seed

from .. import enabled
from ..drafting.vocabulary import same_tokenizer
from ..errors import LossyValueError
from ..evaluation.modes import DecodingMode, parse_modes
from ..generation.config import LossyConfig, head_users
from ..generation.spelling import Spelling
from .console import Console
from .models import DecodingOptions, LoadedModels, ModelOptions, encode_conversation, read_heads
from .options import MaxNewTokens, Mode, PromptLookup
from .rendering import ConsoleStreamer, stats_table


@dataclass(frozen=True)
class AssistedDecoding:
    """A mode, its heads and its drafter, as the options name them."""

    mode: DecodingMode
    heads: Mapping[str, Any]
    lookup: int | None = None  # draft length of prompt lookup

    @classmethod
    def read(cls, text: str, option: str, heads: Mapping[str, Any], gamma: int | str | None = None) -> AssistedDecoding:
        mode, *others = parse_modes(text, gamma)
        if others or mode.rule is None:
            Spelling.read(text, option)  # refuses several
            raise LossyValueError(f"`{option}` has to name rules, but is {text!r}, which only comparisons take")
        return cls(mode, heads)

    @property
    def own_heads(self) -> Any:
        """The heads of the mode's rules; a certificate brings its own."""
        heads = {} if "certificate" in self.mode.settings else self.heads
        return {rule: heads[rule] for rule in self.mode.rules if rule in heads} or self.mode.head

    def check(self) -> None:
        LossyConfig.from_fields(self.mode.rule, self.mode.settings, self.own_heads)

    def keywords(self, loaded: LoadedModels) -> dict[str, Any]:
        """Return the keywords of ``generate()`` for drafting and the rule."""
        mode = self.mode
        keywords = {"lossy_mode": mode.rule, "lossy_config": dict(mode.settings), "lossy_head": self.own_heads}
        keywords["tokenizer"] = loaded.tokenizer
        if self.lookup is not None:
            return keywords | {"prompt_lookup_num_tokens": self.lookup}
        keywords["assistant_model"] = loaded.draft
        if mode.gamma is not None:
            keywords["num_assistant_tokens"] = mode.gamma
        other = loaded.draft_tokenizer
        if other is not None and not same_tokenizer(loaded.tokenizer, other):
            keywords["assistant_tokenizer"] = other
        return keywords


@dataclass(frozen=True)
class AssistedOptions(DecodingOptions):
    """The options that ``generate`` and ``chat`` share."""

    assistant_tokenizer: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="The draft's tokenizer, if its folder has none.")
    ] = None
    prompt_lookup: PromptLookup = None
    mode: Mode = None

    def prepared(
        self, others: Mapping[str, Any] | None = None, optional: Collection[str] = ()
    ) -> tuple[LoadedModels, AssistedDecoding]:
        """Return the models and how to decode; what conflicts is refused before weights are read."""
        self.check(others, optional)
        decoding = AssistedDecoding.read(self.mode or "lossless", "--mode", read_heads(self.head), self.drafted)
        if unused := [rule for rule in decoding.heads if rule not in decoding.mode.rules]:
            raise LossyValueError(f"`--head` is for the rule {unused[0]!r}, which is not in `--mode`; leave it out")
        if self.seed is not None:
            settings = {"seed": self.seed, **decoding.mode.settings}
            decoding = replace(decoding, mode=replace(decoding.mode, settings=settings))
            set_seed(self.seed)
        if self.pair is None or all(rule in decoding.heads for rule in head_users(decoding.mode.rule)):
            decoding.check()  # else the pair may bring a head
        device = self.device or ("cpu" if self.pair is not None else "auto")
        loaded = ModelOptions.load(replace(self, device=device))
        decoding = replace(decoding, heads={**loaded.heads, **decoding.heads}, lookup=self.prompt_lookup)
        decoding.check()
        return loaded, decoding

    @property
    def sampling(self) -> dict[str, Any]:
        """The keywords of ``generate()`` for sampling."""
        return {"do_sample": self.sample} | ({} if self.temperature is None else {"temperature": self.temperature})


def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue. With --pair: a test problem by default.")
    ] = None,
    *,
    assisted: AssistedOptions,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the prompt into the chat template as a user's message.")
    ] = False,
    max_new_tokens: MaxNewTokens = 160,
    stats: Annotated[bool, typer.Option("--stats", help="Print the statistics.")] = False,
    show_acceptance: Annotated[
        bool, typer.Option("--show-acceptance", help="Mark tokens kept only by a lossy rule.")
    ] = False,
) -> None:
    """Continue a prompt with a drafter and an acceptance rule, streaming."""
    loaded, decoding = assisted.prepared({"PROMPT": prompt} if assisted.pair is None else None)
    target, tokenizer, screen = loaded.target, loaded.tokenizer, Console()
    example = loaded.shown if prompt is None else None
    if example is not None:
        prompt = example.prompt
        screen.print(Text(prompt, style="dim"), soft_wrap=True)
    if chat:
        ids = encode_conversation(tokenizer, [{"role": "user", "content": prompt}])
    else:
        ids = loaded.read(prompt, as_question=assisted.pair is not None)
    with enabled(target):
        output = target.generate(
            input_ids=torch.tensor([ids], device=target.device),
            **decoding.keywords(loaded),
            max_new_tokens=max_new_tokens,
            **assisted.sampling,
            streamer=ConsoleStreamer(tokenizer, screen, mark=show_acceptance),
            return_dict_in_generate=True,
        )
    if example is not None and loaded.task is not None:
        right = loaded.right(example, output.sequences[0, len(ids) :].tolist())
        screen.print(
            "The answer is right." if right else f"The answer is wrong: {example.answer} is right.", style="dim"
        )
    if stats:
        screen.print(stats_table(output.lossy_stats))
