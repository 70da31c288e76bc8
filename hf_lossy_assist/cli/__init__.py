"""The ``lossy-assist`` command, one module per subcommand; a subcommand's module is imported when it is run."""

from __future__ import annotations

import warnings
from importlib import import_module
from inspect import signature
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..errors import need, printable
from ..version import __version__
from .console import CleanCommand, CleanGroup

COMMANDS = {
    "demo": ("demo:demo", "Compare modes on questions, with the bundled pair", None),
    "generate": ("generate:generate", "Continue a prompt with a draft and an acceptance rule", None),
    "rules": ("rules:rules", "List the rules with their settings, sources and what they read", None),
    "inspect": ("inspect:inspect", "Write a page that shows what became of every token", None),
    "advise": ("advise:advise", "Predict what each rule brings on your models", "lab"),
    "evaluate": ("evaluate:evaluate", "Compare modes: scores with intervals, and speed", "lab"),
    "calibrate": ("calibrate:calibrate", "Certify the fastest setting that loses little of a score", "lab"),
    "mine": ("mine:mine", "Make training data for heads", "lab"),
    "train": ("train:app", "Train heads from labelled data", "lab"),
    "lm-eval": ("lm_eval:lm_eval", "Run lm-evaluation-harness with assisted models", "lm-eval"),
}
"""Each subcommand's place, summary for ``--help``, and extra. typer gets the module's ``COMMAND_OPTIONS``, if there."""


class LazyCommand(TyperCommand):
    """A subcommand that is imported when it runs; until then it has a name and a summary."""

    def __init__(self, name: str) -> None:
        self.place, summary, self.extra = COMMANDS[name]
        super().__init__(name, help=f"{summary} [{self.extra}]" if self.extra else f"{summary}.")

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        context = self.load().make_context(info_name, args, parent=parent, **extra)  # `--help` ends here
        if self.extra is not None and not isinstance(context.command, TyperGroup):  # whose commands say it themselves
            need(self.extra, f"`lossy-assist {self.name}`")
        return context

    def load(self) -> Any:
        name, attribute = self.place.split(":")
        try:
            module = import_module(f".{name}", __name__)
        except ModuleNotFoundError:
            if self.extra is not None:
                need(self.extra, f"`lossy-assist {self.name}`")
            raise
        found = getattr(module, attribute)
        if not isinstance(found, typer.Typer):
            from .options import RULES

            function, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
            modes = {"mode", "modes"} & signature(function).parameters.keys()
            own = getattr(module, "COMMAND_OPTIONS", {"epilog": RULES if modes else None})
            found.command(self.name, cls=CleanCommand, **own)(function)
        command = typer.main.get_command(found)
        command.settings = getattr(module, "SETTINGS", {})
        return command


class LazyGroup(CleanGroup):
    """The subcommands, in the order of their table."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return LazyCommand(cmd_name) if cmd_name in COMMANDS else super().get_command(ctx, cmd_name)


app = typer.Typer(
    name="lossy-assist",
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lossy-assist {__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Lossy speculative decoding for Hugging Face Transformers.

    A command with a name in brackets needs that extra, as `pip install "hf-lossy-assist[lab]"` brings it.
    """


def main() -> None:
    """Run the command line."""
    # Hide file and line: they point into the library.
    warnings.formatwarning = lambda message, *_, **__: printable(f"warning: {message}\n")
    app()


__all__ = ["COMMANDS", "app", "main"]
