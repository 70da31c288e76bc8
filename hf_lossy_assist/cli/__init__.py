"""The ``lossy-assist`` command, one module per subcommand."""

from __future__ import annotations

import typer
from rich.markup import escape

from . import (
    acceptance,
    bench,
    demo,
    evaluate,
    generate,
    import_autojudge,
    mine,
    publish,
    serve,
    theory,
    trade_off,
    train,
    train_pair,
    windows,
)
from .console import CleanGroup
from .options import RULES

app = typer.Typer(
    name="lossy-assist",
    help="Lossy speculative decoding for Hugging Face Transformers.",
    cls=CleanGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_RULES = escape(RULES)  # or brackets count as markup
app.command("demo")(demo.demo)
app.command("generate", epilog=_RULES)(generate.generate)
app.command("train-pair")(train_pair.train_pair)
app.command("evaluate-pair")(train_pair.evaluate_pair)
app.command("acceptance")(acceptance.acceptance)
app.command("evaluate", epilog=_RULES)(evaluate.evaluate)
app.command("trade-off")(trade_off.trade_off)
app.command("windows", epilog=_RULES)(windows.windows)
app.command("mine")(mine.mine)
app.add_typer(train.app)
app.command("theory")(theory.theory)
app.command("bench", epilog=_RULES)(bench.bench)
app.command("publish")(publish.publish)
app.command("serve", context_settings=serve.PASS_ON)(serve.serve)
app.command("import-autojudge")(import_autojudge.import_autojudge)


def main() -> None:
    """Run the command line."""
    app()


__all__ = ["app", "main"]
