"""``lossy-assist evaluate``: every mode's score on a task, and its speed."""

from __future__ import annotations

from contextlib import nullcontext

import typer

from ..evaluation.evaluate import evaluate as measured
from ..store.folder import this_process
from . import options
from .console import Console, progress
from .setup import CHOOSING, DRAFTING, LOADING, Setup

MEASURING = {
    "measure": "task: its score; rouge: ROUGE-L to the reference's text; likelihood: the target's p, geometric mean",
    "repeats": "how often each prompt is answered; the speed is that of the median",
    "clock": "wall, or cpu: this process's computing time, for one thread on a busy machine",
}
SETTINGS = LOADING | CHOOSING | DRAFTING | MEASURING


def evaluate(
    context: typer.Context,
    pair: options.PairName = None,
    model: options.Target = None,
    assistant: options.Assistant = None,
    head: options.HeadSources = None,
    dtype: options.Dtype = None,
    draft_dtype: options.DraftDtype = None,
    task: options.TaskName = None,
    data: options.Data = None,
    limit: options.Limit = 100,
    batch_size: options.BatchSize = 1,
    modes: options.Modes = "plain,lossless,min_p,regret",
    sample: options.Sample = False,
    max_new_tokens: options.MaxNewTokens = None,
    engine: options.Engine = "hf",
    out: options.OutFolder = None,
    settings: options.Settings = None,
) -> None:
    """Let every mode answer the same prompts: scores with paired differences, tokens kept, and speed.

    A task's answers are scored; other prompts, of --data, are only timed. OUT gets results.jsonl (a line per prompt
    and mode), summary.json and plot.png. `accelerate launch -m hf_lossy_assist evaluate …` splits the prompts over
    processes.
    """
    given = options.read_set(settings, SETTINGS)
    setup = Setup.of(
        pair, model, assistant, dtype, draft_dtype, given, head=head, task=task, data=data, sample=sample,
        engine=engine,
    )  # fmt: skip
    lookup = given.get("prompt_lookup")
    with setup.vllm or nullcontext():
        for mode in setup.modes(modes, setup.heads):  # before models are loaded
            mode.check_draft(model=setup.models.has_draft, lookup=lookup is not None)
        loaded = setup.load(optional=("--assistant",))
        models = (context.obj or (lambda models: models))(loaded.models)  # studies change them first
        measures = {key: given[key] for key in MEASURING if key in given}
        process, screen = this_process(), Console()
        shown = screen if process.number == 0 else Console(quiet=True)  # one bar is enough for all processes
        try:
            with progress(shown) as bar:
                result = measured(
                    models.target, models.draft, tokenizer=loaded.tokenizer, task=loaded.task,
                    modes=setup.modes(modes, models.heads), heads=models.heads, reference=given.get("reference"),
                    limit=limit, split=setup.split, batch_size=batch_size, gamma=setup.gamma,
                    prompt_lookup_num_tokens=lookup, max_new_tokens=max_new_tokens, seed=setup.seed, out=out,
                    track=bar.track, **{"measure": "task" if setup.is_scored else None, **measures},
                )  # fmt: skip
        except KeyboardInterrupt:
            kept = "" if out is None else f"; repeat the command to continue from {out}"
            screen.print(f"stopped{kept}", soft_wrap=True)
            raise typer.Exit(130) from None
    if result.is_whole or out is None:
        for one in result.tables:
            screen.print(one)
    if out is not None:
        screen.print(f"written: {out}", style="dim", soft_wrap=True)
