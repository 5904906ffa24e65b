"""A store of objects on this machine, which speaks S3, and what a process must know of it."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from pyarrow import fs as pafs
from werkzeug.serving import make_server

KEY, SECRET = "test-key", "test-secret"


@dataclass(frozen=True, slots=True)
class ObjectStore:
    endpoint: str

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.endpoint.partition("://")[2].partition(":")
        return host, int(port)

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            # Nothing of this machine's own.
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    @property
    def filesystem(self) -> pafs.FileSystem:
        return pafs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            region="us-east-1",
            scheme="http",
            endpoint_override=self.endpoint.partition("://")[2],
            allow_bucket_creation=True,
        )

    def make_bucket(self, name: str) -> str:
        """Its URL."""
        self.filesystem.create_dir(name)
        return f"s3://{name}"

    def upload(self, folder: Path, url: str) -> None:
        pafs.copy_files(
            str(folder),
            url.partition("://")[2],
            source_filesystem=pafs.LocalFileSystem(),
            destination_filesystem=self.filesystem,
        )

    def download(self, url: str, folder: Path) -> None:
        """In place of what is in the folder."""
        shutil.rmtree(folder, ignore_errors=True)
        for path in self.paths(url):
            target = folder / path.removeprefix(f"{url.partition('://')[2]}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.filesystem.open_input_file(path).read())

    def paths(self, url: str) -> list[str]:
        """Of all objects below it, without the bucket's own scheme."""
        selector = pafs.FileSelector(url.partition("://")[2], recursive=True, allow_not_found=True)
        return [info.path for info in self.filesystem.get_file_info(selector) if info.is_file]


# What a server of Python's is.
Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


@contextmanager
def object_store(between: Callable[[Wsgi], Wsgi] = lambda app: app) -> Iterator[ObjectStore]:
    """`between` stands between clients and the store, and may do as it likes."""
    # A line for each request.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = between(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield ObjectStore(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def refusing(code: str, status: str = "403 Forbidden") -> Callable[[Wsgi], Wsgi]:
    """A store that answers everything with an error of S3's."""
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()

    def between(_: Wsgi) -> Wsgi:
        def answer(environment: dict[str, Any], start: Any) -> Iterable[bytes]:
            start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [body]

        return answer

    return between


def ignoring_conditions(app: Wsgi) -> Wsgi:
    """A store that has never heard of conditional writes."""

    def answer(environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        environment.pop("HTTP_IF_NONE_MATCH", None)
        return app(environment, start)

    return answer
