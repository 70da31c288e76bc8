"""A Hub on loopback: as much of the HTTP API as ``huggingface_hub`` uses to share a model repository."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_loopback"
_ID = r"(?P<repo>[^/]+/[^/]+?)"


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
    lfs_objects: dict[str, bytes] = field(default_factory=dict)

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
        repository.commit(branch, {path: StoredFile(content, _is_lfs(path)) for path, content in files.items()})
        return repository


def _is_lfs(path: str) -> bool:
    return path.endswith((".safetensors", ".png"))


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
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = self._chunks()
        self.hub.requests.append((self.command, path))
        for methods, pattern, action in _ROUTES:
            if self.command in methods and (match := re.fullmatch(pattern, path)):
                try:
                    action(self, **match.groupdict())
                except _Refusal as refusal:
                    self._refuse(refusal)
                return
        self._refuse(_Refusal(501, "NotImplemented", f"the loopback Hub does not know {self.command} {path}"))

    do_GET = do_HEAD = do_POST = do_PUT = _route

    def _chunks(self) -> bytes:
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

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
        self._json(
            {
                "_id": oid[:24],
                "id": repo,
                "sha": oid,
                "private": repository.private,
                "gated": "manual" if repository.gated else False,
                "siblings": [{"rfilename": path} for path in repository.commits[oid]],
                "tags": [],
                "downloads": 0,
                "likes": 0,
            }
        )

    def tree(self, repo: str, revision: str) -> None:
        repository = self._repository(repo)
        files = repository.commits[self._commit(repository, revision)]
        self._json([file.listing(path) for path, file in files.items()])

    def resolve(self, repo: str, revision: str, path: str) -> None:
        repository = self._repository(repo)
        oid = self._commit(repository, revision)
        if repository.gated and not self._signed_in():
            raise _Refusal(401, "GatedRepo", f"Access to model {repo} is restricted.")
        file = repository.commits[oid].get(path)
        if file is None:
            raise _Refusal(404, "EntryNotFound", "Entry not found")
        headers = {"ETag": f'"{file.etag}"', "X-Repo-Commit": oid, "Content-Length": str(len(file.content))}
        if file.lfs:
            headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(len(file.content))}
        content = file.content
        if self.command == "GET":
            content = repository.served.get(path, bytes)(content)
            self.hub.downloads.append(path)
        # A short answer below its announced length: the connection ends there.
        self.close_connection = len(content) < len(file.content)
        if wanted := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start, length = int(wanted[1]), len(file.content)
            resumed = {"Content-Length": str(length - start), "Content-Range": f"bytes {start}-{length - 1}/{length}"}
            return self._send(content[start:], 206, headers | resumed)
        return self._send(content, headers=headers)

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
        repository = Repository(private=private, sdk=wanted.get("sdk"))
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
        self._json(
            {
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if _is_lfs(file["path"]) else "regular",
                        "shouldIgnore": False,
                        "oid": stored[file["path"]].etag if file["path"] in stored else None,
                    }
                    for file in json.loads(self.body)["files"]
                ]
            }
        )

    def lfs_batch(self, repo: str) -> None:
        self._may_write()
        self._repository(repo)
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            entry = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.lfs_objects:
                entry["actions"] = {
                    "upload": {"href": f"{self.hub.endpoint}/lfs-storage/{wanted['oid']}", "header": {}}
                }
            objects.append(entry)
        self._json({"transfer": "basic", "objects": objects})

    def lfs_upload(self, oid: str) -> None:
        if StoredFile(self.body, lfs=True).sha256 != oid:
            raise _Refusal(400, "", "the content has another SHA-256")
        self.hub.lfs_objects[oid] = self.body
        self._send(b"")

    def commit(self, repo: str, revision: str) -> None:
        self._may_write()
        repository = self._repository(repo)
        self._commit(repository, revision)
        changes: dict[str, StoredFile | None] = {}
        for line in self.body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                changes[value["path"]] = StoredFile(base64.b64decode(value["content"]), lfs=False)
            elif operation["key"] == "lfsFile":
                changes[value["path"]] = StoredFile(self.hub.lfs_objects[value["oid"]], lfs=True)
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
    (("POST",), rf"/api/(models|spaces)/{_ID}/branch/(?P<name>.+)", _Handler.branch),
    (("POST",), r"/api/validate-yaml", _Handler.validate),
    (("POST",), rf"/api/(models|spaces)/{_ID}/preupload/(?P<revision>.+)", _Handler.preupload),
    (("POST",), rf"/{_ID}\.git/info/lfs/objects/batch", _Handler.lfs_batch),
    (("PUT",), r"/lfs-storage/(?P<oid>[0-9a-f]{64})", _Handler.lfs_upload),
    (("POST",), rf"/api/(models|spaces)/{_ID}/commit/(?P<revision>.+)", _Handler.commit),
]
