"""Asking a manager over HTTP: options, requests, and its problems as one sentence."""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from email.message import Message
from http.client import HTTPException, HTTPResponse
from ssl import SSLContext, SSLError, create_default_context
from typing import Any

from dynatops.cli.access import add_access, credentials_of
from dynatops.cli.errors import CommandError, UsageError

MANAGER_VARIABLE = "DYNATOPS_MANAGER"
DEFAULT_URL = "http://127.0.0.1:7480"
TIMEOUT_S = 30.0
_REDIRECTS_MAX = 5
_TRIES = 4
_RETRY_MAX_S = 5.0
# Streams of events say something at least this often, several times over.
_STREAM_TIMEOUT_S = 60.0
_BODY_SHOWN = 200


def add_manager(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--manager",
        metavar="URL[,…]",
        default=os.environ.get(MANAGER_VARIABLE, DEFAULT_URL),
        help=f"a reconfiguration manager, or several (default: ${MANAGER_VARIABLE}, or "
        f"{DEFAULT_URL})",
    )
    add_access(parser)


class ManagerProblem(CommandError):  # noqa: N818  # what it is, as RFC 9457 calls it
    """The manager answered that it does not."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code


class UnreachableError(CommandError):
    """No manager answered."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Its own rules for 307 would drop the body, and carry the token anywhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class ManagerClient:
    def __init__(self, urls: str, token: str = "", context: SSLContext | None = None) -> None:
        """Raises UsageError."""
        self._urls = [_checked(url.strip()) for url in urls.split(",") if url.strip()]
        if not self._urls:
            raise UsageError("--manager names no manager")
        self._token = token
        # What leads to a manager is not the proxy that leads out.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=context),
            _NoRedirects,
        )

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> ManagerClient:
        credentials = credentials_of(arguments)
        return cls(arguments.manager, credentials.token, _context(credentials.tls))

    # ---- requests --------------------------------------------------------------------------------

    def get(self, path: str, **query: str | int) -> Any:
        return self.ask("GET", path, query=query)[0]

    def post(self, path: str, body: Mapping[str, Any], key: str = "") -> Any:
        headers = {"Idempotency-Key": key} if key else {}
        return self.ask("POST", path, body=body, headers=headers)[0]

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str | int] | None = None,
    ) -> tuple[Any, Message]:
        """The document, and its headers. Raises ManagerProblem and UnreachableError."""
        if query:
            path = f"{path}?{urllib.parse.urlencode(query)}"
        raw = None if body is None else json.dumps(body).encode()
        given = dict(headers or {})
        if raw is not None:
            given["Content-Type"] = "application/json"
        # A repeated GET does no harm, nor does a POST with a key.
        repeatable = method == "GET" or "Idempotency-Key" in given
        with self._open(method, path, raw, given, repeatable) as response:
            text = response.read()
            return _document(text, response.url), response.headers

    def pages(self, path: str, items_max: int, **query: str | int) -> Iterator[Any]:
        """Items of all pages, up to so many."""
        left = items_max
        while left > 0:
            page = self.get(path, limit=min(left, 200), **query)
            yield from page["items"][:left]
            left -= len(page["items"])
            if page["next_cursor"] is None:
                return
            query["cursor"] = page["next_cursor"]

    def events(self, last_id: str = "") -> Iterator[tuple[str, str, str]]:
        """(id, kind, data) until the stream ends; kind and data are empty while nothing happens."""
        headers = {"Accept": "text/event-stream"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        with self._open("GET", "/v1/events", None, headers, True, _STREAM_TIMEOUT_S) as response:
            yield from _events(response)

    # ---- how -------------------------------------------------------------------------------------

    def _open(
        self,
        method: str,
        path: str,
        raw: bytes | None,
        headers: dict[str, str],
        repeatable: bool,
        timeout_s: float = TIMEOUT_S,
    ) -> HTTPResponse:
        """From the first manager that answers, or the one that it names."""
        for attempt in range(_TRIES):
            try:
                return self._open_once(method, path, raw, headers, timeout_s)
            except ManagerProblem as problem:
                if problem.status != 503 or problem.code == "too_many_watchers":
                    raise
                if attempt == _TRIES - 1 or not (repeatable or problem.code == "no_leader"):
                    raise
            except UnreachableError:
                # A manager that just lost its leader names it for a moment still.
                if attempt == _TRIES - 1 or not repeatable or len(self._urls) == 1:
                    raise
            time.sleep(min(_RETRY_MAX_S, 0.5 * 2**attempt))
        raise AssertionError

    def _open_once(
        self, method: str, path: str, raw: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> HTTPResponse:
        failures: list[str] = []
        for url in self._urls:
            try:
                return self._follow(method, url + path, raw, headers, timeout_s)
            except urllib.error.HTTPError:
                raise
            except (OSError, HTTPException) as error:
                failures.append(f"{url}: {_why(error)}")
        raise UnreachableError(f"no manager answers ({'; '.join(failures)})")

    def _follow(
        self, method: str, url: str, raw: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> HTTPResponse:
        for _ in range(_REDIRECTS_MAX):
            request = urllib.request.Request(url, raw, headers, method=method)  # noqa: S310  # checked
            if self._token:
                request.add_unredirected_header("Authorization", f"Bearer {self._token}")
            try:
                response: HTTPResponse = self._opener.open(request, timeout=timeout_s)
            except urllib.error.HTTPError as error:
                location = error.headers.get("Location", "")
                if error.code != 307 or not location:
                    raise _problem(error) from None
                following = _checked(urllib.parse.urljoin(url, location))
                if url.startswith("https:") and not following.startswith("https:"):
                    raise CommandError(
                        f"{url} redirects to {following}, which is not encrypted"
                    ) from None
                url = following
            else:
                return response
        raise CommandError("managers redirect to each other; who leads is not settled yet")


def _checked(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is no URL of a manager; write http://host:port")
    return url.rstrip("/")


def _context(tls: Any) -> SSLContext | None:
    from dynatops.kit.security.tls import TlsFileError

    if tls is None:
        return None
    if tls.server_name:
        raise UsageError("--tls-server-name is for brokers; name the manager as its certificate")
    try:
        tls.check()
    except TlsFileError as error:
        raise CommandError(str(error)) from None
    context = create_default_context(cafile=tls.ca or None)
    if tls.cert:
        context.load_cert_chain(tls.cert, tls.key, password="")
    return context


def _document(text: bytes, url: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise CommandError(f"{url} does not answer as a manager does") from None


def _problem(error: urllib.error.HTTPError) -> CommandError:
    with error:
        text = error.read()
    try:
        document = json.loads(text)
        return ManagerProblem(error.code, str(document["code"]), str(document["detail"]))
    except (ValueError, LookupError, TypeError):
        shown = text[:_BODY_SHOWN].decode("utf-8", "replace").strip()
        return CommandError(f"{error.url} answered {error.code}: {shown or error.reason}")


def _why(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, SSLError):
        if reason.reason == "CERTIFICATE_VERIFY_FAILED":
            return "its certificate is not believed here (--tls-ca)"
        return f"no TLS: {reason.reason or reason}"
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, ConnectionRefusedError):
        return "connection refused"
    if isinstance(reason, HTTPException):
        return "it does not speak HTTP as expected; perhaps it speaks HTTPS"
    return str(reason)


def _events(response: HTTPResponse) -> Iterator[tuple[str, str, str]]:
    number, kind, data = "", "", ""
    for raw in response:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if kind:
                yield number, kind, data
            kind, data = "", ""
        elif not name:
            yield number, "", ""
        elif name == "id":
            number = value
        elif name == "event":
            kind = value
        elif name == "data":
            data = value
