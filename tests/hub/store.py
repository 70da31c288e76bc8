"""What the loopback Hub keeps: repositories with branches, commits and files, all in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StoredFile:
    """One file of one commit; ``lfs`` files are known by their SHA-256 instead of git's hash."""

    content: bytes
    lfs: bool

    @property
    def blob_id(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.blob_id

    def listing(self, path: str) -> dict:
        entry = {"type": "file", "path": path, "size": len(self.content), "oid": self.blob_id}
        if self.lfs:
            entry["lfs"] = {"oid": self.sha256, "size": len(self.content), "pointerSize": 120}
        return entry


@dataclass
class Repository:
    """A repository. ``served`` changes what a path's download carries, behind the back of its recorded hashes.

    ``sdk`` is what runs it, where it is a Space.
    """

    private: bool = False
    gated: bool = False
    sdk: str | None = None
    commits: dict[str, dict[str, StoredFile]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    served: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)

    def resolve(self, revision: str) -> str | None:
        """Return the commit that a branch or commit id names, None if there is none."""
        return self.branches.get(revision, revision if revision in self.commits else None)

    def commit(self, branch: str, changes: dict[str, StoredFile | None]) -> str:
        """Commit changes on top of a branch (None deletes a file) and return the commit's id."""
        parent = self.branches.get(branch)
        files = dict(self.commits.get(parent, {})) | changes
        files = {path: file for path, file in files.items() if file is not None}
        seed = "".join([str(parent), str(len(self.commits)), *sorted(f"{p}{f.sha256}" for p, f in files.items())])
        oid = hashlib.sha1(seed.encode()).hexdigest()
        self.commits[oid] = files
        self.branches[branch] = oid
        return oid
