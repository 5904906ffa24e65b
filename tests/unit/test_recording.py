"""What a broker is told is written down, and told again comes to the same."""

from __future__ import annotations

import ast
import inspect
import os
import stat
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from random import Random

import pytest

from broker_agent.core.base.core_settings import CoreSettings
from broker_agent.core.base.effects import BrokerEffect, ConnectionId
from broker_agent.core.broker import Broker
from broker_agent.core.clients.serving import Serving
from broker_agent.core.rights.access import Access
from broker_agent.process_settings import RecordSettings
from broker_agent.recording.keyed_random import KEY_BYTES, KeyedRandom
from broker_agent.recording.log_format import StimulusLog, framed
from broker_agent.recording.recorded_broker import RecordedBroker
from broker_agent.recording.records import LogError
from broker_agent.recording.replaying import INPUTS, LogEnd, StrikeKind, replay, search
from broker_agent.runtime.disk.stimulus_file import SUFFIX, StimulusFile, StimulusFileError
from dynatops.v1.client_pb2 import ClientFrame
from dynatops.v1.overlay_pb2 import PeerFrame
from dynatops.v1.stimulus_pb2 import LogBeginning, Stimulus
from tests.support.brokers import LoneBroker
from tests.support.recording import (
    OTHER_TOKEN,
    RULES,
    TOKEN,
    MemoryLog,
    told_everything,
    told_in_a_tree,
)

# Methods of a broker that tell it nothing.
QUESTIONS = {
    *("node", "now_s", "is_named", "left_over", "status", "count_in_steps", "namesakes"),
    *("is_joining", "is_member", "is_leaving", "registration", "registration_version"),
    *("admit_inspector", "describe", "list_topics", "describe_tree", "list_sessions"),
    *("describe_session", "take_run_sample", "describe_topology", "topology_problem"),
    *("admit_administrator", "token_name", "table_entries", "list_stores"),
}
# It hears these from its node.
FROM_ITS_NODE = {
    *(
        "on_send",
        "on_deliver",
        "on_deliver_bundle",
        "on_deliver_beats",
        "on_in_tree",
        "on_accepted",
    ),
    *("on_announce", "on_repaired", "on_ready", "on_departed", "on_superseded", "on_notice"),
}


class InjectedError(Exception):
    pass


class ForgetfulBroker(Broker):
    def on_client_frame(
        self, connection: ConnectionId, frame: ClientFrame, reading_s: float
    ) -> list[BrokerEffect]:
        effects = super().on_client_frame(connection, frame, reading_s)
        del self.registry.connections[connection]
        return effects


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


