"""A Hub on loopback: as much of the HTTP API as ``huggingface_hub`` uses to share a model repository."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
from huggingface_hub import constants

TOKEN = "hf_loopback"
_ID = r"(?P<repo>[^/]+/[^/]+?)"


def blob_id(content: bytes) -> str:
    """Return git's hash of a file, which is its ETag too: nothing is large here."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repository:
    """A repository. ``served`` changes what a path's download carries, behind the back of its recorded hashes."""

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    served: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)

    def resolve(self, revision: str) -> str | None:
        """Return the commit that a branch or commit id names, None if there is none."""
        return self.branches.get(revision, revision if revision in self.commits else None)

    def commit(self, branch: str, changes: dict[str, bytes | None]) -> str:
        """Commit changes on top of a branch (None deletes a file) and return the commit's id."""
        parent = self.branches.get(branch)
        files = dict(self.commits.get(parent, {})) | changes
        files = {path: file for path, file in files.items() if file is not None}
        seed = "".join([str(parent), str(len(self.commits)), *sorted(f"{p}{blob_id(f)}" for p, f in files.items())])
        oid = hashlib.sha1(seed.encode()).hexdigest()
        self.commits[oid] = files
        self.branches[branch] = oid
        return oid


@dataclass
class LoopbackHub:
    """The server and what it holds.

    Attributes
    ----------
    repositories
        By ``"org/name"``.
    requests
        ``(method, path)`` of everything that was asked for, in order.
    downloads
        The paths of the files whose content went out, in order.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    downloads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> LoopbackHub:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, repo_id: str, files: dict[str, bytes], branch: str = "main", **settings: bool) -> Repository:
        """Put a commit with these files into a repository, made where it does not exist."""
        repository = self.repositories.setdefault(repo_id, Repository(**settings))
        repository.commit(branch, files)
        return repository


@dataclass(frozen=True)
class _Refusal(Exception):
    status: int
    code: str
    message: str


class _Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _route(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.requests.append((self.command, path))
        for methods, pattern, action in _ROUTES:
            if self.command in methods and (match := re.fullmatch(pattern, path)):
                try:
                    action(self, **match.groupdict())
                except _Refusal as refusal:
                    self._refuse(refusal)
                return
        self._refuse(_Refusal(501, "NotImplemented", f"the loopback Hub does not know {self.command} {path}"))

    do_GET = do_HEAD = do_POST = _route

    def _json(self, content: Any, status: int = 200) -> None:
        self._send(json.dumps(content).encode(), status, {"Content-Type": "application/json"})

    def _send(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, refusal: _Refusal) -> None:
        headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
        self._send(json.dumps({"error": refusal.message}).encode(), refusal.status, headers)

    def _signed_in(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _may_write(self) -> None:
        if not self._signed_in():
            raise _Refusal(401, "", "Invalid username or password.")

    def _repository(self, repo: str) -> Repository:
        repository = self.hub.repositories.get(repo)
        if repository is None or (repository.private and not self._signed_in()):
            # Strangers don't learn whether a private repository exists.
            raise _Refusal(404 if self._signed_in() else 401, "RepoNotFound", "Repository not found")
        return repository

    def _commit(self, repository: Repository, revision: str) -> str:
        oid = repository.resolve(revision)
        if oid is None:
            raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return oid

    def info(self, repo: str, revision: str = "main") -> None:
        repository = self._repository(repo)
        oid = self._commit(repository, revision)
        siblings = [{"rfilename": path} for path in repository.commits[oid]]
        self._json({"_id": oid[:24], "id": repo, "sha": oid, "private": repository.private, "siblings": siblings})

    def tree(self, repo: str, revision: str) -> None:
        repository = self._repository(repo)
        files = repository.commits[self._commit(repository, revision)]
        kept = {path: {"size": len(content), "oid": blob_id(content)} for path, content in files.items()}
        self._json([{"type": "file", "path": path, **each} for path, each in kept.items()])

    def resolve(self, repo: str, revision: str, path: str) -> None:
        repository = self._repository(repo)
        oid = self._commit(repository, revision)
        if repository.gated and not self._signed_in():
            raise _Refusal(401, "GatedRepo", f"Access to model {repo} is restricted.")
        content = repository.commits[oid].get(path)
        if content is None:
            raise _Refusal(404, "EntryNotFound", "Entry not found")
        headers = {"ETag": f'"{blob_id(content)}"', "X-Repo-Commit": oid, "Content-Length": str(len(content))}
        if self.command == "GET":
            content = repository.served.get(path, bytes)(content)
            self.hub.downloads.append(path)
        # A short answer below its announced length: the connection ends there.
        self.close_connection = len(content) < int(headers["Content-Length"])
        self._send(content, headers=headers)

    def create(self) -> None:
        self._may_write()
        wanted = json.loads(self.body)
        organization = wanted.get("organization") or "user"
        if organization == "strangers":
            raise _Refusal(403, "", "You don't have the rights to create a model under this namespace")
        repo = f"{organization}/{wanted['name']}"
        url = {"url": f"{self.hub.endpoint}/{repo}"}
        if repo in self.hub.repositories:
            return self._json(url | {"error": "You already created this model repo"}, 409)
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        repository = Repository(private=private)
        repository.commit("main", {})
        self.hub.repositories[repo] = repository
        return self._json(url)

    def branch(self, repo: str, name: str) -> None:
        self._may_write()
        repository = self._repository(repo)
        if name in repository.branches:
            raise _Refusal(409, "", f"Reference already exists: {name}")
        start = json.loads(self.body or b"{}").get("startingPoint", "main")
        repository.branches[name] = self._commit(repository, start)
        self._json({}, 201)

    def validate(self) -> None:
        self._json({"errors": [], "warnings": []})

    def preupload(self, repo: str, revision: str) -> None:
        self._may_write()
        repository = self._repository(repo)
        stored = repository.commits[self._commit(repository, revision)]
        paths = [file["path"] for file in json.loads(self.body)["files"]]
        oids = {path: blob_id(stored[path]) if path in stored else None for path in paths}
        common = {"uploadMode": "regular", "shouldIgnore": False}
        self._json({"files": [{"path": path, "oid": oid, **common} for path, oid in oids.items()]})

    def commit(self, repo: str, revision: str) -> None:
        self._may_write()
        repository = self._repository(repo)
        self._commit(repository, revision)
        changes: dict[str, bytes | None] = {}
        for operation in map(json.loads, self.body.splitlines()):
            value = operation["value"]
            if operation["key"] == "file":
                changes[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "deletedFile":
                changes[value["path"]] = None
        oid = repository.commit(revision, changes)
        self._json({"success": True, "commitOid": oid, "commitUrl": f"{self.hub.endpoint}/{repo}/commit/{oid}"})


_ROUTES: list[tuple[tuple[str, ...], str, Callable[..., None]]] = [
    (("GET",), rf"/api/models/{_ID}", _Handler.info),
    (("GET",), rf"/api/models/{_ID}/revision/(?P<revision>.+)", _Handler.info),
    (("GET",), rf"/api/models/{_ID}/tree/(?P<revision>.+)", _Handler.tree),
    (("GET", "HEAD"), rf"/{_ID}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler.resolve),
    (("POST",), r"/api/repos/create", _Handler.create),
    (("POST",), rf"/api/models/{_ID}/branch/(?P<name>.+)", _Handler.branch),
    (("POST",), r"/api/validate-yaml", _Handler.validate),
    (("POST",), rf"/api/models/{_ID}/preupload/(?P<revision>.+)", _Handler.preupload),
    (("POST",), rf"/api/models/{_ID}/commit/(?P<revision>.+)", _Handler.commit),
]


@pytest.fixture
def loopback_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    """A Hub with nothing in it, an empty cache, and nobody signed in."""
    with LoopbackHub() as hub:
        # The client read its environment when it was imported, perhaps one that forbids all traffic.
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        # Xet is a protocol of its own; without it, big files go through git LFS.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.setenv(name, "127.0.0.1")
        huggingface_hub.close_session()
        yield hub
    huggingface_hub.close_session()


@pytest.fixture
def signed_in(loopback_hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> LoopbackHub:
    """The loopback Hub, with a token that may do everything."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return loopback_hub
