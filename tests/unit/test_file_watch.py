from __future__ import annotations

import asyncio
from pathlib import Path

from dynatops.kit.background import Supervisor
from dynatops.kit.serving.file_watch import watched
from tests.support.waiting import until


def test_each_change_is_noticed_once(tmp_path: Path) -> None:
    """Written to, replaced by a link's new target as Kubernetes does it, removed."""

    async def scenario() -> None:
        changes: list[str] = []
        data, link, other = tmp_path / "..data", tmp_path / "tls.crt", tmp_path / "tokens"
        for version in ("1", "2"):
            (tmp_path / version).mkdir()
            (tmp_path / version / "tls.crt").write_text(version)
        data.symlink_to("1")
        link.symlink_to("..data/tls.crt")
        other.write_text("a")
        files = [str(link), str(other), ""]
        async with watched(files, 0.01, lambda: changes.append(link.read_text()), Supervisor()):
            (tmp_path / "new").symlink_to("2")
            (tmp_path / "new").replace(data)
            await until(lambda: changes == ["2"])
            other.write_text("other")
            await until(lambda: len(changes) == 2)
            other.unlink()
            await until(lambda: len(changes) == 3)

    asyncio.run(scenario())


def test_nothing_is_watched_unless_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = len(asyncio.all_tasks())
        async with watched([str(tmp_path)], 0.0, lambda: None, Supervisor()):
            assert len(asyncio.all_tasks()) == before

    asyncio.run(scenario())
