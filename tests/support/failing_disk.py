"""A file system that fails when it is told to: full, or slow; and behaves as a local one if not."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

from pyarrow import fs as pafs


class _FailingHandler(pafs.FSSpecHandler):  # type: ignore[misc]  # pyarrow has no types
    """Only what writing a file needs; everything goes to the file system beneath."""

    def __init__(self, disk: FailingDisk) -> None:
        self._disk = disk
        self._local = pafs.LocalFileSystem()

    def get_type_name(self) -> str:
        return "failing"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = object.__hash__

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self._local.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._local.create_dir(path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self._local.delete_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self._disk.before("write")
        return self._local.open_output_stream(path)

    def move(self, source: str, target: str) -> None:
        self._disk.before("move")
        self._local.move(source, target)


class FailingDisk:
    def __init__(self) -> None:
        # What fails for want of room: "write", "move".
        self.full_for: frozenset[str] = frozenset()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.filesystem = pafs.PyFileSystem(_FailingHandler(self))
        self.on_attempt: Callable[[str], None] = lambda _: None

    def before(self, what: str) -> None:
        self.on_attempt(what)
        self.may_go_on.wait()
        if what in self.full_for:
            raise OSError(errno.ENOSPC, "No space left on device")
