"""Both ends of a stream show each other that they know the network's secret, and never say it.

    dialling = DiallingSide(credentials, METHOD, address)          dialled = DialledSide(...)
    dialling.challenge()              --->
    dialling.check(answer)            <---                         dialled.answer()
    dialling.sign(hello)              --->                         dialled.believes(hello)

A proof is HMAC-SHA256, keyed with the secret, of what the other side has just made up and of what
it is for. Rules:

- The side that is dialled proves first: a stranger that is dialled, by mistake or by a name that
  leads elsewhere now, learns nothing and is told nothing.
- Each side has a nonce in every proof: an old proof is of no use.
- A proof says which side gives it, for which kind of stream, and between which addresses: it cannot
  be sent back to its maker, nor on to somebody else. A side that dials an address it knows from the
  ring wants an answer from the one that has it; an address that a person gave may be another name.
- The proof of the side that dials is of its first message, too.

Not here: what follows on the stream. Without TLS, whoever sits on the wire between two that believe
each other can change that (docs/security.md).
"""

from __future__ import annotations

import secrets

from dynatops.kit.security.peer_credentials import LinkCredentials
from dynatops.v1.manager_pb2 import Registration
from dynatops.v1.peer_pb2 import LinkHello
from dynatops.v1.proof_pb2 import PeerChallenge

NONCE_BYTES = 32
SECRETS_DIFFER = (
    "the peer secrets differ: set security.peer_secret to the same on all brokers and managers"
)
_DIALS = b"dynatops: the side that dials"
_DIALLED = b"dynatops: the side that is dialled"

FirstMessage = LinkHello | Registration


class NotBelievedError(Exception):
    """The side that was dialled is none of this network; the message says why."""


class DiallingSide:
    def __init__(
        self, credentials: LinkCredentials, purpose: str, address: str, *, by_any_name: bool
    ) -> None:
        """`by_any_name`: the address may be another name for where the other side is reached."""
        self._credentials = credentials
        self._by_any_name = by_any_name
        self._terms = _Terms(purpose, address, secrets.token_bytes(NONCE_BYTES))

    def challenge(self) -> PeerChallenge:
        return PeerChallenge(nonce=self._terms.dialling_nonce, address=self._terms.dialled)

    def check(self, answer: PeerChallenge) -> None:
        """Raises NotBelievedError."""
        terms = self._terms
        terms.address, terms.dialled_nonce = answer.address, answer.nonce
        if len(answer.nonce) != NONCE_BYTES or not self._credentials.believe(
            terms.of(_DIALLED), answer.proof
        ):
            raise NotBelievedError(SECRETS_DIFFER)
        if answer.address != terms.dialled and not self._by_any_name:
            raise NotBelievedError(
                f"it is reached at {answer.address}, not at {terms.dialled}: each broker and "
                "manager needs an address of its own (--advertise)"
            )

    def sign(self, message: FirstMessage) -> None:
        message.proof = self._credentials.prove(self._terms.of(_DIALS, _signed(message)))


class DialledSide:
    def __init__(
        self, credentials: LinkCredentials, purpose: str, address: str, challenge: PeerChallenge
    ) -> None:
        """`address` is where this side is reached."""
        self._credentials = credentials
        self._terms = terms = _Terms(purpose, challenge.address, challenge.nonce)
        terms.address, terms.dialled_nonce = address, secrets.token_bytes(NONCE_BYTES)

    def answer(self) -> PeerChallenge:
        terms = self._terms
        return PeerChallenge(
            nonce=terms.dialled_nonce,
            address=terms.address,
            proof=self._credentials.prove(terms.of(_DIALLED)),
        )

    def believes(self, message: FirstMessage) -> bool:
        return len(self._terms.dialling_nonce) == NONCE_BYTES and self._credentials.believe(
            self._terms.of(_DIALS, _signed(message)), message.proof
        )


class _Terms:
    """What every proof on one stream is about."""

    def __init__(self, purpose: str, dialled: str, dialling_nonce: bytes) -> None:
        self.purpose = purpose
        self.dialled = dialled
        self.dialling_nonce = dialling_nonce
        self.address = ""
        self.dialled_nonce = b""

    def of(self, side: bytes, words: bytes = b"") -> bytes:
        parts = (
            side,
            self.purpose.encode(),
            self.dialled.encode(),
            self.address.encode(),
            self.dialling_nonce,
            self.dialled_nonce,
            words,
        )
        # With their lengths: no two lists of parts are the same bytes.
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _signed(message: FirstMessage) -> bytes:
    """All of it but the proof."""
    words = type(message)()
    words.CopyFrom(message)  # type: ignore[arg-type]  # of the same type
    words.ClearField("proof")
    return words.SerializeToString(deterministic=True)
