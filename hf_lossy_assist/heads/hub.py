"""Uploads to the Hub, and errors that say what went wrong on the way there or back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ..errors import LossyValueError
from .checks import brief

HUB_ID = r"\w[\w.-]*/\w[\w.-]*"
"""What the id of a repository looks like."""

HUB_REFERENCE = re.compile(rf"(?P<id>{HUB_ID})(@(?P<revision>.+))?")
"""An id, and a revision where one is given."""

CARD = "README.md"
PLACEHOLDER_ID = "your-org/your-repository"
"""What a card says where it means the repository it is in; becomes the real id when it is published."""

# The most special ones first: a gated repository counts as one that was not found, too.
_REMEDIES: tuple[tuple[type[Exception], str], ...] = (
    (GatedRepoError, "ask for access on its page on the Hub, then pass `token` or run `hf auth login`"),
    (RevisionNotFoundError, "there is no such revision"),
    (RepositoryNotFoundError, "no such repository, or a private one; for that, pass `token` or run `hf auth login`"),
    (LocalEntryNotFoundError, "it is not in the cache, and the Hub can't be reached"),
    (EntryNotFoundError, "a file is missing"),
    (HFValidationError, "it is neither a folder nor an id of the form 'org/name'"),
    (HfHubHTTPError, "the Hub refused; where it is a matter of rights, pass `token` or run `hf auth login`"),
    (HTTPError, "the connection failed; try again"),
    (OSError, "the transfer failed; try again"),
    (ValueError, "no id and no revision has such characters"),
)


@contextmanager
def hub_errors(source: str | Path, revision: str | None = None) -> Iterator[None]:
    """Let what the Hub's client raises inside the block come out as an error that names ``source`` and a remedy."""
    try:
        yield
    except tuple(cls for cls, _ in _REMEDIES) as error:
        what = brief(str(source)) + (f" at revision {brief(revision)}" if revision else "")
        remedy = next(text for cls, text in _REMEDIES if isinstance(error, cls))
        raise LossyValueError(f"can't use {what}: {remedy} ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@dataclass(frozen=True)
class Publication:
    """Files that make up a repository on the Hub: where each is, by its path there.

    ``title`` says what they are, for the commit's message; ``sdk`` is what runs them, where they are a Space.
    """

    title: str
    files: Mapping[str, Path]
    sdk: str | None = None

    @property
    def repo_type(self) -> str:
        """What the Hub calls such a repository."""
        return "model" if self.sdk is None else "space"

    def sizes(self) -> dict[str, int]:
        """Return the size of each file in bytes."""
        return {name: path.stat().st_size for name, path in self.files.items()}

    def content(self, name: str, repo_id: str) -> bytes:
        """Return a file as it stands in the repository ``repo_id``, whose card names itself."""
        content = self.files[name].read_bytes()
        return content.replace(PLACEHOLDER_ID.encode(), repo_id.encode()) if name == CARD else content


def export(publication: Publication, folder: Path, repo_id: str) -> None:
    """Write the files as they would stand in the repository ``repo_id`` to a folder, which is made if need be."""
    for name in publication.files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(publication.content(name, repo_id))


def upload(
    publication: Publication,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    create_pr: bool = False,
) -> str:
    """Create the repository where it does not exist yet, commit the files in one commit, and return its address.

    ``private`` is for a repository that is created here; None leaves it to the Hub. ``revision`` is a branch, created
    from ``main`` where it does not exist. ``create_pr`` opens a pull request instead of committing to the branch.
    """
    api, kind = HfApi(token=token), publication.repo_type
    with hub_errors(repo_id, revision):
        api.create_repo(repo_id, private=private, repo_type=kind, space_sdk=publication.sdk, exist_ok=True)
        if revision is not None:
            api.create_branch(repo_id, branch=revision, repo_type=kind, exist_ok=True)
        commit = api.create_commit(
            repo_id,
            [CommitOperationAdd(name, publication.content(name, repo_id)) for name in publication.files],
            commit_message=f"Upload {publication.title}",
            repo_type=kind,
            revision=revision,
            create_pr=create_pr,
        )
    return commit.pr_url or commit.commit_url
