"""``lossy-assist generate``: continue one prompt under a rule, streaming."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from ..errors import LossyValueError
from ..generation.spelling import FORM, Spelling
from . import options
from .console import Console

if TYPE_CHECKING:
    from ..evaluation.modes import DecodingMode
    from .models import LoadedModels


def generate(
    prompt: options.Prompt = None,
    /,
    *,
    models: options.ModelsWithHeads = options.ModelsWithHeads(),
    assistant_tokenizer: Annotated[
        str | None, Parameter(group=options.MODELS, help="The draft's tokenizer, if its folder has none.")
    ] = None,
    chat: Annotated[
        bool, Parameter(group=options.PROMPTS, help="Put the prompt into the chat template as a user's message.")
    ] = False,
    mode: Annotated[
        str,
        Parameter(
            group=options.DECODING,
            help=f"{FORM}, or a calibrated folder. `lossy-assist rules` lists the rules, and `lossy-assist rules NAME` "
            "a rule's settings.",
        ),
    ] = "lossless",
    max_new_tokens: options.Longest = 160,
    decoding: options.Drafting = options.Drafting(),
    stats: Annotated[bool, Parameter(group=options.OUTPUT, help="Print the statistics.")] = False,
    show_acceptance: Annotated[
        bool, Parameter(group=options.OUTPUT, help="Mark tokens kept only by a lossy rule.")
    ] = False,
) -> None:
    """Continue a prompt with a drafter and an acceptance rule, streaming."""
    decoding.check()
    models.check({"PROMPT": prompt}, lookup=decoding.prompt_lookup)
    if assistant_tokenizer is not None and models.assistant is None:
        raise LossyValueError(f"`--assistant-tokenizer` {assistant_tokenizer!r} needs an `--assistant`; add it")
    import torch
    from transformers import set_seed

    from .. import enabled
    from ..evaluation.requests import PromptList
    from ..generation.config import head_users
    from ..tasks import Example
    from .models import Setup
    from .rendering import ConsoleStreamer, stats_table

    setup = Setup(models, decoding, assistant_tokenizer=assistant_tokenizer)
    chosen = one_mode(mode, None if decoding.gamma is None else setup.gamma)
    if unused := [rule for rule in setup.heads if rule not in chosen.rules]:
        raise LossyValueError(f"`--head` is for the rule {unused[0]!r}, which is not in `--mode`; leave it out")
    if decoding.seed is not None:
        chosen = replace(chosen, settings={"seed": decoding.seed, **chosen.settings})
        set_seed(decoding.seed)
    if models.pair is None or all(rule in setup.heads for rule in head_users(chosen.rule)):
        fields_of(chosen, setup.heads)  # else the pair may bring a head
    loaded, screen = setup.load(), Console()
    keywords = fields_of(chosen, loaded.heads) | drafting_of(chosen, loaded, decoding.prompt_lookup)
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
    ids = turn or loaded.read(prompt, as_question=models.pair is not None)
    with enabled(target):
        output = target.generate(
            input_ids=torch.tensor([ids], device=target.device),
            **keywords,
            max_new_tokens=max_new_tokens,
            do_sample=decoding.sample,
            **{name: value for name in ("temperature", "top_p") if (value := getattr(decoding, name)) is not None},
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


def one_mode(text: str, gamma: int | str | None) -> DecodingMode:
    """Read a mode of rules; γ is the models' own unless the mode or an option says it."""
    from ..evaluation.modes import parse_modes

    mode, *others = parse_modes(text, gamma)
    if others or mode.rule is None:
        Spelling.read(text, "--mode")  # refuses several
        raise LossyValueError(f"`--mode` has to name rules, but is {text!r}, which only comparisons take")
    return mode


def fields_of(mode: DecodingMode, known: dict[str, Any]) -> dict[str, Any]:
    """Return the lossy fields of ``generate()`` once they are checked; a certificate brings its own heads."""
    from ..generation.config import LossyConfig

    heads = {} if "certificate" in mode.settings else known
    own = {rule: heads[rule] for rule in mode.rules if rule in heads} or mode.head
    fields = {"lossy_mode": mode.rule, "lossy_config": dict(mode.settings), "lossy_head": own}
    LossyConfig.from_fields(*fields.values())
    return fields


def drafting_of(mode: DecodingMode, loaded: LoadedModels, lookup: int | None) -> dict[str, Any]:
    """Return the keywords of ``generate()`` for drafting, by a model or by prompt ``lookup``."""
    from ..drafting.vocabulary import same_tokenizer

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
