"""The ``lossy-assist`` command, one module per subcommand.

They import torch, and all else that is slow, inside their functions, so that help and mistakes come at once.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from errno import EPIPE
from pathlib import Path
from typing import NoReturn

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter

from ..errors import LossyError, LossyValueError, brief, printable
from ..store.folder import MANIFEST, claimed, this_process, typed
from ..version import __version__
from . import advise, calibrate, demo, evaluate, generate, inspect, mine, rules, train
from .console import Console

OTHER_NAMES = {
    "assistant_model": "--assistant", "draft": "--assistant", "folder": "--from", "heads": "--head",
    "lossy_head": "--head", "lossy_config": "--mode", "lossy_mode": "--mode", "modes": "--mode", "name": "--pair",
    "prompt_lookup_num_tokens": "--prompt-lookup", "ratio": "--lambda",
    "unsafe_no_isolation": "--task code:unsafe_no_isolation=true",
}  # fmt: skip
"""Options by the argument that they set, where their names differ."""
_NO_OPTIONS = ("seed", "dtype")  # keys of a `lossy_config` or a head

app = App(
    "lossy-assist",
    help="Lossy speculative decoding for Hugging Face Transformers.\n\n"
    'A command with a name in brackets needs that extra, as `pip install "hf-lossy-assist[lab]"` brings it.',
    version=f"lossy-assist {__version__}",
    help_format="plaintext",
    default_parameter=Parameter(negative=(), allow_repeating=True, show_default=lambda value: value or None),
)
heads = App("train", help="Train heads from labelled data [lab].", sort_key=8)
heads.command(train.judge)
heads.command(train.verifier)
for at, command in enumerate(
    (demo.demo, generate.generate, rules.rules, inspect.inspect, advise.advise, evaluate.evaluate, calibrate.calibrate,
     mine.mine)
):  # fmt: skip
    app.command(command, sort_key=at)
app.command(heads)
app.command(evaluate.lm_eval, name="lm-eval", help_flags=[], version_flags=[], sort_key=9)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line; errors of this package and of the system are one line, and the status is 2."""
    # Hide file and line: they point into the library.
    warnings.formatwarning = lambda message, *_, **__: printable(f"warning: {message}\n")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what a terminal or a file can't hold is shown as ?
            stream.reconfigure(errors="replace")
    words = sys.argv[1:] if words is None else [*words]
    try:
        run(words)
    except CycloptsError as error:
        error.verbose = False
        # The library says the same of an option that was left out and of one without its value.
        left_out = isinstance(error, MissingArgumentError) and not (error.keyword or error.argument.tokens)
        _refuse(f"`{error.argument.name}` has to be given" if left_out else str(error))
    except (LossyError, OSError) as error:
        if getattr(error, "errno", None) == EPIPE:  # a reader that has had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise SystemExit(1) from None
        _refuse(_with_options(str(error), words))
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _refuse(message: str) -> NoReturn:
    Console(stderr=True, soft_wrap=True).print(f"error: {message}", style="red", markup=False, highlight=False)
    raise SystemExit(2)


def run(words: list[str]) -> None:
    """Run a command; other runs are kept from the folder that it writes to."""
    if wrong := [word for word in words if word != word.encode(errors="replace").decode()]:
        raise LossyValueError(f"options have to be text in UTF-8, but {brief(wrong[0])} is not")
    command, given, _ = app.parse_args(words, console=Console(), print_error=False, exit_on_error=False)
    out = given.arguments.get("out")
    before = typed.set(tuple(words))
    try:
        with nullcontext() if out is None else claimed(out, this_process()):
            command(*given.args, **given.kwargs)
    except KeyboardInterrupt:
        if out is not None and (Path(out) / MANIFEST).exists():
            Console(soft_wrap=True).print(f"stopped; repeat the command to continue from {out}")
        raise
    finally:
        typed.reset(before)


def _with_options(message: str, words: list[str]) -> str:
    """Name options in the place of the arguments that they set."""
    _, apps, _ = app.parse_commands(words)
    there = {name for argument in apps[-1].assemble_argument_collection() for name in argument.names}

    def option(found: re.Match[str]) -> str:
        name, value = found.groups()
        own = f"--{name.replace('_', '-')}"
        option = next((x for x in (OTHER_NAMES.get(name, own), own) if x.split()[0] in there), None)
        return found[0] if option is None or name in _NO_OPTIONS else f"`{option}{' ' * bool(value)}{value[1:]}`"

    return re.sub(r"`(\w+)((?:=\w+)?)`", option, message)


__all__ = ["app", "main"]
