"""Publishing and subscribing from the command line: filters, sessions, Ctrl-C."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import platform
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest

import dynatops
from tests.support.commands import COMMAND, Cluster, run, run_json

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]


class TestPubSub:
    def test_what_is_published_is_printed(self, listener: subprocess.Popen[str]) -> None:
        outcome = run("pub", "quake/ca", "M5.1 nahe Küste")
        assert outcome.returncode == 0, outcome.stderr
        assert outcome.stdout == "published 1 event on quake/ca through b0\n"
        assert listener.stdout is not None
        assert listener.stdout.readline() == "quake/ca  M5.1 nahe Küste\n"

    def test_lines_of_standard_input(self, listener: subprocess.Popen[str]) -> None:
        outcome = run_json("pub", "quake/ca", stdin="one\ntwo\n")
        assert (outcome["published"], outcome["topic"]) == (2, "quake/ca")
        assert listener.stdout is not None
        assert [listener.stdout.readline() for _ in range(2)] == [
            "quake/ca  one\n",
            "quake/ca  two\n",
        ]

    def test_a_count_ends_a_subscription(self, cluster: Cluster) -> None:
        process = subprocess.Popen(
            [*COMMAND, "sub", "fire", "--count", "3", "--json"], stdout=subprocess.PIPE, text=True
        )
        # The subscription is in place when the topic has a member.
        while not any(
            t["topic"] == "fire" and t["subscribing_brokers"] for t in run_json("topics")
        ):
            pass
        assert run("pub", "fire", "x", "--count", "5", "--ack", "none").returncode == 0
        out, _ = process.communicate(timeout=20)
        events = [json.loads(line) for line in out.splitlines()]
        assert process.returncode == 0
        assert [event["seq"] for event in events] == [1, 2, 3]
        assert events[0]["payload"] == "x"

    def test_ctrl_c_ends_a_subscription_quietly(self, listener: subprocess.Popen[str]) -> None:
        listener.send_signal(signal.SIGINT)
        _, errors = listener.communicate(timeout=10)
        assert listener.returncode == 130
        assert errors == ""

    def test_ctrl_c_may_meet_any_thread(self, listener: subprocess.Popen[str]) -> None:
        threads = [int(entry.name) for entry in Path(f"/proc/{listener.pid}/task").iterdir()]
        other = next(thread for thread in threads if thread != listener.pid)
        # Python sends signals to processes and own threads only: tgkill(2) by its number.
        tgkill = {"x86_64": 234, "aarch64": 131}[platform.machine()]
        assert ctypes.CDLL(None).syscall(tgkill, listener.pid, other, signal.SIGINT) == 0
        listener.communicate(timeout=10)
        assert listener.returncode == 130


def subscribed(*arguments: str) -> subprocess.Popen[str]:
    """A `sub` that is in place."""
    process = subprocess.Popen(
        [*COMMAND, "sub", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline().startswith("subscribed to ")
    return process


def test_who_listens_is_told_when_all_brokers_are_away_and_when_one_is_back() -> None:
    only = Cluster("--brokers", "1")
    process = subscribed("quake/ca", "--count", "1", "--broker", only.addresses[0])
    try:
        assert process.stderr is not None
        only.process.kill()
        only.process.communicate()
        lost = process.stderr.readline()
        assert lost.startswith("dynatops: connection lost: ")
        broker = subprocess.Popen(
            [*COMMAND, "broker", "--broker-id", "again", "--listen", only.addresses[0]],
            stdout=subprocess.DEVNULL,
        )
        try:
            assert process.stderr.readline() == "dynatops: connected again, through again\n"
            assert run("pub", "quake/ca", "x", "--broker", only.addresses[0]).returncode == 0
            out, errors = process.communicate(timeout=20)
        finally:
            broker.terminate()
            broker.wait()
        # The only broker that knew the topic is gone: nobody can say whether there was more.
        assert out == "quake/ca  x\n"
        assert errors.startswith("dynatops: quake/ca: missed some events, perhaps: ")
        assert errors.count("\n") == 1
    finally:
        process.kill()
        process.communicate()


class TestFiltersAndSessions:
    def test_a_pattern_with_a_condition(self, cluster: Cluster) -> None:
        arguments = [
            "shop/+/pc",
            "--where",
            'price < 1500 and brand startswith "I"',
            "--count",
            "2",
        ]
        process = subscribed(*arguments, "--broker", cluster.addresses[2])
        offers = [
            ["price=1600", "brand=IBM"], ["price=1499", "brand=IBM", "new=true"], ["price=7"],
            ["price=-1.5", 'brand="I B"'],
        ]  # fmt: skip
        for i, offer in enumerate(offers):
            attributes = [part for text in offer for part in ("--attribute", text)]
            assert run("pub", f"shop/{i}/pc", f"offer {i}", *attributes).returncode == 0
        out, _ = process.communicate(timeout=20)
        assert out.splitlines() == [
            "shop/1/pc  offer 1  [price=1499 brand=IBM new=true]",
            'shop/3/pc  offer 3  [price=-1.5 brand="I B"]',
        ]

    def test_a_kept_session(self, cluster: Cluster) -> None:
        name = ["--client-id", "watch", "--keep", "60", "--count", "1"]
        process = subscribed("kept/#", *name)
        (session,) = run_json("sessions", "--prefix", "watch")
        assert (session["connected"], session["broker_id"], session["filters"]) == (True, "b0", 1)
        for payload in ("one", "two", "three"):
            assert run("pub", "kept/x", payload).returncode == 0
        out, _ = process.communicate(timeout=20)
        assert out == "kept/x  one\n"
        table = run("sessions", "--prefix", "watch").stdout.splitlines()
        assert re.fullmatch(r"watch +b0 +absent for \ds +1 +1 +2 +3 +0", table[2])
        (details,) = run_json("sessions", "watch")
        assert details["filters"] == [{"pattern": "kept/#", "where": ""}]
        assert details["queued_events"] == 2
        assert 0 < details["expires_in_s"] <= 60
        page = run("sessions", "watch").stdout
        assert "absent for" in page
        assert "    kept/#\n" in page

        found = run("sub", "kept/#", *name)
        assert found.stdout == "kept/x  two\n"
        assert "the session was kept, with kept/#\n" in found.stderr
        assert run("pub", "kept/y", "four", "--attribute", "n=1").returncode == 0
        other = run("sub", "kept/y", "--json", *name)
        assert other.returncode == 0
        assert json.loads(other.stdout)["payload"] == "four"
        assert json.loads(other.stdout)["attributes"] == {"n": 1}
        (details,) = run_json("sessions", "watch")
        assert details["filters"] == [{"pattern": "kept/y", "where": ""}]

        process = subscribed("kept/y", *name, "--clean")
        assert run("pub", "kept/y", "new").returncode == 0
        out, errors = process.communicate(timeout=20)
        assert (out, errors) == ("kept/y  new\n", "")

    def test_ctrl_c_leaves_a_kept_session_as_it_was_printed(self, cluster: Cluster) -> None:
        name = ["--client-id", "stopped", "--keep", "60"]
        process = subscribed("stop", *name)
        assert run("pub", "stop", "one").returncode == 0
        assert process.stdout is not None
        assert process.stdout.readline() == "stop  one\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
        assert process.returncode == 130
        assert run("pub", "stop", "two").returncode == 0
        assert run("sub", "stop", *name, "--count", "1").stdout == "stop  two\n"

    def test_nobody_with_such_an_id(self, cluster: Cluster) -> None:
        outcome = run("sessions", "nobody")
        assert outcome.returncode == 1
        assert outcome.stderr == "dynatops: no broker has a session of 'nobody'\n"
        assert run_json("sessions", "--prefix", "nobody") == []
        outcome = run("sessions", "--prefix", "nobody")
        assert (outcome.returncode, outcome.stdout) == (0, "no sessions of clients nobody…\n")


EVIL = "evil/\x1b[2J\x9b31m"
PAYLOADS = [b"\x1b]0;title\x07\rover\n", "\x9b\u202e".encode(), b"\xff\x00\x1b", b"two\nlines", b""]


class TestTerminal:
    """What others publish does nothing to the terminal of whoever looks."""

    def kept(self, cluster: Cluster, *client_ids: str) -> list[list[str]]:
        """What to type to see the payloads in a session of each of these names."""
        address = cluster.addresses[0]
        for client_id in client_ids:
            with dynatops.connect_sync(address, client_id=client_id, keep_s=60, stay=True) as one:
                one.subscribe(EVIL)
        with dynatops.connect_sync(address) as publisher:
            publisher.publish_many(EVIL, PAYLOADS)
        count = str(len(PAYLOADS))
        ask = ["sub", EVIL, "--keep", "60", "--count", count, "--client-id"]
        return [[*ask, client_id] for client_id in client_ids]

    def test_nothing_gets_through_to_a_terminal(self, cluster: Cluster) -> None:
        lines, raw = self.kept(cluster, "me\x1b[0m", "raw")
        shown = on_terminal(*lines)
        assert "evil/\\u001b[2J\\u009b31m  \\u001b]0;title\\u0007\\u000dover\\u000a\r\n" in shown
        assert "two\\u000alines" in shown
        exact = on_terminal(*raw, "--raw")
        assert "two\r\nlines" in exact
        shown += exact
        for command in (["topics"], ["tree", EVIL], ["sessions"], ["sessions", "me\x1b[0m"]):
            listing = on_terminal(*command)
            assert "\\u001b[" in listing, command
            shown += listing
        for control in ("\x1b", "\x9b", "\x07", "\x00", "\u202e"):
            assert control not in shown

    def test_json_and_pipes_are_exact(self, cluster: Cluster) -> None:
        raw, as_json = self.kept(cluster, "pipe", "json")
        piped = subprocess.run([*COMMAND, *raw, "--raw"], stdout=subprocess.PIPE, check=True)
        assert piped.stdout == b"".join(payload + b"\n" for payload in PAYLOADS)
        documents = [json.loads(line) for line in run(*as_json, "--json").stdout.splitlines()]
        fields = [document.keys() & {"payload", "payload_base64"} for document in documents]
        text, encoded = {"payload"}, {"payload_base64"}
        assert fields == [text, text, encoded, text, text]
        assert [
            base64.b64decode(d["payload_base64"]) if d.keys() & encoded else d["payload"].encode()
            for d in documents
        ] == PAYLOADS
        assert {document["topic"] for document in documents} == {EVIL}

    @pytest.mark.parametrize("pattern", ["a/#", "+/b", "#"])
    def test_a_pattern_has_no_tree(self, pattern: str) -> None:
        outcome = run("tree", pattern)
        assert outcome.returncode == 2
        assert "is a pattern: each topic has a tree of its own" in outcome.stderr

    def test_what_is_no_topic_has_no_tree_and_those_of_the_system_have(
        self, cluster: Cluster
    ) -> None:
        assert run("tree", "").returncode == 2
        assert run("tree", "$topics/1c").returncode == 0


def on_terminal(*arguments: str) -> str:
    """What a terminal gets from a command: standard output, and standard error."""
    ours, its = pty.openpty()
    try:
        with subprocess.Popen([*COMMAND, *arguments], stdout=its, stderr=its) as process:
            os.close(its)
            got = b""
            # Past its end a terminal is an error.
            with contextlib.suppress(OSError):
                while piece := os.read(ours, 65_536):
                    got += piece
        assert process.returncode == 0, got
    finally:
        os.close(ours)
    return got.decode()
