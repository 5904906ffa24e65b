"""What commands read and write as text: attributes, places of mistakes, tables."""

from __future__ import annotations

import pytest

from dynatops.cli.brokers.sessions import describe_session, print_sessions
from dynatops.cli.durations import brief_duration
from dynatops.cli.errors import UsageError, explain_filter
from dynatops.cli.messages.attributes import read_attributes, written_value
from dynatops.kit.filters import Filter, FilterError, Value
from dynatops.v1 import client_pb2
from dynatops.v1.inspection_pb2 import SessionDetails, SessionReport


class TestAttributes:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("true", True),
            ("false", False),
            ("True", "True"),
            ("7", 7),
            ("-7", -7),
            ("007", 7),
            ("1.5", 1.5),
            ("2e9", 2e9),
            ("-1.5e-3", -0.0015),
            ("1_000", "1_000"),
            ("+7", "+7"),
            ("\u0667", "\u0667"),
            ("nan", "nan"),
            ("inf", "inf"),
            ("1.", "1."),
            ("", ""),
            ("IBM", "IBM"),
            ("a=b", "a=b"),
            ("a b", "a b"),
            ('"007"', "007"),
            ('"true"', "true"),
            ('""', ""),
            ('"a \\"b\\" \\\\ \\u00e9 \\n"', 'a "b" \\ é \n'),
            ('5"', '5"'),
        ],
    )
    def test_a_value_is_what_it_looks_like(self, text: str, value: Value) -> None:
        (read,) = read_attributes([f"name={text}"]).values()
        assert read == value
        assert type(read) is type(value)

    @pytest.mark.parametrize(
        "value",
        [True, False, 0, -7, 1.5, 1e300, "", "IBM", "007", "true", "a b", 'say "x"', "é\n", "-"],
    )
    def test_what_is_written_is_read_as_it_was(self, value: Value) -> None:
        (read,) = read_attributes([f"name={written_value(value)}"]).values()
        assert read == value
        assert type(read) is type(value)

    def test_several(self) -> None:
        assert read_attributes(["price=7", "user id=x"]) == {"price": 7, "user id": "x"}
        assert read_attributes([]) == {}

    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            (["price"], "'price': write NAME=VALUE"),
            (["=7"], "'=7': write NAME=VALUE"),
            (["x=1", "x=2"], "'x' has a value already"),
            (['x="a'], "the quotes do not end"),
            (['x="a" b'], "the quotes do not end, or more follows"),
            (['x="\\q"'], "the quotes do not end"),
        ],
    )
    def test_mistakes(self, texts: list[str], message: str) -> None:
        with pytest.raises(UsageError, match=r"^--attribute ") as raised:
            read_attributes(texts)
        assert message in str(raised.value)


class TestFilterErrors:
    def explained(self, pattern: str, where: str = "") -> list[str]:
        with pytest.raises(FilterError) as raised:
            Filter.parse(pattern, where)
        return explain_filter(raised.value).split("\n")

    def test_a_marker_stands_below_the_place(self) -> None:
        assert self.explained("x", "price = 5") == [
            "filter 'price = 5' has '=' where '==' is meant, at character 7",
            "  price = 5",
            "        ^",
        ]

    def test_of_long_conditions_the_place_is_shown(self) -> None:
        where = " and ".join(["price < 1"] * 20) + "\n or"
        _, text, marker = self.explained("x", where)
        assert len(text) < 80
        assert text.endswith(" or")
        assert marker.index("^") == len(text)

    def test_patterns_are_short_enough_without(self) -> None:
        assert self.explained("a/#/b") == [
            "filter 'a/#/b' has '#' in level 2, which is not its last"
        ]


ANN = SessionReport(
    client_id="ann",
    session_id="b0/1a/7",
    connected=True,
    keep_s=3_600,
    expires_in_s=3_600,
    filters=2,
    followed_topics=1_200,
    queued_events=3,
    queued_bytes=4_096,
    untaken_bytes=512,
    delivered_events=98_765,
    token="app",
)
BOB = SessionReport(
    client_id="bob",
    session_id="b1/1b/1",
    absent_s=75.2,
    keep_s=120,
    expires_in_s=44.8,
    filters=1,
    queued_events=50_000,
    queued_bytes=1,
    delivered_events=50_000,
    dropped_events=17,
)


class TestSessions:
    def test_the_table(self, capsys: pytest.CaptureFixture[str]) -> None:
        print_sessions([("b0", ANN), ("b1", BOB)])
        assert capsys.readouterr().out.splitlines() == [
            "client  broker  state              filters  followed  queued  delivered  dropped",
            "------  ------  -----------------  -------  --------  ------  ---------  -------",
            "ann     b0      connected                2      1200       3      98765        0",
            "bob     b1      absent for 1m 15s        1         0   50000      50000       17",
        ]

    def test_one_that_is_connected(self) -> None:
        details = SessionDetails(
            session=ANN,
            filters=[
                client_pb2.Filter(pattern="quake/#", where="price < 1500"),
                client_pb2.Filter(pattern="fire"),
            ],
            catching_up=[f"q/{i}" for i in range(12)],
        )
        assert describe_session("b0", details) == [
            "ann",
            "  session      b0/1a/7 on b0",
            "  state        connected; kept for 1h 0m without a connection",
            "  token        app",
            "  queued       3 events, 4,096 bytes",
            "  sent         512 bytes not taken by the application yet",
            "  delivered    98,765 events, 0 dropped",
            "  follows      1,200 topics by its wildcards",
            "  catching up  q/0, q/1, q/2, q/3, q/4, q/5, q/6, q/7, q/8, q/9 and 2 more",
            "  filters      2",
            "    quake/# where price < 1500",
            "    fire",
        ]

    def test_one_that_is_away(self) -> None:
        lines = describe_session("b1", SessionDetails(session=BOB))
        assert "  state        absent for 1m 15s; ends in 44s" in lines
        assert "  token        none asked for" in lines
        assert "  catching up  no topic" in lines
        assert lines[-1] == "    … and 1 more"

    def test_durations(self) -> None:
        seconds = [0.4, 59.9, 60, 3_599, 3_600, 86_399, 90_000]
        assert [brief_duration(s) for s in seconds] == [
            "0s", "59s", "1m 0s", "59m 59s", "1h 0m", "23h 59m", "1d 1h",
        ]  # fmt: skip
