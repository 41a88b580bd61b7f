"""A Hugging Face Hub on loopback for the real ``huggingface_hub`` client.

    with HubServer(folder, tokens={"hf_...": "alice"}) as hub: ...    # hub.url is the endpoint

Repositories are real: content-addressed blobs, commits, branches, tags. LFS objects come from a second
origin (``localhost`` instead of ``127.0.0.1``), as the Hub's come from its CDN, so that the client really
follows redirects and strips tokens. ``faults`` break answers on demand.

Not supported: Xet, multi-part uploads, pull requests, organisations, git itself, Spaces, listings of many
repositories, rate limits, resumable uploads, TLS.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

LFS = ("*.safetensors", "*.parquet", "*.bin", "*.png")
Files = dict[str, dict[str, Any]]  # path -> oid, size, and for LFS the sha256


class RefusedError(Exception):
    def __init__(self, status: int, says: str, code: str = "") -> None:
        self.status, self.says, self.code = status, says, code


@dataclass
class Repo:
    owner: str
    private: bool
    gated: bool = False
    commits: dict[str, Files] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Files, branch: str = "main") -> str:
        told = json.dumps([files, len(self.commits), self.heads.get(branch)], sort_keys=True)
        sha = hashlib.sha1(told.encode()).hexdigest()
        self.commits[sha] = files
        self.heads[branch] = sha
        return sha

    def at(self, revision: str) -> tuple[str, Files]:
        name = re.sub("^refs/(heads|tags)/", "", revision)
        sha = self.heads.get(name) or self.tags.get(name) or name
        if sha not in self.commits:
            raise RefusedError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return sha, self.commits[sha]


class HubServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, blobs: Path, tokens: dict[str, str] | None = None) -> None:
        self.blobs, self.tokens = blobs, dict(tokens or {})
        self.repos: dict[str, Repo] = {}  # "models/owner/name"
        self.log: list[str] = []  # "GET /path 200"
        self.faults: list[tuple[str, str, int]] = []  # regex on "METHOD path", fault, how often
        self.lock = threading.RLock()
        blobs.mkdir(parents=True, exist_ok=True)
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.cdn = f"http://localhost:{self.server_port}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def store(self, data: bytes, lfs: bool) -> dict[str, Any]:
        git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        entry = {"oid": git, "size": len(data)}
        if lfs:
            entry["sha256"] = hashlib.sha256(data).hexdigest()
        (self.blobs / entry.get("sha256", git)).write_bytes(data)
        return entry

    def make(self, name: str, files: dict[str, bytes], **options: Any) -> str:
        """Create or update a repository (models/owner/name); return its commit."""
        repo = self.repos.setdefault(name, Repo(name.split("/")[1], options.pop("private", False)))
        repo.gated = options.pop("gated", False)
        return repo.commit({n: self.store(d, _in_lfs(n)) for n, d in files.items()})


def _in_lfs(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in LFS)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> HubServer:
        return cast(HubServer, self.server)

    def log_message(self, *_: object) -> None:
        """Print nothing: tests read ``HubServer.log``."""

    def answer(self, value: Any = None, status: int = 200, size: int | None = None, **headers: str) -> None:  # fmt: skip
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.hub.log.append(f"{self.command} {self.path} {status}")
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) if size is None else size))
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def dispatch(self) -> None:
        url = urlsplit(self.path)
        self.query = {k: v[-1] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bearer = re.fullmatch(r"Bearer (.+)", self.headers.get("Authorization", ""))
        self.user = self.hub.tokens.get(bearer[1]) if bearer else None
        try:
            if bearer and not self.user:
                raise RefusedError(401, "Invalid credentials in Authorization header")
            self.fault = self._fault()
            if self.fault.isdigit():
                raise RefusedError(
                    int(self.fault), f"broken on demand, by {self.headers['Authorization']}"
                )
            for methods, pattern, call in ROUTES:
                match = re.fullmatch(pattern, url.path)
                if match and self.command in methods:
                    parts = [unquote(part) if part else "" for part in match.groups()]
                    with self.hub.lock:
                        call(self, *parts)
                    return
            raise RefusedError(404, f"no route {self.command} {url.path}")
        except RefusedError as e:
            headers = {"X_Error_Message": e.says} | ({"X_Error_Code": e.code} if e.code else {})
            self.answer({"error": e.says}, e.status, **headers)

    do_GET = do_HEAD = do_POST = do_PUT = dispatch  # noqa: N815 (http.server)

    def _fault(self) -> str:
        with self.hub.lock:
            for number, (pattern, what, times) in enumerate(self.hub.faults):
                if times and re.search(pattern, f"{self.command} {self.path}"):
                    self.hub.faults[number] = (pattern, what, times - 1)
                    return what
        return ""

    def repo(self, kind: str, name: str, write: bool = False, content: bool = False) -> Repo:
        found = self.hub.repos.get(f"{kind or 'models'}/{name}")
        if found is None or (found.private and self.user != found.owner):
            raise RefusedError(404 if self.user else 401, "Repository not found", "RepoNotFound")
        if write and self.user != found.owner:
            raise RefusedError(403 if self.user else 401, f"no right to write to {name}")
        if content and found.gated and self.user != found.owner:
            raise RefusedError(
                403 if self.user else 401, f"Access to {name} is restricted.", "GatedRepo"
            )
        return found

    # ---- reading ------------------------------------------------------------------------------

    def info(self, kind: str, name: str, revision: str) -> None:
        repo = self.repo(kind, name)
        sha, files = repo.at(revision or "main")
        siblings = []
        for path, entry in sorted(files.items()):
            told = {"rfilename": path, "size": entry["size"], "blobId": entry["oid"]}
            if "sha256" in entry:
                told["lfs"] = {"size": entry["size"], "sha256": entry["sha256"], "pointerSize": 130}
            siblings.append(told if "blobs" in self.query else {"rfilename": path})
        self.answer(
            {
                "id": name,
                "sha": sha,
                "private": repo.private,
                "gated": "auto" if repo.gated else False,
                "tags": [],
                "siblings": siblings,
            }
        )

    def refs(self, kind: str, name: str) -> None:
        repo = self.repo(kind, name)

        def listed(refs: dict[str, str], what: str) -> list[dict[str, str]]:
            return [{"name": n, "ref": f"refs/{what}/{n}", "targetCommit": c} for n, c in refs.items()]  # fmt: skip

        self.answer(
            {
                "branches": listed(repo.heads, "heads"),
                "tags": listed(repo.tags, "tags"),
                "converts": [],
            }
        )

    def resolve(self, kind: str, name: str, revision: str, path: str) -> None:
        sha, files = self.repo(kind, name, content=True).at(revision)
        entry = files.get(path)
        if entry is None:
            self.answer(b"", 404, X_Repo_Commit=sha, X_Error_Code="EntryNotFound")
        elif "sha256" in entry:
            self.answer(
                b"",
                302,
                X_Repo_Commit=sha,
                X_Linked_Etag=f'"{entry["sha256"]}"',
                X_Linked_Size=str(entry["size"]),
                Location=f"{self.hub.cdn}/cdn/{entry['sha256']}",
            )
        else:
            self.payload(entry["oid"], X_Repo_Commit=sha, ETag=f'"{entry["oid"]}"')

    def cdn(self, oid: str) -> None:
        if "Authorization" in self.headers:  # a token leaked to another origin
            raise RefusedError(400, "Only one auth mechanism allowed")
        self.payload(oid, ETag=f'"{oid}"')

    def payload(self, oid: str, **headers: str) -> None:
        data, status = (self.hub.blobs / oid).read_bytes(), 200
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if found:
            total, first = len(data), int(found[1])
            last = min(int(found[2] or total - 1), total - 1)
            data, status = data[first : last + 1], 206
            headers["Content_Range"] = f"bytes {first}-{last}/{total}"
        size, fault = len(data), self.fault if self.command == "GET" else ""
        if fault == "flip":  # the right number of bytes, one of them wrong
            data = data[: size // 2] + bytes([data[size // 2] ^ 1]) + data[size // 2 + 1 :]
        elif fault in ("cut", "short"):  # cut: the connection ends early; short: a shorter body
            data = data[: size // 2]
            self.close_connection = self.close_connection or fault == "cut"
        self.answer(data, status, len(data) if fault == "short" else size, **headers)

    # ---- writing ------------------------------------------------------------------------------

    def create(self) -> None:
        told = json.loads(self.body)
        owner = told.get("organization") or self.user
        if not self.user or owner != self.user:
            raise RefusedError(
                403 if self.user else 401, f"no right to make a repository of {owner}"
            )
        name, kind = f"{owner}/{told['name']}", told.get("type", "model") + "s"
        if f"{kind}/{name}" in self.hub.repos:
            raise RefusedError(409, "You already created this repo")
        private = told.get("visibility") == "private" or bool(told.get("private"))
        repo = self.hub.repos[f"{kind}/{name}"] = Repo(owner, private)
        repo.commit({".gitattributes": self.hub.store(b"*.safetensors filter=lfs\n", False)})
        self.answer({"url": f"{self.hub.url}/{name}", "id": name, "name": name})

    def preupload(self, kind: str, name: str, revision: str) -> None:
        _, have = self.repo(kind, name, write=True).at(revision)
        told = []
        for file in json.loads(self.body)["files"]:
            mode = "lfs" if _in_lfs(file["path"]) else "regular"
            told.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
            if file["path"] in have:
                entry = have[file["path"]]
                told[-1]["oid"] = entry.get("sha256", entry["oid"])
        self.answer({"files": told})

    def batch(self, kind: str, name: str) -> None:
        self.repo(kind, name, write=True)
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            there = (self.hub.blobs / wanted["oid"]).exists()
            actions = {} if there else {"actions": {"upload": {"href": f"{self.hub.cdn}/lfs/{wanted['oid']}"}}}  # fmt: skip
            objects.append(wanted | {"authenticated": True} | actions)
        self.answer({"transfer": "basic", "objects": objects})

    def upload(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise RefusedError(400, "the content is not what its name says")
        (self.hub.blobs / oid).write_bytes(self.body)
        self.answer(b"")

    def commit(self, kind: str, name: str, branch: str) -> None:
        repo = self.repo(kind, name, write=True)
        head, files = repo.at(branch)
        files, wants = dict(files), head
        for line in filter(None, self.body.split(b"\n")):
            told = json.loads(line)
            key, value = told["key"], told["value"]
            if key == "header":
                wants = value.get("parentCommit") or head
            elif key == "file":
                files[value["path"]] = self.hub.store(base64.b64decode(value["content"]), False)
            elif key == "lfsFile":
                blob = self.hub.blobs / value["oid"]
                if not blob.exists():
                    raise RefusedError(400, "the LFS object was not uploaded")
                files[value["path"]] = self.hub.store(blob.read_bytes(), True)
            else:
                del files[value["path"]]
        if wants != head:
            raise RefusedError(412, "A commit has happened since. Please refresh and try again.")
        sha = repo.commit(files, branch)
        url = f"{self.hub.url}/{name}/commit/{sha}"
        self.answer({"success": True, "commitOid": sha, "commitUrl": url})

    def tag(self, kind: str, name: str, revision: str) -> None:
        repo, wanted = self.repo(kind, name, write=True), json.loads(self.body)["tag"]
        if wanted in repo.tags:
            raise RefusedError(409, f"Reference already exists: {wanted}")
        repo.tags[wanted] = repo.at(revision)[0]
        self.answer({})

    def whoami(self) -> None:
        if not self.user:
            raise RefusedError(401, "Invalid username or password.")
        self.answer({"type": "user", "name": self.user, "orgs": []})

    def valid(self) -> None:
        self.answer({"warnings": [], "errors": []})


API, REVISION = r"/api/(models|datasets)/([^/]+/[^/]+)", "([^/]+)"
FILES, OID = r"/(?:(datasets)/)?([^/]+/[^/]+?)", "([0-9a-f]{40,64})"
ROUTES: list[tuple[tuple[str, ...], str, Callable[..., None]]] = [
    (("GET",), rf"{API}(?:/revision/{REVISION})?", Handler.info),
    (("GET",), rf"{API}/refs", Handler.refs),
    (("GET", "HEAD"), rf"{FILES}/resolve/{REVISION}/(.+)", Handler.resolve),
    (("GET", "HEAD"), rf"/cdn/{OID}", Handler.cdn),
    (("GET",), "/api/whoami-v2", Handler.whoami),
    (("POST",), "/api/repos/create", Handler.create),
    (("POST",), "/api/validate-yaml", Handler.valid),
    (("POST",), rf"{API}/preupload/{REVISION}", Handler.preupload),
    (("POST",), rf"{FILES}\.git/info/lfs/objects/batch", Handler.batch),
    (("PUT",), rf"/lfs/{OID}", Handler.upload),
    (("POST",), rf"{API}/commit/{REVISION}", Handler.commit),
    (("POST",), rf"{API}/tag/{REVISION}", Handler.tag),
]
