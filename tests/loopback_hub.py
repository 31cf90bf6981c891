"""A small Hub on loopback: huggingface_hub's calls over HTTP, state in memory, faults on order.

Answers as the public Hub does where huggingface_hub 1.33 looks: git blob ids, LFS by SHA-256,
commits with parents, refs, `X-Error-Code`. Run as a program it serves until it is killed.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import re
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

LFS_SUFFIXES = (".parquet", ".mp4", ".safetensors", ".zip", ".jpg", ".png")


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repo:
    kind: str
    name: str
    private: bool = False
    commits: list[tuple[str, str]] = field(default_factory=list)  # id, title
    trees: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, tree: dict[str, bytes], title: str, branch: str = "main") -> str:
        text = f"{title} {len(self.commits)} {sorted(tree)}".encode()
        id_ = hashlib.sha1(text).hexdigest()
        self.commits.append((id_, title))
        self.trees[id_] = tree
        self.branches[branch] = id_
        return id_

    def resolve(self, revision: str) -> str | None:
        revision = urllib.parse.unquote(revision)
        found = self.branches.get(revision) or self.tags.get(revision)
        return found or (revision if revision in self.trees else None)


@dataclass
class Fault:
    """What to do to some requests instead of, or after, answering them.

    `kind`: a status code; `hang`, no answer for `seconds`; `drop`, hang up before doing anything;
    `lost`, do it and hang up; `html`, a proxy's page.
    """

    kind: int | str
    path: str = ""
    method: str = ""
    times: int = 1
    after: int = 0
    seconds: float = 2.0
    headers: dict[str, str] = field(default_factory=dict)

    def hits(self, method: str, path: str) -> bool:
        if self.times <= 0 or not re.search(self.path, path):
            return False
        if self.method and method != self.method:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True


class LoopbackHub:
    """The server and what it holds."""

    def __init__(self, port: int = 0, card_check: bool = True, delay_s: float = 0.0) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.log: list[str] = []
        self.card_check, self.delay_s = card_check, delay_s
        self.ranges = True
        self.page_size = 1000
        self.watch: Callable[[str, str], None] = lambda _method, _path: None
        self.weather: Callable[[], Fault | None] = lambda: None
        self.lock = threading.RLock()
        hub = self

        class Handler(_Handler):
            state = hub

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def reset(self) -> None:
        """Forget everything, as a new one."""
        with self.lock:
            self.repos, self.blobs, self.faults, self.log = {}, {}, [], []
            self.card_check, self.watch = True, lambda _method, _path: None
            self.weather = lambda: None
            self.ranges, self.page_size = True, 1000

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fault(self, kind: int | str, path: str = "", **options: Any) -> Fault:
        self.faults.append(Fault(kind, path, **options))
        return self.faults[-1]

    def repo(self, name: str, kind: str = "dataset") -> Repo:
        return self.repos[kind, name]

    def files(self, name: str, kind: str = "dataset", revision: str = "main") -> dict[str, bytes]:
        repo = self.repo(name, kind)
        id_ = repo.resolve(revision)
        assert id_ is not None
        return repo.trees[id_]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def loopback_hub(**options: Any) -> Iterator[LoopbackHub]:
    hub = LoopbackHub(**options)
    try:
        yield hub
    finally:
        hub.stop()


class _Answered(Exception):  # noqa: N818
    pass


class _Handler(http.server.BaseHTTPRequestHandler):
    state: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _handle(self) -> None:
        path, _, query = self.path.partition("?")
        self.query = urllib.parse.parse_qs(query)
        method = self.command
        hub = self.state
        body = self._body()
        with hub.lock:
            hub.log.append(f"{method} {path}")
            hub.watch(method, path)
            fault = next((f for f in hub.faults if f.hits(method, path)), None) or hub.weather()
        if hub.delay_s:
            time.sleep(hub.delay_s)
        if fault is not None and fault.kind != "lost":
            self._fail(fault)
            return
        self.lost = fault is not None
        try:
            with hub.lock:
                self._route(method, urllib.parse.unquote(path), path, body)
        except _Answered:
            return
        except KeyError:
            self._error(404, "RepoNotFound")

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _handle  # noqa: N815

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _fail(self, fault: Fault) -> None:
        if fault.kind == "hang":
            time.sleep(fault.seconds)
        if fault.kind in ("hang", "drop"):
            self._hang_up()
        elif fault.kind == "html":
            self._send(200, b"<html>Log in to this network</html>", {"Content-Type": "text/html"})
        else:
            self._send(int(fault.kind), b'{"error": "injected"}', fault.headers)

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        if getattr(self, "lost", False):
            self._hang_up()
            return
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str) -> None:
        self._send(status, json.dumps({"error": code}).encode(), {"X-Error-Code": code})

    # -- the calls ------------------------------------------------------------------------------

    def _route(self, method: str, path: str, raw: str, body: bytes) -> None:
        hub = self.state
        if path == "/api/whoami-v2":
            return self._json({"name": "me", "type": "user", "orgs": []})
        if path == "/api/validate-yaml":
            if not hub.card_check:
                return self._send(404, b"<html>not here</html>")
            return self._json({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if raw.startswith("/lfs/"):
            return self._put_blob(path.rpartition("/")[2], body)
        found = re.fullmatch(r"/(datasets/)?(.+?)\.git/info/lfs/objects/batch", path)
        if found:
            return self._batch(json.loads(body))
        found = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(.*))?", raw)
        if found:
            repo = hub.repos[found[1][:-1], found[2]]
            return self._api(method, repo, found[3] or "", body)
        found = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", raw)
        if found:
            repo = hub.repos["dataset" if found[1] else "model", found[2]]
            return self._resolve(repo, found[3], urllib.parse.unquote(found[4]))
        return self._error(404, "Unknown")

    def _create(self, asked: dict[str, Any]) -> None:
        kind, name = asked.get("type", "model"), f"{asked['organization']}/{asked['name']}"
        url = f"{self.state.url}/{'datasets/' if kind == 'dataset' else ''}{name}"
        if (kind, name) in self.state.repos:
            return self._json({"error": "You already created this repo", "url": url}, 409)
        repo = Repo(kind, name, asked.get("visibility") == "private")
        repo.commit({".gitattributes": b"*.parquet filter=lfs\n"}, "initial commit")
        self.state.repos[kind, name] = repo
        return self._json({"url": url, "name": name})

    def _put_blob(self, oid: str, body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != oid:
            return self._error(400, "BadHash")
        self.state.blobs[oid] = body
        return self._send(200, b"")

    def _batch(self, asked: dict[str, Any]) -> None:
        objects = []
        for entry in asked["objects"]:
            known = {"oid": entry["oid"], "size": entry["size"]}
            if entry["oid"] not in self.state.blobs:
                href = f"{self.state.url}/lfs/{entry['oid']}"
                known["actions"] = {"upload": {"href": href, "header": {}}}
            objects.append(known)
        self._json({"transfer": "basic", "objects": objects})

    def _api(self, method: str, repo: Repo, rest: str, body: bytes) -> None:
        verb, _, tail = rest.partition("/")
        if verb in ("", "revision"):
            return self._info(repo, tail or "main")
        if verb == "refs":
            return self._json({"branches": _refs(repo.branches, "heads"), "converts": [],
                               "tags": _refs(repo.tags, "tags")})  # fmt: skip
        if verb in ("tag", "branch"):
            return self._ref(method, repo, verb, urllib.parse.unquote(tail), body)
        id_ = repo.resolve(tail.partition("/")[0])
        if id_ is None:
            return self._error(404, "RevisionNotFound")
        tree = repo.trees[id_]
        if verb == "preupload":
            return self._preupload(tree, json.loads(body))
        if verb == "commit":
            return self._commit(repo, tree, urllib.parse.unquote(tail), body)
        if verb == "tree":
            return self._tree(tree)
        if verb == "paths-info":
            names = urllib.parse.parse_qs(body.decode()).get("paths") or json.loads(body)["paths"]
            return self._json([_entry(n, tree[n]) for n in names if n in tree])
        if verb == "commits":
            return self._json([{"id": i, "title": t} for i, t in reversed(repo.commits)])
        return self._error(404, "Unknown")

    def _tree(self, tree: dict[str, bytes]) -> None:
        path = self.path.partition("?")[0]
        first = int(self.query.get("cursor", ["0"])[0])
        last = first + self.state.page_size
        entries = [_entry(name, tree[name]) for name in sorted(tree)][first:last]
        more = {"Link": f'<{self.state.url}{path}?recursive=true&cursor={last}>; rel="next"'}
        headers = {"Content-Type": "application/json"} | (more if last < len(tree) else {})
        self._send(200, json.dumps(entries).encode(), headers)

    def _info(self, repo: Repo, revision: str) -> None:
        id_ = repo.resolve(revision)
        if id_ is None:
            return self._error(404, "RevisionNotFound")
        siblings = [{"rfilename": name} for name in sorted(repo.trees[id_])]
        return self._json({"id": repo.name, "sha": id_, "private": repo.private, "tags": [],
                           "downloads": 0, "likes": 0, "siblings": siblings})  # fmt: skip

    def _ref(self, method: str, repo: Repo, verb: str, name: str, body: bytes) -> None:
        refs = repo.tags if verb == "tag" else repo.branches
        if method == "DELETE":
            if name not in refs:
                return self._error(404, "RevisionNotFound")
            del refs[name]
            return self._send(200, b"")
        asked = json.loads(body or b"{}")
        tag = asked["tag"] if verb == "tag" else name
        id_ = repo.resolve(name if verb == "tag" else asked.get("startingPoint", "main"))
        if id_ is None:
            return self._error(404, "RevisionNotFound")
        if tag in refs:
            return self._json({"error": "Reference already exists"}, 409)
        refs[tag] = id_
        return self._send(200, b"")

    def _preupload(self, tree: dict[str, bytes], asked: dict[str, Any]) -> None:
        files = []
        for entry in asked["files"]:
            name = entry["path"]
            mode = "lfs" if name.endswith(LFS_SUFFIXES) else "regular"
            ignored = asked.get("gitIgnore", tree.get(".gitignore", b"").decode()).split()
            known = {"path": name, "uploadMode": mode, "shouldIgnore": name in ignored}
            if name in tree:
                lfs = hashlib.sha256(tree[name]).hexdigest()
                known["oid"] = lfs if mode == "lfs" else git_hash(tree[name])
            files.append(known)
        self._json({"files": files})

    def _commit(self, repo: Repo, tree: dict[str, bytes], branch: str, body: bytes) -> None:
        new, title = dict(tree), ""
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "header":
                title = value["summary"]
                if value.get("parentCommit", repo.branches[branch]) != repo.branches[branch]:
                    return self._error(412, "PreconditionFailed")
            elif item["key"] == "file":
                new[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                if value["oid"] not in self.state.blobs:
                    return self._error(400, "MissingObject")
                new[value["path"]] = self.state.blobs[value["oid"]]
            elif value["path"] not in new:
                return self._error(404, "EntryNotFound")
            else:
                del new[value["path"]]
        id_ = repo.commit(new, title, branch)
        url = f"{self.state.url}/{repo.name}/commit/{id_}"
        return self._json({"commitOid": id_, "commitUrl": url, "success": True})

    def _resolve(self, repo: Repo, revision: str, name: str) -> None:
        id_ = repo.resolve(revision)
        if id_ is None:
            return self._error(404, "RevisionNotFound")
        if name not in repo.trees[id_]:
            return self._error(404, "EntryNotFound")
        content = repo.trees[id_][name]
        headers = {"X-Repo-Commit": id_, "ETag": f'"{git_hash(content)}"',
                   "Content-Length": str(len(content))}  # fmt: skip
        if name.endswith(LFS_SUFFIXES):
            headers |= {"X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
                        "X-Linked-Size": str(len(content))}  # fmt: skip
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if asked and self.state.ranges:
            part = content[int(asked[1]) : int(asked[2]) + 1]
            return self._send(206, part, headers | {"Content-Length": str(len(part))})
        return self._send(200, content, headers)


def _refs(refs: dict[str, str], kind: str) -> list[dict[str, str]]:
    return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": c} for n, c in refs.items()]


def _entry(name: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content),
                             "oid": git_hash(content)}  # fmt: skip
    if name.endswith(LFS_SUFFIXES):
        sha256 = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 130}
    return entry


if __name__ == "__main__":
    with loopback_hub(port=int(sys.argv[1])) as running:
        threading.Event().wait()
