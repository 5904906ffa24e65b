"""A small Kubernetes API, over HTTP on loopback, for clients that ask one: pods, and some other
kinds of the core group, kept in memory.

    with ApiServer("events", role["rules"]) as api:
        ... api.url ...
        assert api.requests == [Request("create", "pods", ""), ...]

It answers as the real one does to what fabric8's client in Spark says: objects with uids and
versions, lists by label and field, watches that stay open, 404 and 409 with a Status. What `rules`,
those of a Role, do not allow is refused with 403, as RBAC would. Pods stay Pending until a test
says otherwise.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import queue
import re
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.support.kubernetes.chart import Object

_PATH = re.compile(
    r"/api/v1/namespaces/(?P<namespace>[^/]+)/(?P<resource>[a-z]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<subresource>[a-z]+))?)?"
)
# Of a selector of labels: `a=b,c!=d,e in (f,g)`.
_PARTS = re.compile(r"(?:[^,(]|\([^)]*\))+")
_PART = re.compile(
    r"(?P<key>[-./\w]+)(?P<operator>==|=|!=| in | notin )(?P<values>[-.\w]*|\([^)]*\))"
)
_KINDS = {
    "pods": "Pod",
    "configmaps": "ConfigMap",
    "services": "Service",
    "persistentvolumeclaims": "PersistentVolumeClaim",
}
# What both sides of a web socket know (RFC 6455).
_WEB_SOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_SINGLE = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_MANY = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}


@dataclass(frozen=True, slots=True)
class Request:
    """As RBAC judges it."""

    verb: str
    resource: str
    namespace: str
    name: str = ""


def is_allowed(request: Request, rules: Sequence[Object]) -> bool:
    """By a Role of the request's namespace."""
    return any(allows(rule, request) for rule in rules)


def allows(rule: Object, request: Request) -> bool:
    names: list[str] = rule.get("resourceNames", [request.name])
    return (
        all(
            asked in rule[which]
            for which, asked in (
                ("apiGroups", ""), ("resources", request.resource), ("verbs", request.verb)
            )
        )
        and request.name in names
    )  # fmt: skip


@dataclass(slots=True)
class _Watch:
    resource: str
    namespace: str
    selector: str
    name: str
    events: queue.Queue[tuple[str, Object] | None] = field(default_factory=queue.Queue)

    def wants(self, resource: str, found: Object) -> bool:
        return resource == self.resource and _matches(
            found, self.namespace, self.selector, self.name
        )


def _matches(found: Object, namespace: str, selector: str, name: str) -> bool:
    metadata = found["metadata"]
    return (
        metadata["namespace"] == namespace
        and (not name or metadata["name"] == name)
        and selects(selector, metadata.get("labels", {}))
    )


