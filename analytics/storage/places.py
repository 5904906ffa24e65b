"""What the errors of places mean, for the driver.

What stores are called, how variables name them and what they say when something is wrong is the
lake's own knowledge (`dynatops.lake`: `store_urls`, `stores`, `store_errors`): brokers go by it as
well.
"""

from __future__ import annotations

import os
from contextlib import suppress

from dynatops.lake.store_errors import store_error
from dynatops.lake.store_urls import LakeError, parse_store_url
from dynatops.lake.stores import locate

# More are not looked at: a thousand a second, on a slow disk.
_SMALL_FILES_MAX = 2_000


def is_folder(url: str) -> bool:
    """Whether it is a folder of the machine that looks; what is no URL is none."""
    try:
        return parse_store_url(url).is_folder
    except LakeError:
        return False


def is_small_folder(url: str, bytes_max: int) -> bool:
    """Whether a folder of this machine has no more in it. Of stores nobody is asked: not small."""
    if not is_folder(url):
        return False
    room, files_left = bytes_max, _SMALL_FILES_MAX
    for here, _, names in os.walk(parse_store_url(url).path):
        files_left -= len(names)
        if files_left < 0:
            return False
        with suppress(FileNotFoundError):
            room -= sum(os.stat(f"{here}/{name}").st_size for name in names)  # noqa: PTH116
        if room < 0:
            return False
    return True


def explained(said: str, *urls: str) -> str:
    """What to do about it first, if that is known: of the URL that is spoken of, or the first."""
    try:
        found = {url: parse_store_url(url).path for url in urls}
    except LakeError:
        return said
    spoken_of = next((url for url, path in found.items() if path in said), urls[0])
    return str(store_error(OSError(said), locate(spoken_of)))
