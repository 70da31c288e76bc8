"""``lossy-assist generate``: continue one prompt under a rule, streaming."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from rich.text import Text
from transformers import set_seed

from .. import enabled
from ..drafting.vocabulary import same_tokenizer
from ..errors import LossyValueError
from ..evaluation.modes import DecodingMode, parse_modes
from ..evaluation.requests import PromptList
from ..generation.config import LossyConfig, head_users
from ..generation.spelling import Spelling
from ..tasks import Example
from . import options
from .console import Console
from .models import LoadedModels
from .rendering import ConsoleStreamer, stats_table
from .setup import DRAFTING, LOADING, SAMPLING, Setup

SETTINGS = (
    LOADING
    | {"assistant_tokenizer": "the draft's tokenizer, if its folder has none"}
    | {key: DRAFTING[key] for key in ("gamma", "prompt_lookup")}
    | SAMPLING
    | {"seed": "of all draws", "temperature": "of --sample; the model's own by default"}
)


def generate(
    prompt: options.PromptText = None,
    pair: options.PairName = None,
    model: options.Target = None,
    assistant: options.Assistant = None,
    head: options.HeadSources = None,
    dtype: options.Dtype = None,
    draft_dtype: options.DraftDtype = None,
    chat: Annotated[
        bool, options.of_prompts("--chat", help="Put the prompt into the chat template as a user's message.")
    ] = False,
    mode: options.Mode = "lossless",
    sample: options.Sample = False,
    max_new_tokens: options.MaxNewTokens = 160,
    stats: Annotated[bool, options.of_output("--stats", help="Print the statistics.")] = False,
    show_acceptance: Annotated[
        bool, options.of_output("--show-acceptance", help="Mark tokens kept only by a lossy rule.")
    ] = False,
    settings: options.Settings = None,
) -> None:
    """Continue a prompt with a drafter and an acceptance rule, streaming."""
    given = options.read_set(settings, SETTINGS)
    setup = Setup.of(pair, model, assistant, dtype, draft_dtype, given, head=head, sample=sample)
    setup.models.check({"PROMPT": prompt})
    decoding = one_mode(mode, setup)
    if unused := [rule for rule in setup.heads if rule not in decoding.rules]:
        raise LossyValueError(f"`--head` is for the rule {unused[0]!r}, which is not in `--mode`; leave it out")
    if "seed" in given:
        decoding = replace(decoding, settings={"seed": setup.seed, **decoding.settings})
        set_seed(setup.seed)
    if pair is None or all(rule in setup.heads for rule in head_users(decoding.rule)):
        fields_of(decoding, setup.heads)  # else the pair may bring a head
    loaded, screen = setup.load({"PROMPT": prompt}), Console()
    keywords = fields_of(decoding, loaded.heads) | drafting_of(decoding, loaded, given.get("prompt_lookup"))
    target, tokenizer = loaded.target, loaded.tokenizer
    example = loaded.shown if prompt is None else None
    if example is not None:
        prompt = example.prompt
        screen.print(Text(prompt, style="dim"), soft_wrap=True)
    if chat and not tokenizer.chat_template:
        raise LossyValueError(
            f"`chat` needs a template, but the tokenizer of {tokenizer.name_or_path!r} has no chat template; use a "
            "chat model, or leave it out"
        )
    turn = PromptList([prompt]).encode(Example(prompt, ""), tokenizer) if chat else None
    ids = turn or loaded.read(prompt, as_question=pair is not None)
    with enabled(target):
        output = target.generate(
            input_ids=torch.tensor([ids], device=target.device),
            **keywords,
            max_new_tokens=max_new_tokens,
            do_sample=sample,
            **{key: given[key] for key in SAMPLING if key in given},
            streamer=ConsoleStreamer(tokenizer, screen, mark=show_acceptance),
            return_dict_in_generate=True,
        )
    if example is not None and example.answer:
        right = loaded.right(example, output.sequences[0, len(ids) :].tolist())
        screen.print(
            "The answer is right." if right else f"The answer is wrong: {example.answer} is right.", style="dim"
        )
    if stats:
        screen.print(stats_table(output.lossy_stats))


def one_mode(text: str, setup: Setup) -> DecodingMode:
    """Read a mode of rules; γ is the models' own unless the mode or ``--set`` says it."""
    mode, *others = parse_modes(text, setup.gamma if "gamma" in setup.settings else None)
    if others or mode.rule is None:
        Spelling.read(text, "--mode")  # refuses several
        raise LossyValueError(f"`--mode` has to name rules, but is {text!r}, which only comparisons take")
    return mode


def fields_of(mode: DecodingMode, known: dict[str, Any]) -> dict[str, Any]:
    """Return the lossy fields of ``generate()`` once they are checked; a certificate brings its own heads."""
    heads = {} if "certificate" in mode.settings else known
    own = {rule: heads[rule] for rule in mode.rules if rule in heads} or mode.head
    fields = {"lossy_mode": mode.rule, "lossy_config": dict(mode.settings), "lossy_head": own}
    LossyConfig.from_fields(*fields.values())
    return fields


def drafting_of(mode: DecodingMode, loaded: LoadedModels, lookup: int | None) -> dict[str, Any]:
    """Return the keywords of ``generate()`` for drafting, by a model or by prompt ``lookup``."""
    keywords: dict[str, Any] = {"tokenizer": loaded.tokenizer}
    if lookup is not None:
        keywords["prompt_lookup_num_tokens"] = lookup
    if loaded.draft is None:
        return keywords
    keywords["assistant_model"] = loaded.draft
    if mode.gamma is not None:
        keywords["num_assistant_tokens"] = mode.gamma
    other = loaded.draft_tokenizer
    if other is not None and not same_tokenizer(loaded.tokenizer, other):
        keywords["assistant_tokenizer"] = other
    return keywords
