"""``lossy-assist evaluate``: every mode's score on a task, and its speed."""

from __future__ import annotations

from contextlib import nullcontext

from ..errors import need
from . import options
from .console import Console


def evaluate(
    *,
    models: options.ModelsWithHeads = options.ModelsWithHeads(),
    prompts: options.Prompts = options.Prompts(),
    limit: options.Limit = 100,
    batch_size: options.BatchSize = 1,
    modes: options.Modes = "plain,lossless,min_p,regret",
    max_new_tokens: options.MaxNewTokens = None,
    decoding: options.Drafting = options.Drafting(),
    measuring: options.Measuring = options.Measuring(),
    out: options.Out = None,
) -> None:
    """Let every mode answer the same prompts: scores with paired differences, tokens kept, and speed [lab].

    A task's answers are scored; other prompts, of --data, are only timed. OUT
    gets results.jsonl (a line per prompt and mode), summary.json and plot.png.
    `accelerate launch -m hf_lossy_assist evaluate …` splits the prompts over
    processes.
    """
    need("lab", "`lossy-assist evaluate`")
    decoding.check()
    lookup = decoding.prompt_lookup
    models.check({}, ("--assistant",), lookup)
    prompts.check()
    from ..evaluation.evaluate import evaluate as measured
    from .models import Setup

    setup = Setup(models, decoding, prompts, measuring)
    with setup.vllm or nullcontext():
        for mode in setup.modes(modes, setup.heads):  # before models are loaded
            mode.check_draft(model=setup.has_draft, lookup=lookup is not None)
        loaded = setup.load()
        screen = Console()
        try:
            result = measured(
                loaded.target, loaded.draft, tokenizer=loaded.tokenizer, task=loaded.task,
                modes=setup.modes(modes, loaded.heads), heads=loaded.heads, reference=measuring.reference,
                limit=limit, split=setup.chosen_split, batch_size=batch_size, gamma=setup.gamma,
                prompt_lookup_num_tokens=lookup, max_new_tokens=max_new_tokens, seed=setup.seed,
                measure=measuring.measure or ("task" if setup.is_scored else None), repeats=measuring.repeats,
                clock=measuring.clock, out=out,
            )  # fmt: skip
        except KeyboardInterrupt:
            kept = "" if out is None else f"; repeat the command to continue from {out}"
            screen.print(f"stopped{kept}", soft_wrap=True)
            raise SystemExit(130) from None
    if result.is_whole or out is None:
        for one in result.tables:
            screen.print(one)
    if out is not None:
        screen.print(f"written: {out}", style="dim", soft_wrap=True)
