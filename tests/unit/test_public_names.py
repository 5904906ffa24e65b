"""What `dir`, `help` and `repr` show of the package."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys

import pytest

import dynatops
from dynatops import Ack
from dynatops.client import errors
from dynatops.client.aio import Client
from dynatops.client.core.client_core import SessionWishes
from dynatops.client.sync import SyncClient, SyncSubscription

PUBLIC = [getattr(dynatops, name) for name in dynatops.__all__]


def test_dir_is_the_public_names_before_and_after_they_are_loaded() -> None:
    program = (
        "import dynatops; before = dir(dynatops); "
        "[getattr(dynatops, name) for name in dynatops.__all__]; import dynatops.local.cluster; "
        "assert dir(dynatops) == before; "
        "print(*(name for name in before if not name.startswith('__')))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == sorted(dynatops.__all__)


def test_every_error_is_public() -> None:
    assert set(errors.__all__) <= set(dynatops.__all__)
    for name in dynatops.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(dynatops, name), (dynatops.DynatopsError, ValueError))


def test_help_shows_what_there_is() -> None:
    text = pydoc.plain(pydoc.render_doc(dynatops))
    for name in ("class Client", "class SyncClient", "connect(", "class Event", "Ack.REPLICATED"):
        assert name in text, name


@pytest.mark.parametrize("thing", PUBLIC, ids=dynatops.__all__)
def test_whatever_is_public_says_what_it_is(thing: object) -> None:
    described = inspect.getdoc(thing)
    # Not what a base class says of itself.
    assert described
    assert described not in {inspect.getdoc(base) for base in (Exception, ValueError, tuple)}


@pytest.mark.parametrize(
    "face",
    [
        *(Client, SyncClient, dynatops.Subscription, SyncSubscription),
        *(dynatops.Batch, dynatops.Event),
    ],
)
def test_every_public_method_says_what_it_does(face: type) -> None:
    members = inspect.getmembers(face, lambda m: inspect.isfunction(m) or isinstance(m, property))
    names = [name for name, member in members if not name.startswith("_")]
    if face is not dynatops.Event:
        assert names
    for name in names:
        assert inspect.getdoc(getattr(face, name)), f"{face.__name__}.{name}"


def test_both_faces_have_the_same_calls() -> None:
    def calls(face: type) -> set[str]:
        return {name for name in vars(face) if not name.startswith("_")}

    assert calls(Client) - calls(SyncClient) == {"open"}
    assert calls(SyncClient) <= calls(Client)
    assert calls(dynatops.Subscription) - calls(SyncSubscription) == {"batches"}


def test_the_fields_of_an_event_are_described() -> None:
    described = inspect.getdoc(dynatops.Event) or ""
    for name in dynatops.Event._fields:
        assert name in described


# ---- repr ----------------------------------------------------------------------------------------


def test_an_event_shows_the_beginning_of_its_payload() -> None:
    short = dynatops.Event("quake/ca", b"M5.1", 1_700_000_000_000_000, 7, 3, {"magnitude": 5.1})
    assert repr(short) == (
        "Event(topic='quake/ca', payload=b'M5.1', published_us=1700000000000000, term=7, seq=3, "
        "attributes={'magnitude': 5.1})"
    )
    long = repr(dynatops.Event("t", bytes(1 << 20), 0, 1, 1))
    assert "… (1,048,576 bytes)" in long
    assert len(long) < 300


def test_others_say_who_they_are() -> None:
    assert repr(Ack.REPLICATED) == "Ack.REPLICATED"
    assert repr(dynatops.Gap("t", 3, "why")) == "Gap(topic='t', count=3, reason='why')"
    client = Client(["127.0.0.1:1"], "billing", SessionWishes())
    assert repr(client) == "<Client 'billing', not connected>"
    assert "not awaited" in repr(dynatops.connect("127.0.0.1:1", client_id="billing"))


def test_no_repr_tells_a_token() -> None:
    assert "secret" not in repr(SessionWishes(token="secret"))
    assert "secret" not in repr(dynatops.connect("127.0.0.1:1", token="secret"))
