"""``lossy-assist lm-eval``: lm-evaluation-harness with assisted models."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from ..errors import need


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
