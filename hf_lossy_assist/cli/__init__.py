"""The ``lossy-assist`` command, one module per subcommand; a subcommand's module is imported when it is run."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ..version import __version__
from .console import CleanCommand, CleanGroup, flattened

COMMANDS = {
    "demo": ("demo:demo", "Compare modes on questions, with the bundled pair."),
    "generate": ("generate:generate", "Continue a prompt with a draft and an acceptance rule."),
    "chat": ("chat:chat", "Chat with a model, and see which tokens only a lossy rule kept."),
    "rules": ("rules:rules", "List the rules with their settings, sources and what they read."),
    "inspect": ("inspect:inspect", "Write a page that shows what became of every token."),
    "evaluate": ("evaluate:evaluate", "Compare modes on a task: scores with intervals, and speed."),
    "calibrate": ("calibrate:calibrate", "Certify the fastest setting that loses little of a score."),
    "bench": ("bench:bench", "Compare modes: speed, where the time goes, accuracy, memory."),
    "dropout": ("dropout:dropout", "Find the dropout for a model under dropmatch, and store it."),
    "mine": ("mine:mine", "Make training data for heads: which tokens change an answer."),
    "train": ("train:app", "Train heads from labelled data."),
    "publish": ("publish:publish", "Upload a head, a draft, a certificate or the Space."),
    "lm-eval": ("lm_eval:lm_eval", "Run lm-evaluation-harness with models that are assisted."),
}
"""Each subcommand's place and summary for ``--help``. typer gets the module's ``COMMAND_OPTIONS``, if it has them."""


class LazyCommand(TyperCommand):
    """A subcommand that is imported when it runs; until then it has a name and a summary."""

    def __init__(self, name: str) -> None:
        self.place, summary = COMMANDS[name]
        super().__init__(name, help=summary)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.load().make_context(info_name, args, parent=parent, **extra)

    def load(self) -> Any:
        name, attribute = self.place.split(":")
        module = import_module(f".{name}", __name__)
        found = getattr(module, attribute)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
            own = getattr(module, "COMMAND_OPTIONS", {})
            found.command(self.name, cls=CleanCommand, **own)(flattened(function))
        return typer.main.get_command(found)


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
    """Lossy speculative decoding for Hugging Face Transformers."""


def main() -> None:
    """Run the command line."""
    # Hide file and line: they point into the library.
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    app()


__all__ = ["COMMANDS", "app", "main"]
