"""The ``lossy-assist`` command, one module per subcommand; a subcommand's module is imported when it is run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

from .. import __version__
from .console import CleanCommand, CleanGroup

COMMANDS = {
    "demo": ("demo:demo", "Answer the same questions with every mode on the bundled pair, and compare."),
    "generate": ("generate:generate", "Continue a prompt, streaming, with a draft and an acceptance rule."),
    "chat": ("chat:chat", "Chat with a model, and see which tokens a rule let through."),
    "rules": ("rules:rules", "List the rules with their settings, sources and what they read."),
    "inspect": ("inspect:inspect", "Write a page that shows what became of every token, in several modes."),
    "evaluate": ("evaluate:evaluate", "Let every mode answer a task's problems: scores with intervals, and speed."),
    "calibrate": ("calibrate:calibrate", "Certify the fastest setting whose loss of a task's score is bounded."),
    "bench": ("bench:bench", "Compare modes of generation: speed, where the time goes, accuracy, memory."),
    "acceptance": ("acceptance:acceptance", "Run every rule, and show what it keeps and how likely the result is."),
    "trade-off": ("trade_off:trade_off", "Answer a task's problems at many settings of a rule and of its rivals."),
    "dropout": ("dropout:dropout", "Find the dropout that suits a model under dropmatch, and store it."),
    "windows": ("windows:windows", 'Compare `num_assistant_tokens="auto"` with fixed numbers of drafted tokens.'),
    "mine": ("mine:mine", "Find out which tokens of a draft change the answer, and store them with states."),
    "train": ("train:app", "Train heads from labelled data, and drafts for a target."),
    "train-pair": ("train_pair:train_pair", "Train the bundled pair from its seed, measure it, and write it."),
    "evaluate-pair": ("train_pair:evaluate_pair", "Measure the accuracy of each model of a pair alone."),
    "theory": ("theory:theory", "Tabulate and plot SPRINTER's expected run length, and expected speedups."),
    "publish": ("publish:publish", "Upload a head, a draft, a certificate, the custom generation method or the Space."),
    "serve": ("serve:serve", "Run transformers' server (OpenAI-compatible) with an assistant and lossy rules."),
    "lm-eval": ("lm_eval:lm_eval", "Run lm-evaluation-harness with models that are assisted."),
    "import-autojudge": ("import_autojudge:import_autojudge", "Import a head in AutoJudge's published layout."),
}
"""Where each subcommand is, and what it does in a line, for ``--help``.

A module's ``COMMAND_OPTIONS``, if it has them, go to typer with the command.
"""


class LazyCommand(TyperCommand):
    """A subcommand of which only name and summary are known until it is run."""

    def __init__(self, name: str) -> None:
        self.place, summary = COMMANDS[name]
        super().__init__(name, help=escape(summary))

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the command itself, which is imported for it."""
        return self.load().make_context(info_name, args, parent=parent, **extra)

    def load(self) -> Any:
        """Import the command."""
        name, attribute = self.place.split(":")
        module = import_module(f".{name}", __name__)
        found = getattr(module, attribute)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False)
            found.command(self.name, cls=CleanCommand, **getattr(module, "COMMAND_OPTIONS", {}))(function)
        command = typer.main.get_command(found)
        for each in _with_subcommands(command):
            each.help, each.epilog = _plain(each.help), _plain(each.epilog)
            for option in each.params:
                option.help = _plain(getattr(option, "help", None))
        return command


def _with_subcommands(command: Any) -> Iterator[Any]:
    yield command
    for subcommand in getattr(command, "commands", {}).values():
        yield from _with_subcommands(subcommand)


def _plain(text: str | None) -> str | None:
    return None if text is None else escape(text)  # or brackets count as markup


class LazyGroup(CleanGroup):
    """The subcommands, in the order of their table."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> LazyCommand | None:
        """Return a subcommand that is not imported yet."""
        return LazyCommand(cmd_name) if cmd_name in COMMANDS else None


app = typer.Typer(
    name="lossy-assist",
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
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
    # Of whose lines warnings are is of no use to those who wrote none.
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    app()


__all__ = ["COMMANDS", "app", "main"]
