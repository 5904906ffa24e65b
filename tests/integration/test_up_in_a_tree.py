"""`dynatops up --topology`: all brokers of a file on this machine."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import COMMAND, Cluster, run, run_json
from tests.support.ports import free_addresses

pytestmark = [pytest.mark.processes, pytest.mark.xdist_group("processes")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A hub, and two leaves."""
    return write(tmp_path, free_addresses(3))


def write(folder: Path, addresses: list[str]) -> Path:
    hub, one, other = addresses
    path = folder / "tree.yaml"
    path.write_text(
        f"root: hub\nbrokers: {{hub: '{hub}', leaf1: '{one}', leaf2: '{other}'}}\n"
        "links: [[hub, leaf1], [hub, leaf2]]\n"
    )
    return path


@pytest.mark.parametrize("where", ["--in-process", "--processes"])
def test_where_the_file_says(file: Path, where: str, tmp_path: Path) -> None:
    command = [*COMMAND, "up", "--topology", str(file), where, "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        hub, leaf, other = said["addresses"]
        shown = run_json("topology", "show", "--broker", leaf)
        assert list(shown["brokers"].values()) == said["addresses"]
        assert (shown["links_down"], shown["unreachable"], shown["behind"]) == ([], [], {})
        again = run("up", "--topology", str(file))
        assert again.returncode == 1
        for name, address in (("hub", hub), ("leaf1", leaf), ("leaf2", other)):
            assert f"{name} cannot listen on {address}: it is taken" in again.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_on_other_ports(tmp_path: Path) -> None:
    """The file is for other machines."""
    write(tmp_path, ["192.0.2.1:7400", "nowhere.invalid:7400", "192.0.2.2:7400"])
    where = run("up", "--topology", str(tmp_path / "tree.yaml"))
    assert where.returncode == 1
    assert "hub cannot listen on 192.0.2.1:7400: it is another machine's" in where.stderr
    assert "leaf1 cannot listen on nowhere.invalid:7400: nobody knows" in where.stderr
    assert "--port 0: any that are free" in where.stderr
    cluster = Cluster("--topology", str(tmp_path / "tree.yaml"))
    try:
        assert len({address.rpartition(":")[2] for address in cluster.addresses}) == 3
        shown = run("topology", "show", "--broker", cluster.addresses[0])
        assert shown.stdout.splitlines()[-1] == "2 of 2 links up"
    finally:
        assert cluster.stop() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--brokers", "3"], "--brokers: leave it out, as a topology says how many there are"),
        (["--managers", "1"], "--managers: leave it out, as a topology leaves nothing to plan"),
        (["--port", "65535"], "--port 65535: ports end at 65535"),
    ],
)
def test_what_does_not_go_together(file: Path, options: list[str], said: str) -> None:
    outcome = run("up", "--topology", str(file), *options)
    assert outcome.returncode == 2
    assert said in outcome.stderr


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "tree.yaml"
    path.write_text("brokers: {a: h:1, b: h:2}\n")
    outcome = run("up", "--topology", str(path))
    assert outcome.returncode == 2
    assert "tree.yaml: no links lead from 'a' to b" in outcome.stderr


def test_one_address_is_taken(file: Path, tmp_path: Path) -> None:
    """Nothing is left of the others."""
    hub, one, other = free_addresses(3)
    write(tmp_path, [hub, one, other])
    with socket.create_server(("127.0.0.1", int(other.rpartition(":")[2]))):
        outcome = run("up", "--topology", str(file), "--processes")
    assert outcome.returncode == 1
    assert f"leaf2 cannot listen on {other}: it is taken" in outcome.stderr
    assert "hub cannot listen" not in outcome.stderr
