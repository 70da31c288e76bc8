"""Studies of the package: not installed, run in a checkout as ``python -m benchmarks.NAME``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer


def command(main: Callable[..., Any]) -> typer.Typer:
    """Return an application of one command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    return app


PairName = Annotated[str, typer.Option(help="The pair: arithmetic or qwen-coder.")]
Modes = Annotated[str, typer.Option(help="Modes, as for `lossy-assist evaluate`.")]
Limit = Annotated[int, typer.Option(min=1, help="Number of problems.")]
Task = Annotated[str | None, typer.Option(help="A task; the pair's own by default.")]
Data = Annotated[Path | None, typer.Option(help="The task's file.")]
MaxNew = Annotated[int | None, typer.Option(min=1, help="The longest answer; the task's by default.")]
Int8 = Annotated[bool, typer.Option("--int8", help="Round the draft's weights to 8 bits.")]
Device = Annotated[str, typer.Option(help="The device of both models.")]
Dtype = Annotated[str | None, typer.Option(help="The weights' type; the pair's by default.")]
Out = Annotated[Path | None, typer.Option(help="A folder for the answers; an interrupted run goes on there.")]


def measured(
    change: Callable[[Any], Any], pair: str, modes: str, limit: int, task: str | None, data: Path | None,
    max_new_tokens: int | None, int8: bool, device: str, dtype: str | None, out: Path | None,
) -> Any:  # fmt: skip
    """Evaluate modes on a pair that ``change`` has changed, and return the result."""
    import hf_lossy_assist
    from hf_lossy_assist import pairs, quantize_draft, tasks

    loaded = pairs.load(pair, device=device, dtype=dtype)
    if int8:
        loaded = replace(loaded, draft=quantize_draft(loaded.draft, "int8"))
    loaded = change(loaded)
    asked = loaded.task if task is None else tasks.load(task, data=None if data is None else str(data))
    return hf_lossy_assist.evaluate(
        loaded.target, loaded.draft, tokenizer=loaded.tokenizer, heads=loaded.rule_heads, modes=modes, limit=limit,
        task=asked, max_new_tokens=max_new_tokens, out=out,
    )  # fmt: skip
