"""Calls into the application: what fails there is its own, and must not end the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec

_P = ParamSpec("_P")


def report_failing(
    callback: Callable[_P, object], name: str, *arguments: _P.args, **options: _P.kwargs
) -> None:
    """Call it. If it raises, the event loop's exception handler is told, as with asyncio's own."""
    try:
        callback(*arguments, **options)
    except Exception as error:  # noqa: BLE001  # the application may raise anything
        context = {"message": f"{name} raised an exception", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
