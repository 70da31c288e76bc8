"""``lossy-assist publish``: send a head or the custom generation method to the Hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..calibration.certificate import certificate_publication
from ..errors import LossyValueError
from ..heads.head_loading import load_folder
from ..heads.hub import Publication, upload
from ..heads.repository import publication

_CUSTOM_GENERATE = Path(__file__).parents[1] / "hub_cards" / "lossy-assist-generate"


def _custom_generate() -> Publication:
    names = ("README.md", "custom_generate/generate.py", "custom_generate/requirements.txt")
    return Publication("custom generation method", {name: _CUSTOM_GENERATE / name for name in names})


# What is published under a name instead of from a folder.
NAMED: Mapping[str, Callable[[], Publication]] = {"custom-generate": _custom_generate}


def publish(
    source: Annotated[
        str, typer.Argument(metavar="WHAT", help="A head's folder, `certificate FOLDER`, or `custom-generate`.")
    ],
    repo_id: Annotated[str, typer.Argument(metavar="ORG/NAME", help="The repository, created if need be.")],
    after: Annotated[str | None, typer.Argument(metavar="", hidden=True)] = None,
    private: Annotated[bool, typer.Option("--private", help="Create the repository as a private one.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be sent.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, created if need be; main by default.")] = None,
) -> None:
    """Upload a head, a certificate, or the `custom_generate` repository, to the Hugging Face Hub.

    A folder is checked first, and only what belongs to the head or the certificate is sent. `custom-generate` is the
    repository that `generate(custom_generate="ORG/NAME", trust_remote_code=True)` runs: lossy rules without an import.

    Needs a token that may write: `hf auth login`, or the environment variable HF_TOKEN.
    """
    if source == "certificate":
        if after is None:
            raise LossyValueError("`publish certificate` has to be followed by the certificate's folder and ORG/NAME")
        files, repo_id = certificate_publication(Path(repo_id)), after
    elif after is not None:
        raise LossyValueError(f"`publish` has to be told WHAT and ORG/NAME, but there is {after!r} too")
    else:
        files = NAMED[source]() if source in NAMED else _head(Path(source))
    screen = Console()
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
