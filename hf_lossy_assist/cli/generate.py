"""``lossy-assist generate``: continue one prompt under a rule, streaming."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from ..errors import LossyValueError
from ..generation.spelling import FORM, Spelling
from . import options
from .console import Console, figures_table

if TYPE_CHECKING:
    from ..evaluation.modes import DecodingMode


def generate(
    prompt: options.Prompt = None,
    /,
    *,
    models: options.ModelsWithHeads = options.ModelsWithHeads(),
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
    options.check_names(mode, ["everything"])
    alone = mode.startswith("lossless@0") or decoding.gamma == 0
    models.check({"PROMPT": prompt}, ("--assistant",) if alone else (), decoding.prompt_lookup)
    import torch
    from transformers import set_seed

    from .. import enabled
    from ..compat.models import device_of
    from ..generation.config import head_users
    from .rendering import ConsoleStreamer

    lookup, heads = decoding.prompt_lookup, models.heads
    example = options.shown(prompt, models.pair)
    chosen = one_mode(mode, None if decoding.gamma is None else decoding.length(models))
    chosen.check_draft(model=models.has_draft(lookup), lookup=lookup is not None)
    models.check_heads([chosen], "--mode")
    if decoding.seed is not None:
        chosen = replace(chosen, settings={"seed": decoding.seed, **chosen.settings})
        set_seed(decoding.seed)
    if models.pair is None or all(rule in heads for rule in head_users(chosen.rule)):
        chosen.run(heads)  # refuses bad settings; else the pair may bring a head
    pair, screen = models.load(lookup, heads), Console()
    chosen.run(pair.rule_heads)
    if prompt is None:
        screen.print(Text(example.prompt, style="dim"), soft_wrap=True)
    ids = pair.encode(example.prompt)
    law = chosen.law  # that of a folder, if it is one
    if decoding.sample:
        law = {"do_sample": True, "temperature": decoding.temperature, "top_p": decoding.top_p}
    with enabled(pair.target):
        output = pair.target.generate(
            input_ids=torch.tensor([ids], device=device_of(pair.target)),
            lossy_mode=chosen.rule,
            lossy_config=dict(chosen.settings),
            lossy_head=chosen.heads_of(pair.rule_heads),
            tokenizer=pair.tokenizer,
            **chosen.drafting(pair),
            max_new_tokens=max_new_tokens,
            **{name: value for name, value in law.items() if value is not None},
            streamer=ConsoleStreamer(pair.tokenizer, screen, mark=show_acceptance),
            return_dict_in_generate=True,
        )
    if example.answer:
        outcome = options.outcome(pair, example, output.sequences[0, len(ids) :], max_new_tokens)
        others = "." if outcome == "right" else f": {example.answer} is right."
        screen.print(f"The answer is {outcome}{others}", style="dim")
    if stats:
        screen.print(figures_table(output.lossy_stats.figures(), output.lossy_stats.title))


def one_mode(text: str, gamma: int | str | None) -> DecodingMode:
    """Read a mode of rules; γ is the models' own unless the mode or an option says it."""
    from ..evaluation.modes import parse_modes

    mode, *others = parse_modes(text, gamma)
    if others or mode.rule is None:
        Spelling.read(text, "--mode")  # refuses several
        raise LossyValueError(
            f"`--mode` has to name rules, but is {text!r}, which only comparisons take; `lossless@0` is the target "
            "alone"
        )
    return mode
