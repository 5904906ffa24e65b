"""Questions to the HTTP side of a broker."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Mapping


async def ask(address: str, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    question = urllib.request.Request(f"http://{address}{path}", headers=dict(headers or {}))

    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(question, timeout=10) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(fetch)
