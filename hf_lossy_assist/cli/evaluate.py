"""``lossy-assist evaluate``, every mode's score on a task and its speed, and ``lossy-assist lm-eval``, the harness."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..errors import need
from . import options
from .console import Console

if TYPE_CHECKING:
    from ..evaluation.modes import DecodingMode
    from ..heads import Head


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
    """Let every mode answer the same prompts, and say what each gains and loses [lab].

    A task's answers are scored; other prompts, of --data, are only timed. OUT
    gets results.jsonl (a line per prompt and mode) and summary.json.
    `accelerate launch -m hf_lossy_assist evaluate …` splits the prompts over
    processes.
    """
    need("lab", "`lossy-assist evaluate`")
    decoding.check()
    options.check_names(modes)
    lookup = decoding.prompt_lookup
    models.check({}, ("--assistant",), lookup)
    task = prompts.of(models.pair)
    from ..evaluation.evaluation import evaluate as measured
    from ..integrations.vllm.engines import vllm_engines, vllm_has

    with vllm_engines("vllm" in measuring.engine, measuring.vllm_python, models.threads) or nullcontext() as vllm:

        def listed(heads: Mapping[str, Head]) -> list[DecodingMode]:
            own = decoding.modes(modes, models, heads)
            if vllm is None:
                return own
            return vllm.modes(own) if measuring.engine == "vllm" else [*own, *vllm.modes(filter(vllm_has, own))]

        models.check_heads(listed(models.heads))  # before models are loaded
        pair = models.load(lookup, models.heads)
        screen = Console()
        result = measured(
            pair.target, pair.draft, tokenizer=pair.tokenizer, task=task, modes=listed(pair.rule_heads),
            heads=pair.rule_heads, reference=measuring.reference, limit=limit, split=prompts.chosen_split(),
            batch_size=batch_size, prompt_lookup_num_tokens=lookup, max_new_tokens=max_new_tokens,
            seed=decoding.seed or 0, out=out,
        )  # fmt: skip
    if result.is_whole:
        for one in result.tables:
            screen.print(one)
        for sentence in result.verdict:
            screen.print(sentence, highlight=False)
    if out is not None:
        screen.print(f"written: {out}", style="dim", soft_wrap=True)


def lm_eval(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
    """Run lm-evaluation-harness with the model hf-lossy, unless --model names another [lm-eval].

    All options are the harness's own, e.g. `--model_args
    pretrained=M,assistant=A,lossy_mode=min_p:tau=0.4 --tasks gsm8k --batch_size
    8`.
    """
    need("lm-eval", "`lossy-assist lm-eval`")
    from ..integrations import lm_eval as harness

    harness.register()
    from lm_eval.__main__ import cli_evaluate

    named = any(argument.split("=")[0] in ("--model", "-M") for argument in arguments)
    runs = arguments[:1] == ("run",) or (
        arguments and arguments[0].startswith("-") and not {"-h", "--help"} & {*arguments}
    )
    own = ["--model", harness.NAME] if runs and not named and "-h" not in arguments else []
    sys.argv = ["lossy-assist lm-eval", *arguments, *own]  # its parser reads only this
    cli_evaluate()
