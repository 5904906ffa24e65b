"""The manager's commands, typed at a manager over real HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynatops.cli.main import main
from dynatops.cli.managers.manager_client import ManagerClient
from dynatops.cli.managers.watch import Happening, picture
from dynatops.kit.advice.job_records import JobCounts, JobEnd, JobRecord
from reconfig_manager.rest.rest_settings import RestSettings
from reconfig_manager.status import AdviceStatus, JobStatus
from tests.support.manager_driver import ManagerDriver, leading
from tests.support.rest_server import Served, served
from tests.support.security import ENCRYPTED, pem, table
from tests.support.waiting import until

REASON = ("--reason", "mornings are slow")


class Terminal:
    """One that types, and reads what is printed."""

    def __init__(self, manager: Served, capsys: pytest.CaptureFixture[str], *access: str) -> None:
        self.manager = manager
        self.errors = ""
        self._capsys = capsys
        self._access = access

    def type(self, *arguments: str, code: int = 0) -> str:
        found = main([*arguments, "--manager", self.manager.url, *self._access])
        printed = self._capsys.readouterr()
        self.errors = printed.err
        assert found == code, printed
        return printed.out

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.type(*arguments, "--json", code=code))


@pytest.fixture
def manager() -> Iterator[Served]:
    with served(asyncio.run(leading(RestSettings(listen="127.0.0.1:0")))) as running:
        yield running


@pytest.fixture
def terminal(manager: Served, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(manager, capsys)


def test_status_and_cost(terminal: Terminal) -> None:
    assert "m1 (fence 1)" in terminal.type("status")
    assert terminal.json("status")["brokers"] == 8
    assert "worth looking" in terminal.type("cost")
    assert terminal.json("cost")["reconfigurable"]


def test_jobs_of_analytics(terminal: Terminal) -> None:
    terminal.type("analytics", "status", code=1)
    assert "no Redis to look into" in terminal.errors
    now_s = time.time()
    well = JobRecord(
        end=JobEnd.DONE,
        ended_s=now_s - 100,
        seconds=12.0,
        reason="",
        succeeded_s=now_s - 100,
        runs={JobEnd.DONE: 3},
        counts=JobCounts(rows=12_345, late=6, quarantined=2, quarantined_files=1),
    )
    advice = AdviceStatus(now_s - 7_300, {"topics": 9})
    driver = terminal.manager.driver
    driver.analytics_jobs = (JobStatus("demand"), JobStatus("rates", well, advice))
    never, rates = terminal.type("analytics", "status").splitlines()[2:]
    assert never.split() == ["demand", "never", "-", "-", "-", "0", "0", "0", "0", "-"]
    for part in ("rates", "done", "1m 40s ago", "12s", "12,345", "2, 1 files", "2h 1m ago"):
        assert part in rates
    failed = replace(well, end=JobEnd.FAILED, reason="there is no lake at s3a://b/lake")
    driver.analytics_jobs = (JobStatus("rates", failed, advice),)
    assert "rates failed: there is no lake at" in terminal.type("analytics", "status", code=1)
    (rates,) = terminal.json("analytics", "status", code=1)["jobs"]
    assert (rates["last_run"], rates["runs"]["done"]) == ("failed", 3)


def test_a_plan_from_proposal_to_history(terminal: Terminal) -> None:
    text = terminal.type("plan", *REASON, "--max-moves", "4", "--delay-weight", "2")
    assert "PROPOSED" in text
    assert "mornings are slow" in text
    assert "to execute it: dynatops approve p1-1" in text
    text = terminal.type("approve", "p1-1", "--reason", "go")
    assert "plan p1-1: COMMITTED" in text
    assert "what it gains is being measured" in text
    text = terminal.type("plans")
    assert "p1-1" in text
    assert "COMMITTED" in text
    plan = terminal.json("plans", "p1-1")
    assert plan["options"]["delay_weight"] == 2
    assert len(plan["moves"]) <= 4
    audit = terminal.json("plans", "--audit")
    assert [entry["action"] for entry in audit] == ["execute", "approve", "propose"]
    assert "accepted" in terminal.type("plans", "--audit")
    assert len(terminal.json("plans", "--audit", "--limit", "2")) == 2


def test_execute_follows_it_to_its_end(terminal: Terminal) -> None:
    plan = terminal.json("plan", "--execute", "--algorithm", "dynatops-greedy", *REASON)
    assert plan["state"] == "COMMITTED"
    assert plan["prediction"]["algorithm"] == "dynatops-greedy"


def test_not_waiting(terminal: Terminal) -> None:
    terminal.manager.driver.hold_solver = True
    plan = terminal.json("plan", "--no-wait", *REASON)
    assert plan["prediction"] is None
    plan = terminal.json("cancel", plan["id"], "--reason", "never mind")
    assert plan["state"] == "CANCELLED"


def test_cancelling_an_execution(terminal: Terminal) -> None:
    driver = terminal.manager.driver
    driver.hold_steps = True
    plan_id = terminal.json("plan", "--no-wait", "--execute", *REASON)["id"]
    answer = terminal.json("cancel", plan_id, "--no-wait", "--reason", "wrong moment")
    assert answer["phase"] == "ROLLING_BACK"
    terminal.manager.do(driver.let_go())
    assert "rolled back" in terminal.type("plans", plan_id)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("plans", "p9-9"), 1, "there is no plan 'p9-9'"),
        (("approve", "p9-9", *REASON), 1, "there is no plan 'p9-9'"),
        (("plan", "--reason", " "), 1, "body.reason: "),
        (("plan", "--algorithm", "lsap", "--max-moves", "3", *REASON), 1, "lsap cannot limit"),
        (("plan", "--delay-weight", "-1", *REASON), 2, "a number from 0 up"),
        (("policy", "set", "moods=1", *REASON), 2, "a policy has no 'moods'"),
        (("policy", "set", "mode=maybe", *REASON), 1, "body.policy.mode: "),
        (("plans", "p1", "--audit"), 2, "--audit lists all commands"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_sentence(
    terminal: Terminal, arguments: tuple[str, ...], code: int, message: str
) -> None:
    assert terminal.type(*arguments, code=code) == ""
    assert terminal.errors.startswith("dynatops: ")
    assert message in terminal.errors
    assert terminal.errors.count("\n") == 1


def test_the_policy(terminal: Terminal) -> None:
    assert "mode = manual" in terminal.type("policy", "show")
    assert "mode = auto" in terminal.type("policy", "set", "mode=auto", "t_free_s=1800", *REASON)
    found = terminal.json("policy", "show")
    assert (found["version"], found["policy"]["t_free_s"]) == (1, 1800)
    assert terminal.manager.driver.manager.leader_state.rules.t_free_s == 1800


def test_watching_prints_lines_where_there_is_no_screen(terminal: Terminal) -> None:
    driver = terminal.manager.driver

    async def happen(watchers: int) -> None:
        await until(lambda: len(driver.broadcast) == watchers)
        driver.broadcast.publish({"type": "broker", "broker": "b3", "state": "gone"})

    for as_json in (False, True):
        # A stream that nobody reads any more ends with the manager's next word.
        happening = asyncio.run_coroutine_threadsafe(happen(1 + as_json), terminal.manager.loop)
        if as_json:
            (line,) = terminal.type("watch", "--for", "0.7", "--json").splitlines()
            assert json.loads(line)["broker"] == "b3"
        else:
            text = terminal.type("watch", "--for", "0.7")
            assert text.startswith("leader")
            assert text.splitlines()[-1].endswith("broker b3: gone")
        happening.result(5)


def test_a_follower_leads_on_and_a_dead_manager_is_passed_over(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    store = terminal.manager.driver.store
    follower = ManagerDriver(RestSettings(listen="127.0.0.1:0"), name="m2", store=store)
    follower.leader_url = terminal.manager.url
    with served(follower) as running:
        urls = f"http://127.0.0.1:1,{running.url}"
        assert main(["plan", *REASON, "--manager", urls, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == "PROPOSED"
        assert main(["policy", "set", "mode=off", *REASON, "--manager", urls]) == 0


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--manager", "http://127.0.0.1:1"]) == 1
    assert "no manager answers (http://127.0.0.1:1: connection refused)" in capsys.readouterr().err


def test_roles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        "\n".join(table(role, role, role=f'"{role}"') for role in ("viewer", "admin"))
    )
    settings = RestSettings(listen="127.0.0.1:0", tokens=str(tokens))
    with served(asyncio.run(leading(settings))) as manager:
        nobody = Terminal(manager, capsys)
        nobody.type("status", code=1)
        assert "this manager asks for a token" in nobody.errors
        viewer = Terminal(manager, capsys, "--token", "viewer")
        assert viewer.type("status")
        viewer.type("plan", "--execute", *REASON, code=1)
        assert "this takes an operator's" in viewer.errors
        file = tmp_path / "admin.token"
        file.write_text("admin\n")
        admin = Terminal(manager, capsys, "--token-file", str(file))
        assert admin.json("plan", *REASON)["actor"] == "admin"
        roles = [entry["role"] for entry in admin.json("plans", "--audit")]
        assert roles == ["admin", "viewer"]


def test_tls(capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: ENCRYPTED[name] for name in ("tls_cert", "tls_key")}
    settings = RestSettings(listen="127.0.0.1:0", **files)
    with served(asyncio.run(leading(settings))) as manager:
        assert Terminal(manager, capsys, "--tls-ca", pem("ca.crt")).type("status")
        doubting = Terminal(manager, capsys)
        doubting.type("status", code=1)
        assert "its certificate is not believed here (--tls-ca)" in doubting.errors
        plain = manager.url.replace("https:", "http:")
        assert main(["status", "--manager", plain]) == 1
        assert "no manager answers" in capsys.readouterr().err


def test_the_picture_on_a_terminal(terminal: Terminal) -> None:
    terminal.type("plan", *REASON)
    happening = Happening(0.0, "broker", {"broker": "b3", "state": "gone"})
    lines = list(picture(ManagerClient(terminal.manager.url), [happening]))
    assert lines[0].startswith("leader")
    assert any(line.startswith("p1-1") and "PROPOSED" in line for line in lines)
    assert lines[-1].endswith("broker b3: gone")
