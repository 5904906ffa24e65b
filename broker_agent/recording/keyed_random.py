"""Random numbers that nobody can guess, and that whoever has the key can draw again.

BLAKE2b with a secret key, over a counter: some of its output tells nothing about the rest. A
recorded broker draws from it in place of the system's generator, and the key is in its log; a
replay that takes another way, because a bug has been mended, finds numbers all the same.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random

KEY_BYTES = 32
_BLOCK_BYTES = 64
# Of a float between 0 and 1.
_FLOAT_BITS = 53


class KeyedRandom(Random):
    def __init__(self, key: bytes) -> None:
        super().__init__()
        self._key = key
        self._drawn = 0

    def getrandbits(self, k: int) -> int:
        raw = b""
        while 8 * len(raw) < k:
            counter = self._drawn.to_bytes(_BLOCK_BYTES // 8, "little")
            raw += blake2b(counter, key=self._key, digest_size=_BLOCK_BYTES).digest()
            self._drawn += 1
        return int.from_bytes(raw, "little") & ((1 << k) - 1)

    def random(self) -> float:
        """One of the floats that `Random.random` gives."""
        return self.getrandbits(_FLOAT_BITS) / float(1 << _FLOAT_BITS)

    def seed(self, *_: object) -> None:
        """It has its key."""

    def getstate(self) -> tuple[int, ...]:
        raise NotImplementedError("its state is its key, and how often it was drawn from")

    def setstate(self, state: tuple[int, ...]) -> None:
        raise NotImplementedError("its state is its key, and how often it was drawn from")