class TestReplay:
    def test_comes_to_the_same(self, log: MemoryLog) -> None:
        broker = told_everything(log)
        log.close()
        report = log.replay()
        assert isinstance(broker.core, RecordedBroker)
        assert report.digest == broker.core.effects_digest
        assert report.differs_at is None
        assert report.strikes == []
        assert report.end is LogEnd.CLOSED
        assert (report.broker_id, report.address) == ("b0", "b0")
        assert report.count == len(log.kinds()) - 1

    def test_knows_every_kind_of_input(self, log: MemoryLog) -> None:
        told_everything(log)
        kinds = {f.name for f in Stimulus.DESCRIPTOR.oneofs_by_name["input"].fields}
        assert INPUTS.keys() == kinds - {"raised", "ended"}
        assert set(log.kinds()) == INPUTS.keys()

    def test_comes_to_the_same_in_another_process(self, log: MemoryLog, tmp_path: Path) -> None:
        """Where names have other hashes."""
        broker = told_everything(log)
        assert isinstance(broker.core, RecordedBroker)
        path = tmp_path / "log"
        path.write_bytes(log.raw)
        for seed in ("1", "2"):
            outcome = subprocess.run(
                [sys.executable, "-m", "dynatops", "replay", str(path)],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert f"effects {broker.core.effects_digest}, as recorded" in outcome.stdout
            assert outcome.returncode == 0

    def test_of_a_broker_in_a_tree(self, log: MemoryLog, tmp_path: Path) -> None:
        """Its topology, what neighbours say, and another topology; in another process, too."""
        broker = told_in_a_tree(log)
        log.close()
        assert isinstance(broker.core, RecordedBroker)
        report = log.replay()
        assert report.differs_at is None
        assert report.strikes == []
        assert report.digest == broker.core.effects_digest
        path = tmp_path / "log"
        path.write_bytes(log.raw)
        outcome = subprocess.run(
            [sys.executable, "-m", "dynatops", "replay", str(path)],
            env={**os.environ, "PYTHONHASHSEED": "3"},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert f"effects {broker.core.effects_digest}, as recorded" in outcome.stdout
        assert outcome.returncode == 0

    def test_of_a_tree_that_is_none(self, log: MemoryLog) -> None:
        told_in_a_tree(log)
        beginning = log.read().beginning
        beginning.broker = beginning.broker.replace('\\"version\\": 1', "")
        broken = BytesIO(framed(beginning))
        with pytest.raises(LogError, match="its topology is none: it is no JSON"):
            replay(StimulusLog(broken))

    def test_until(self, log: MemoryLog) -> None:
        told_everything(log)
        report = replay(log.read(), until=7)
        assert report.count == 7
        assert report.end is LogEnd.UNREAD

    def test_raises_where_it_raised(self, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
        original = Serving.on_frame

        def fail_at_a_word(self: Serving, connection: ConnectionId, *rest: object) -> None:
            original(self, connection, *rest)  # type: ignore[arg-type]
            if connection == "bad":
                raise InjectedError("a bug")

        monkeypatch.setattr(Serving, "on_frame", fail_at_a_word)
        broker = LoneBroker(log=log)
        broker.run(0.5)
        with pytest.raises(InjectedError):
            broker.connect("bad")
        assert log.flushes == 1
        at = len(log.kinds()) - 1
        assert log.kinds()[-2:] == ["from_client", "raised"]
        broker.run(0.5)
        report = log.replay()
        (strike,) = report.strikes
        assert (strike.number, strike.what) == (at, "from_client")
        assert strike.kind is StrikeKind.RAISED
        assert strike.message == "InjectedError('a bug')"
        assert "fail_at_a_word" in strike.traceback
        assert report.raised_before == {at: "InjectedError('a bug')"}
        assert report.differs_at is None
        assert not report.mended

        monkeypatch.undo()
        mended = log.replay()
        assert mended.strikes == []
        assert mended.mended == {at: "InjectedError('a bug')"}
        assert mended.differs_at == at

    def test_finds_the_input_after_which_something_does_not_hold(self, log: MemoryLog) -> None:
        broker = LoneBroker(log=log)
        broker.run(1.0)
        broker.connect("ann")
        at = len(log.kinds())
        broker.run(9.0)

        report = search(lambda: BytesIO(log.raw), check_every=50, make_broker=ForgetfulBroker)
        first = report.strikes[0]
        assert (first.number, first.what, first.kind) == (at, "from_client", StrikeKind.INVARIANT)
        assert "'ann' has connection ann, which is not here" in first.message


class TestRecordedBroker:
    def test_every_input_is_recorded(self) -> None:
        public = (
            {name for name in vars(Broker) if not name.startswith("_")} - QUESTIONS - FROM_ITS_NODE
        )
        assert public == {name for name in vars(RecordedBroker) if not name.startswith("_")} - {
            "effects_digest"
        }

    def test_no_question_sets_the_clock(self) -> None:
        """Who reads the clock between two inputs moves it, which a replay would not do."""
        asked = [vars(Broker)[name] for name in sorted(QUESTIONS & vars(Broker).keys())]
        assert not [
            question.__name__
            for question in asked
            if callable(question) and "reading_s" in inspect.signature(question).parameters
        ]

    def test_no_token_is_in_its_log(self, log: MemoryLog) -> None:
        broker = told_everything(log)
        assert broker.core.counters.authentication_refused == 1
        for token in (TOKEN, OTHER_TOKEN):
            assert token.encode() not in log.raw

    def test_what_is_said_to_the_broker_itself_has_its_tokens(self, log: MemoryLog) -> None:
        broker = LoneBroker(log=log, access=Access(CoreSettings(), [RULES]))
        broker.connect("ann", token=TOKEN)
        assert broker.kinds("ann") == ["welcome"]

    def test_ticks_are_small(self, log: MemoryLog) -> None:
        broker = LoneBroker(log=log)
        broker.run(2.0)
        before = len(log.raw)
        broker.run(1.0)
        assert len(log.raw) - before < 20 * 16

    def test_broker_is_otherwise_the_same(self) -> None:
        """Whatever is overridden has the parameters that it has."""
        for name, method in vars(RecordedBroker).items():
            if not name.startswith("_") and name != "effects_digest":
                assert inspect.signature(method) == inspect.signature(getattr(Broker, name))


class TestKeyedRandom:
    def test_same_key_same_numbers(self) -> None:
        one, other = KeyedRandom(bytes(KEY_BYTES)), KeyedRandom(bytes(KEY_BYTES))
        assert [one.random(), one.getrandbits(128), one.choice("abc"), one.uniform(2, 3)] == [
            other.random(), other.getrandbits(128), other.choice("abc"), other.uniform(2, 3)
        ]  # fmt: skip
        assert one.random() != KeyedRandom(b"\1" * KEY_BYTES).random()

    def test_is_as_even_as_another(self) -> None:
        rng = KeyedRandom(bytes(KEY_BYTES))
        drawn = [rng.random() for _ in range(10_000)]
        assert 0.0 <= min(drawn) < 0.01
        assert 0.99 < max(drawn) < 1.0
        assert abs(sum(drawn) / len(drawn) - 0.5) < 0.02
        assert all(rng.getrandbits(k) < 1 << k for k in (1, 7, 64, 1_000))
        assert rng.getrandbits(2_000).bit_length() > 1_900

    def test_has_no_state_to_take(self) -> None:
        rng = KeyedRandom(bytes(KEY_BYTES))
        rng.seed(1)
        assert rng.random() == KeyedRandom(bytes(KEY_BYTES)).random()
        with pytest.raises(NotImplementedError):
            rng.getstate()
        with pytest.raises(NotImplementedError):
            rng.setstate(Random().getstate())


class TestFile:
    def open(self, folder: Path, began_ms: int = 1, **values: int) -> StimulusFile:
        return StimulusFile(RecordSettings(dir=str(folder), **values), began_ms)

    def test_is_compressed_and_private(self, tmp_path: Path) -> None:
        file = self.open(tmp_path / "a" / "b")
        log = MemoryLog()
        told_everything(log)
        beginning, stimuli = log.read().beginning, list(log.read())
        for record in (beginning, *stimuli):
            file.append(record)
        file.close()
        assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
        assert file.path.stat().st_size < len(log.raw) / 2
        with file.path.open("rb") as written:
            read = StimulusLog(written)
            assert read.beginning == beginning
            assert list(read)[:-1] == stimuli

    def test_breaks_off_where_it_was_flushed(self, tmp_path: Path) -> None:
        file = self.open(tmp_path)
        file.append(LogBeginning(format=1))
        file.append(Stimulus(ticked=Stimulus.Ticked()))
        file.flush()
        file.append(Stimulus(ticked=Stimulus.Ticked()))
        with file.path.open("rb") as written:
            assert len(list(StimulusLog(written))) == 1
        file.sync()
        with file.path.open("rb") as written:
            assert len(list(StimulusLog(written))) == 2
        file.close()
        file.close()

    def test_ends_when_it_is_full(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        file = self.open(tmp_path, bytes_max=2_000)
        file.append(LogBeginning(format=1))
        rng = Random(1)
        while file.is_open:
            noise = PeerFrame(to=rng.getrandbits(64))
            file.append(Stimulus(peer_frame=noise))
            file.flush()
        assert "is as long as it may be (record.bytes_max)" in caplog.text
        appended = file.inputs
        file.append(Stimulus(ticked=Stimulus.Ticked()))
        file.sync()
        file.close()
        assert file.path.stat().st_size < 2_200
        with file.path.open("rb") as written:
            *_, last = StimulusLog(written)
        assert last.ended.is_full
        assert file.inputs == appended

    def test_a_disk_that_does_not_take_it_ends_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        file = self.open(tmp_path)
        file.append(LogBeginning(format=1))
        monkeypatch.setattr("broker_agent.runtime.disk.stimulus_file.os.write", full)
        file.flush()
        assert not file.is_open
        assert "ends here: No space left on device" in caplog.text
        file.append(Stimulus())
        file.close()

    def test_the_oldest_make_room(self, tmp_path: Path) -> None:
        for began_ms in (999, 1_000, 1_001, 1_002):
            self.open(tmp_path, began_ms, files_max=2).close()
        left = sorted(path.name for path in tmp_path.iterdir())
        assert left == [f"1001{SUFFIX}", f"1002{SUFFIX}"]

    def test_a_folder_that_cannot_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(StimulusFileError, match=r"cannot record to .*\(record.dir\)"):
            self.open(tmp_path / "file")


class TestDamage:
    @pytest.mark.parametrize(
        ("raw", "problem"),
        [
            (b"", "is empty"),
            (b"\x05ab", "is empty, or breaks off"),
            (b"not a log of anything", "no log|breaks off"),
            (b"\xff" * 20, "damaged"),
            (b"\x1f\x8b" + b"x" * 20, "damaged"),
            (framed(Stimulus(unreachable=Stimulus.AddressUnreachable(address="a"))), "no log"),
        ],
    )
    def test_is_told(self, raw: bytes, problem: str) -> None:
        with pytest.raises(LogError, match=problem):
            StimulusLog(BytesIO(raw))

    def test_another_format(self) -> None:
        raw = framed(LogBeginning(format=2, version="9.1"))
        with pytest.raises(LogError, match=r"format 2.*9\.1"):
            replay(StimulusLog(BytesIO(raw)))

    def test_settings_of_another_version(self, log: MemoryLog) -> None:
        LoneBroker(log=log)
        beginning = log.read().beginning
        beginning.broker = beginning.broker.replace('"hops_max"', '"hops_of_old"')
        with pytest.raises(LogError, match=r"overlay\.hops_of_old"):
            replay(StimulusLog(BytesIO(framed(beginning))))

    def test_an_input_of_another_version(self, log: MemoryLog) -> None:
        LoneBroker(log=log)
        log.append(Stimulus(after_us=1))
        with pytest.raises(LogError, match="input 2 is of a kind"):
            log.replay()


def test_cores_know_nothing_of_it() -> None:
    """A broker that is not recorded does nothing for it."""
    root = Path(__file__).resolve().parents[2]
    for path in (root / "broker_agent" / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert "recording" not in (node.module or "")
