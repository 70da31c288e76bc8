"""``lossy-assist serve``: transformers' server, with an assistant and a lossy rule."""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any

import typer
from transformers.utils.import_utils import is_serve_available

from ..call.config import parse
from ..errors import LossyUnsupportedError, LossyValueError, nearest
from ..evaluation.modes import parse_config
from ..integrations.serving import RequestLimits, Settings
from .options import RULES, RuleSettings, parse_mode, stored

# The command of transformers' server parses all options.
COMMAND_OPTIONS = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
}

_HELP = """Run transformers' server (OpenAI-compatible) with lossy assisted generation.

In a model's generation_config.json, the field `lossy_assistant` names a draft model by Hub id or folder, and
`lossy_mode` a lossy rule. The first options below set both without editing files; all others are those of
`transformers serve`. A request may have the fields `lossy_mode`, `lossy_config` and `lossy_head`; its response has the
statistics in `lossy_stats`. Totals are at /lossy_stats, and for Prometheus at /metrics.
"""


def serve(context: typer.Context) -> None:
    """Run transformers' server (OpenAI-compatible) with an assistant and lossy rules."""
    if not is_serve_available() or importlib.util.find_spec("prometheus_client") is None:
        raise LossyUnsupportedError(
            "`serve` needs packages that are not installed; `pip install 'hf-lossy-assist[serve]'` brings them"
        )
    _command().main(args=context.args, prog_name=context.command_path, standalone_mode=False)


def _command() -> Any:
    """Return the command of ``transformers serve`` with our options in front of its own."""
    # Takes seconds to import.
    from transformers.cli.serve import Serve

    ours, theirs = typer.Typer(), typer.Typer(rich_markup_mode=None)
    ours.command()(_settings)
    theirs.command(help=_HELP, epilog=RULES)(Serve)
    options, command = typer.main.get_command(ours), typer.main.get_command(theirs)
    own = [option for option in options.params if option.name in _settings.__annotations__]
    command.params = [*own, *command.params]
    command.callback = functools.partial(_run, options.callback, command.callback)
    return command


def _run(settings: Any, server: Any, /, **values: Any) -> None:
    from ..integrations.serving.server import run

    given = {name: values.pop(name) for name in list(values) if name in _settings.__annotations__}
    if values["continuous_batching"]:
        raise LossyUnsupportedError(
            "`--continuous-batching` is a decoding loop of its own, without assistants; leave it out"
        )
    chosen = settings(**given)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s:     %(message)s"))  # like the server's own lines
    log = logging.getLogger("hf_lossy_assist")
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    run(functools.partial(server, **values), chosen)


_LIMITS = {x.name: x.default for x in fields(RequestLimits)}
_DEFAULTS = ", ".join(f"{name}={most}" for name, most in _LIMITS.items())


def _limits(items: Sequence[str]) -> RequestLimits:
    given = parse_config(items, "--limit")
    for name in given.keys() - _LIMITS:
        raise LossyValueError(f"`--limit` has to name one of {[*_LIMITS]}, but names {name!r}{nearest(name, _LIMITS)}")
    return RequestLimits(**given)


def _settings(
    assistant: Annotated[str | None, typer.Option(help="The draft model: a Hub id or a folder.")] = None,
    mode: Annotated[str | None, typer.Option(help="The rule; RULE,RULE keeps a token if any rule does.")] = None,
    config: RuleSettings = None,
    head: Annotated[str | None, typer.Option(help="The rule's trained head: a Hub id or a folder.")] = None,
    allow_head: Annotated[
        list[str] | None,
        typer.Option(metavar="SOURCE", help="A head that requests may name: a Hub id or a folder. Repeatable."),
    ] = None,
    allow_compile: Annotated[
        bool, typer.Option("--allow-compile", help="Let requests have forwards compiled, which takes minutes.")
    ] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help=f"The most that a request may ask for. Repeatable. Default: {_DEFAULTS}."),
    ] = None,
) -> Settings:
    allowed = {
        "allowed_heads": tuple(allow_head or ()),
        "allow_compile": allow_compile,
        "limits": _limits(limit or ()),
    }
    if (found := stored(mode, config, head)) is not None:
        *named, gamma = found
        return Settings(assistant, *named, **allowed, num_assistant_tokens=gamma)
    if mode is None:
        for option, value in {"--config": config, "--head": head}.items():
            if value:
                raise LossyValueError(f"`{option}` needs a `--mode`, but none is set; got {value!r}")
        return Settings(assistant, **allowed)
    settings = Settings(assistant, parse_mode(mode), parse_config(config or ()) or None, head, **allowed)
    parse(settings.mode, settings.config, settings.head)  # before any weights are read
    return settings
