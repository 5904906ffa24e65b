"""Proofs that a side knows the secret: what somebody without it may try."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from dynatops.kit.security.peer_credentials import LinkCredentials
from dynatops.kit.security.peer_proofs import DialledSide, DiallingSide, NotBelievedError
from dynatops.v1.peer_pb2 import LinkHello
from dynatops.v1.proof_pb2 import PeerChallenge

OURS = LinkCredentials(secrets=("what-all-of-us-know", "what-we-knew-before"))
BEFORE = LinkCredentials(secrets=("what-we-knew-before", "what-all-of-us-know"))
THEIRS = LinkCredentials(secrets=("what-others-may-know",))
NOBODYS = LinkCredentials()
LINK, ATTEND = "/Peer/Link", "/Management/Attend"
A, B, C = "a:1", "b:1", "c:1"


def hello(name: str = "ann") -> LinkHello:
    return LinkHello(protocol_min=2, protocol_max=2, broker_id=name, address=A)


@dataclass
class Dialogue:
    """One that dials B, and the one at B."""

    dialling: DiallingSide = field(
        default_factory=lambda: DiallingSide(OURS, LINK, B, by_any_name=False)
    )
    ours: LinkCredentials = OURS
    address: str = B
    purpose: str = LINK

    def __post_init__(self) -> None:
        self.challenge = self.dialling.challenge()
        self.dialled = DialledSide(self.ours, self.purpose, self.address, self.challenge)
        self.answer = self.dialled.answer()

    def signed(self) -> LinkHello:
        message = hello()
        self.dialling.sign(message)
        return message


@pytest.mark.parametrize("ours", [OURS, BEFORE])
def test_two_that_know_it(ours: LinkCredentials) -> None:
    talk = Dialogue(ours=ours)
    talk.dialling.check(talk.answer)
    assert talk.dialled.believes(talk.signed())


def test_it_is_never_said() -> None:
    talk = Dialogue()
    talk.dialling.check(talk.answer)
    said = b"".join(
        message.SerializeToString() for message in (talk.challenge, talk.answer, talk.signed())
    )
    assert not [secret for secret in OURS.secrets if secret.encode() in said]


@pytest.mark.parametrize("ours", [THEIRS, NOBODYS])
def test_one_that_is_dialled_and_does_not_know_it(ours: LinkCredentials) -> None:
    talk = Dialogue(ours=ours)
    with pytest.raises(NotBelievedError, match="the peer secrets differ"):
        talk.dialling.check(talk.answer)


@pytest.mark.parametrize("theirs", [THEIRS, NOBODYS])
def test_one_that_dials_and_does_not_know_it(theirs: LinkCredentials) -> None:
    talk = Dialogue(DiallingSide(theirs, LINK, B, by_any_name=False))
    assert not talk.dialled.believes(talk.signed())


def test_an_answer_to_something_else() -> None:
    for answer in (PeerChallenge(), PeerChallenge(nonce=b"n" * 32, address=B), Dialogue().answer):
        with pytest.raises(NotBelievedError):
            Dialogue().dialling.check(answer)


def test_what_was_heard_once_is_of_no_use() -> None:
    first = Dialogue()
    first.dialling.check(first.answer)
    replayed = first.signed()
    assert first.dialled.believes(replayed)
    again = DialledSide(OURS, LINK, B, first.challenge)
    assert not again.believes(replayed)


def test_a_proof_is_not_sent_back_to_its_maker() -> None:
    """Somebody is dialled by B, and has what B says proved by B itself."""
    dialling = DiallingSide(OURS, LINK, B, by_any_name=True)
    reflected = DiallingSide(OURS, LINK, B, by_any_name=True)
    with pytest.raises(NotBelievedError):
        dialling.check(
            PeerChallenge(
                nonce=reflected.challenge().nonce,
                address=B,
                proof=_signature(reflected, dialling.challenge()),
            )
        )


def _signature(side: DiallingSide, challenge: PeerChallenge) -> bytes:
    side._terms.address, side._terms.dialled_nonce = B, challenge.nonce
    message = hello()
    side.sign(message)
    return message.proof


def test_a_challenge_is_not_passed_on_to_another_broker() -> None:
    """Somebody has the address of a broker that is gone, and asks C for the proof."""
    talk = Dialogue(address=C)
    with pytest.raises(NotBelievedError, match="it is reached at c:1, not at b:1"):
        talk.dialling.check(talk.answer)
    # Nor may it say that C's answer was for B.
    passed_on = PeerChallenge()
    passed_on.CopyFrom(talk.answer)
    passed_on.address = B
    with pytest.raises(NotBelievedError, match="the peer secrets differ"):
        talk.dialling.check(passed_on)


def test_an_address_that_a_person_gave_may_be_another_name() -> None:
    talk = Dialogue(DiallingSide(OURS, LINK, "seeds:1", by_any_name=True))
    talk.dialling.check(talk.answer)
    assert talk.dialled.believes(talk.signed())


def test_a_proof_for_a_link_is_none_for_a_manager() -> None:
    talk = Dialogue(purpose=ATTEND)
    with pytest.raises(NotBelievedError):
        talk.dialling.check(talk.answer)


def test_the_first_message_is_proved_too() -> None:
    talk = Dialogue()
    talk.dialling.check(talk.answer)
    message = talk.signed()
    message.broker_id = "eve"
    assert not talk.dialled.believes(message)


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_nonces_are_as_long_as_they_should_be(length: int) -> None:
    challenge = PeerChallenge(nonce=b"n" * length, address=B)
    dialled = DialledSide(OURS, LINK, B, challenge)
    dialling = DiallingSide(OURS, LINK, B, by_any_name=False)
    dialling._terms.dialling_nonce = challenge.nonce
    dialling.check(dialled.answer())
    message = hello()
    dialling.sign(message)
    assert not dialled.believes(message)
