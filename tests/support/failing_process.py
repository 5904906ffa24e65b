"""A process of the product in which something raises that nobody has foreseen.

    python -m tests.support.failing_process MODULE:CLASS.METHOD AFTER COMMAND...

runs `dynatops COMMAND...`; the method raises from its AFTERth call on.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from dynatops.cli.main import main


class UnforeseenError(Exception):
    pass


def sabotage(place: str, after: int) -> None:
    module, _, name = place.partition(":")
    kind, method = name.split(".")
    owner = getattr(importlib.import_module(module), kind)
    original = getattr(owner, method)
    calls = 0

    def failing(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= after:
            raise UnforeseenError(f"{name} was made to fail")
        return original(*arguments, **named)

    setattr(owner, method, failing)


if __name__ == "__main__":
    sabotage(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
