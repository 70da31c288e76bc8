"""``lossy-assist lm-eval``: lm-evaluation-harness with assisted models."""

from __future__ import annotations

import sys

import typer

from ..integrations import lm_eval as harness

# All options are the harness's own.
COMMAND_OPTIONS = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
}


def lm_eval(context: typer.Context) -> None:
    """Run lm-evaluation-harness with the model hf-lossy, unless --model names another.

    All options are the harness's own, e.g. `--model_args pretrained=M,assistant=A,lossy_mode=min_p:tau=0.4
    --tasks gsm8k --batch_size 8`.
    """
    harness.register()
    from lm_eval.__main__ import cli_evaluate

    arguments = list(context.args)
    named = any(argument.split("=")[0] in ("--model", "-M") for argument in arguments)
    runs = arguments[:1] == ["run"] or (arguments[:1] and arguments[0].startswith("-") and "--help" not in arguments)
    if runs and not named and "-h" not in arguments:
        arguments += ["--model", harness.NAME]
    sys.argv = [context.command_path, *arguments]  # its parser reads only this
    cli_evaluate()
