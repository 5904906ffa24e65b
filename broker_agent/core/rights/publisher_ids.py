"""Whose publisher numbers are whose.

A publisher's numbers make retries harmless, so whoever speaks under another's number makes that
one's events look like repeats. A client therefore does not choose its number: the broker makes it
of the token that let the client in, of the client's id, and of a secret that only this client
knows. That is the same at every broker, so a client that goes elsewhere sends again under the
number that it had; and whoever sees the number, as every subscriber does, cannot make it.
"""

from __future__ import annotations

import hashlib
from random import Random

from dynatops.kit.repeats import PublisherId

SECRET_BYTES_MIN = 16
SECRET_BYTES_MAX = 64
# Numbers of events that are acknowledged are even; the next one is the same client's, for events
# that are not.
_PAIR = ~1
_ID_BYTES = 8


def publisher_of(owner: str, client_id: str, secret: bytes, rng: Random) -> PublisherId:
    """The number of this client; without a secret, one that was never used."""
    if not secret:
        return PublisherId(rng.getrandbits(8 * _ID_BYTES) & _PAIR)
    digest = hashlib.sha256(b"dynatops publisher")
    for part in (owner.encode(), client_id.encode(), secret):
        # With its length, so that no two clients say the same bytes.
        digest.update(len(part).to_bytes(4, "big") + part)
    return PublisherId(int.from_bytes(digest.digest()[:_ID_BYTES], "big") & _PAIR)


def is_of(publisher: int, claimed: int) -> bool:
    """Whether a publication's number is one of the two of this publisher."""
    return claimed & _PAIR == publisher
