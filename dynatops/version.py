"""The version of the distribution, read by `pyproject.toml`, too, and which build of it runs."""

from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec

VERSION = "0.1.0"


def build_kind() -> str:
    """`compiled`, if what every event passes through is a compiled module; else `pure Python`."""
    # A build compiles all that `pyproject.toml` lists, or nothing.
    found = find_spec("dynatops.kit.bundles")
    is_compiled = found is not None and isinstance(found.loader, ExtensionFileLoader)
    return "compiled" if is_compiled else "pure Python"