class ApiServer:
    def __init__(self, namespace: str, rules: Sequence[Object]) -> None:
        self.namespace = namespace
        self.rules = rules
        # In the order in which they came; and those that were refused.
        self.requests: list[Request] = []
        self.refused: list[Request] = []
        # What was asked to be created, as it came.
        self.created: list[Object] = []
        # What could not be understood: this is not all of Kubernetes.
        self.unknown: list[str] = []
        self._lock = threading.RLock()
        self._objects: dict[tuple[str, str], Object] = {}
        self._versions = itertools.count(1)
        self._watches: list[_Watch] = []
        api = self

        class Handler(_Handler):
            server_api = api

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            for watch in self._watches:
                watch.events.put(None)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10.0)

    # ---- what tests say and ask ------------------------------------------------------------------

    def add(self, resource: str, found: Object) -> Object:
        """As if it had been there; a kubelet, say, changes what becomes of a pod."""
        with self._lock:
            metadata = {"namespace": self.namespace, **found["metadata"]}
            key = resource, metadata["name"]
            former = self._objects.get(key)
            version = str(next(self._versions))
            uid = former["metadata"]["uid"] if former else f"00000000-0000-0000-0000-{version:0>12}"
            metadata |= {"uid": uid, "resourceVersion": version}
            metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
            kept = {"apiVersion": "v1", "kind": _KINDS[resource], **found, "metadata": metadata}
            self._objects[key] = kept
            self._tell("MODIFIED" if former else "ADDED", resource, kept)
            return kept

    def objects(self, resource: str, selector: str = "") -> list[Object]:
        with self._lock:
            return [
                found
                for (kind, _), found in self._objects.items()
                if kind == resource and _matches(found, self.namespace, selector, "")
            ]

    def _tell(self, what: str, resource: str, found: Object) -> None:
        for watch in self._watches:
            if watch.wants(resource, found):
                watch.events.put((what, found))

    # ---- what clients ask ------------------------------------------------------------------------

    def judge(self, request: Request) -> bool:
        with self._lock:
            self.requests.append(request)
            if request.namespace == self.namespace and is_allowed(request, self.rules):
                return True
            self.refused.append(request)
            return False

    def find(self, resource: str, name: str) -> Object | None:
        with self._lock:
            return self._objects.get((resource, name))

    def create(self, resource: str, body: Object) -> Object | None:
        with self._lock:
            name = body["metadata"]["name"]
            if self.find(resource, name) is not None:
                return None
            self.created.append(body)
            status = {"status": {"phase": "Pending"}} if resource == "pods" else {}
            return self.add(resource, {**body, **status})

    def delete(self, resource: str, name: str) -> Object | None:
        with self._lock:
            gone = self._objects.pop((resource, name), None)
            if gone is not None:
                self._tell("DELETED", resource, gone)
            return gone

    def listed(self, resource: str, selector: str, name: str) -> tuple[list[Object], str]:
        with self._lock:
            found = self.objects(resource, selector)
            items = [one for one in found if name in ("", one["metadata"]["name"])]
            return items, str(next(self._versions))

    def watch(self, watch: _Watch) -> None:
        with self._lock:
            self._watches.append(watch)

    def unwatch(self, watch: _Watch) -> None:
        with self._lock:
            self._watches.remove(watch)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_api: ApiServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # of the standard library
        pass

    def handle(self) -> None:
        # Who asks may go at any time.
        with contextlib.suppress(ConnectionError):
            super().handle()

    def __getattr__(self, name: str) -> Any:
        if name in {f"do_{method}" for method in (*_SINGLE, *_MANY)}:
            return self._serve
        raise AttributeError(name)

    def _serve(self) -> None:
        api = self.server_api
        length = int(self.headers.get("Content-Length") or 0)
        body: Object = json.loads(self.rfile.read(length)) if length else {}
        url = urlsplit(self.path)
        asked = {name: values[-1] for name, values in parse_qs(url.query).items()}
        found = _PATH.fullmatch(url.path)
        if found is None or found["resource"] not in _KINDS:
            api.unknown.append(f"{self.command} {self.path}")
            self._refuse(404, "NotFound", "the server could not find the requested resource")
            return
        resource, name = found["resource"], found["name"] or ""
        verb = (_SINGLE if name else _MANY).get(self.command, "")
        by_field = asked.get("fieldSelector", "").removeprefix("metadata.name=")
        if asked.get("watch") == "true":
            verb = "watch"
        kind = f"{resource}/{found['subresource']}" if found["subresource"] else resource
        # RBAC knows the one that a list or a watch is limited to by its name.
        request = Request(verb, kind, found["namespace"], name or by_field)
        if not api.judge(request):
            where = f'in the namespace "{request.namespace}"'
            said = f'User "test" cannot {verb} resource "{kind}" in API group "" {where}'
            self._refuse(403, "Forbidden", f"{kind} is forbidden: {said}")
            return
        selector = asked.get("labelSelector", "")
        match verb:
            case "get":
                self._answer_or_404(api.find(resource, name), name)
            case "list":
                items, version = api.listed(resource, selector, by_field)
                metadata = {"resourceVersion": version}
                self._answer(200, _list_of(resource, items, metadata))
            case "watch":
                self._stream(_Watch(resource, found["namespace"], selector, by_field))
            case "create":
                made = api.create(resource, body)
                if made is None:
                    self._refuse(409, "AlreadyExists", "it exists already")
                else:
                    self._answer(201, made)
            case "delete":
                self._answer_or_404(api.delete(resource, name), name)
            case "deletecollection":
                gone, version = api.listed(resource, selector, by_field)
                for one in gone:
                    api.delete(resource, one["metadata"]["name"])
                self._answer(200, _list_of(resource, gone, {"resourceVersion": version}))
            case _:
                api.unknown.append(f"{self.command} {self.path}")
                self._refuse(405, "MethodNotAllowed", f"{verb} is not known here")

    def _answer_or_404(self, found: Object | None, name: str) -> None:
        if found is None:
            self._refuse(404, "NotFound", f'"{name}" not found')
        else:
            self._answer(200, found)

    def _refuse(self, code: int, reason: str, message: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        self._answer(code, {**status, "reason": reason, "message": message})

    def _answer(self, code: int, document: Any) -> None:
        raw = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _stream(self, watch: _Watch) -> None:
        """Until somebody hangs up, or the server ends. Fabric8 asks for a web socket, as browsers
        did; what it is told by one are frames of text."""
        key = self.headers.get("Sec-WebSocket-Key")
        if key is None:
            self.server_api.unknown.append(f"a watch without a web socket: {self.path}")
            self._refuse(400, "BadRequest", "here watches go by web sockets")
            return
        self.server_api.watch(watch)
        self.close_connection = True
        try:
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            digest = hashlib.sha1(f"{key}{_WEB_SOCKET}".encode()).digest()  # noqa: S324  # RFC 6455
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(digest).decode())
            self.end_headers()
            while (event := watch.events.get()) is not None:
                kind, found = event
                self.wfile.write(_text_frame(json.dumps({"type": kind, "object": found})))
        except OSError:
            # Whoever watched has gone.
            pass
        finally:
            self.server_api.unwatch(watch)


def _text_frame(text: str) -> bytes:
    """Whole, and unmasked, as servers send them."""
    raw = text.encode()
    if len(raw) < 126:
        return struct.pack("!BB", 0x81, len(raw)) + raw
    return struct.pack("!BBH", 0x81, 126, len(raw)) + raw


def _list_of(resource: str, items: list[Object], metadata: Object) -> Object:
    return {
        "kind": f"{_KINDS[resource]}List",
        "apiVersion": "v1",
        "metadata": metadata,
        "items": items,
    }


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """A selector of labels, as in a query."""
    return all(_holds(part, labels) for part in _PARTS.findall(selector))


def _holds(part: str, labels: Mapping[str, str]) -> bool:
    found = _PART.fullmatch(part)
    if found is None:
        raise ValueError(f"no selector: {part!r}")
    value, operator = labels.get(found["key"]), found["operator"]
    wanted = re.findall(r"[^\s,()]+", found["values"])
    if operator in ("!=", " notin "):
        return value not in wanted
    return value in wanted
