"""``lossy-assist publish``: send a head to the Hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..heads.loading import load_folder
from ..heads.repository import publication
from ..hub import Publication, upload
from .console import console

# What is published under a name instead of from a folder.
NAMED: Mapping[str, Callable[[], Publication]] = {}


def publish(
    source: Annotated[str, typer.Argument(metavar="HEAD", help="A head's folder.")],
    repo_id: Annotated[str, typer.Argument(metavar="ORG/NAME", help="The repository, created if need be.")],
    private: Annotated[bool, typer.Option("--private", help="Create the repository as a private one.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be sent.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, created if need be; main by default.")] = None,
) -> None:
    """Check that a head's folder is in order, and upload what belongs to it to the Hugging Face Hub.

    Needs a token that may write: `hf auth login`, or the environment variable HF_TOKEN.
    """
    files = NAMED[source]() if source in NAMED else _head(Path(source))
    screen = console()
    screen.print(_listing(files, repo_id))
    if dry_run:
        screen.print("Nothing was sent (--dry-run).")
        return
    # None leaves to the Hub what an organisation's default is.
    address = upload(files, repo_id, private=private or None, revision=revision)
    screen.print(f"Published: {address}", soft_wrap=True, markup=False, highlight=False)


def _head(folder: Path) -> Publication:
    return publication(folder, f"{load_folder(folder).config.kind} head")


def _listing(files: Publication, repo_id: str) -> Table:
    table = Table(title=f"{files.title} → {repo_id}", title_justify="left")
    table.add_column("file")
    table.add_column("bytes", justify="right")
    for name, size in files.sizes().items():
        table.add_row(name, f"{size:,}")
    return table
