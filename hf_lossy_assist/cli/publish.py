"""``lossy-assist publish``: upload a head, a draft, a certificate, the generation method or the Space."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from ..call.certificate import certificate_publication
from ..drafting.eagle3 import Eagle3
from ..drafting.eagle3_config import Eagle3Config
from ..errors import LossyValueError, brief
from ..heads import Head
from ..heads.repository import Publication, existing_folder, export, publication, read_config, upload
from ..pairs import hub_cards
from .models import load_model


def _of_card(title: str, folder: str, *names: str, sdk: str | None = None) -> Publication:
    return Publication(title, {name: hub_cards() / folder / name for name in ("README.md", *names)}, sdk)


_MODEL_FILES = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

NAMED: Mapping[str, Publication] = {
    "custom-generate": _of_card(
        "custom generation method", "lossy-assist-generate", "custom_generate/generate.py",
        "custom_generate/requirements.txt",
    ),
    "space": _of_card("Space", "lossy-assist-space", "app.py", "requirements.txt", sdk="gradio"),
}  # fmt: skip
"""What is published by name instead of from a folder."""


def publish(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="WHAT ORG/NAME",
            help="Folder of a head or a draft, `certificate FOLDER`, `custom-generate` or `space`; then the "
            "repository, which is created if missing.",
        ),
    ],
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the files.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the files to this folder instead of sending them.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, created if missing; main by default.")] = None,
) -> None:
    """Upload a head, a draft, a certificate, the `custom_generate` repository or the Space to the Hugging Face Hub.

    A folder is checked first, and only the files of the head, draft or certificate are sent. A draft is an EAGLE-3 head
    or a model with its tokenizer. `custom-generate` is the repository that `generate(custom_generate="ORG/NAME",
    trust_remote_code=True)` runs: lossy rules without an import. `space` is a Gradio app that puts two rules side by
    side.

    Needs a token with write access: `hf auth login`, or the environment variable HF_TOKEN.
    """
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise LossyValueError(f"`--out` has to be a new or an empty folder, but is {str(out)!r}")
    match what:
        case ["certificate", folder, repo_id]:
            files = certificate_publication(Path(folder))
        case [source, repo_id] if source != "certificate":
            files = NAMED[source] if source in NAMED else _of_folder(Path(source))
        case _:
            raise LossyValueError(
                f"`publish` takes a folder, `certificate FOLDER`, `custom-generate` or `space`, then ORG/NAME, but got "
                f"{' '.join(what)!r}"
            )
    screen = Console()
    screen.print(_listing(files, repo_id))
    if dry_run:
        screen.print("Nothing was sent (--dry-run).")
        return
    if out is not None:
        export(files, out, repo_id)
        screen.print(f"Written: {out}", soft_wrap=True, markup=False, highlight=False)
        return
    # None: the organisation's default.
    address = upload(files, repo_id, private=private or None, branch=revision)
    screen.print(f"Published: {address}", soft_wrap=True, markup=False, highlight=False)


def _of_folder(source: Path) -> Publication:
    if (folder := existing_folder(source)) is None:
        raise LossyValueError(f"{brief(str(source))} is not a folder")
    values = read_config(folder)
    values = values if isinstance(values, dict) else {}
    if Eagle3Config.describes(values):
        Eagle3.from_pretrained(folder)
        return publication(folder, "EAGLE-3 head")
    if "model_type" in values:
        load_model("WHAT", str(folder), None, "cpu")
        return publication(folder, "assistant", more=_MODEL_FILES)
    return publication(folder, f"{Head.from_pretrained(folder).config.kind} head")


def _listing(files: Publication, repo_id: str) -> Table:
    title = f"{files.title} → {repo_id}"
    table = Table("file", Column("bytes", justify="right"), title=title, title_justify="left")
    for name, path in files.files.items():
        table.add_row(name, f"{path.stat().st_size:,}")
    return table
