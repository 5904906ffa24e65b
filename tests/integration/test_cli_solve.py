"""Planning offline, as a person types it."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dynatops.cli.main import main
from reconfig_manager.placement.instance import read_instance

QUICK = ("--time-limit", "0.2")


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.fixture
def instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    target = tmp_path / "i.json.gz"
    code, out, _ = run(capsys, "instance", "--brokers", "30", "--topics", "30", "--output", target)
    assert code == 0
    assert "30 brokers, 30 topics" in out
    return target


class TestSolve:
    @pytest.mark.parametrize("algorithm", ["ssbr-greedy", "dynatops-greedy", "lsap", "refine"])
    def test_as_json(
        self, instance: Path, capsys: pytest.CaptureFixture[str], algorithm: str
    ) -> None:
        code, out, err = run(
            capsys, "solve", instance, "--algorithm", algorithm, "--json", "--seed", "3", *QUICK
        )
        assert (code, err) == (0, "")
        answer = json.loads(out)
        given = read_instance(instance)
        assert answer["algorithm"] == algorithm
        assert sorted(answer["placement"].values()) == sorted(given.node_ids)
        assert set(answer["placement"]) == set(given.brokers)
        assert answer["moved"] == sum(
            given.placement[broker] != node for broker, node in answer["placement"].items()
        )
        before, after = answer["before"], answer["after"]
        assert before["total"] == pytest.approx(before["overhead"] + before["delay"])
        assert answer["benefit"] == pytest.approx(before["total"] - after["total"])
        assert after["total"] <= before["total"]
        assert answer["decision"].keys() == {"accept", "reason", "threshold"}
        assert {"seconds", "iterations", "moving_cost", "bound"} < answer.keys()
        if algorithm.endswith("greedy"):
            assert answer["bound"] is None

    def test_the_answer_is_what_it_says(
        self, instance: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Put into the instance, the new placement costs what was predicted."""
        answer = json.loads(run(capsys, "solve", instance, "--json", *QUICK)[1])
        moved = json.loads(gzip.decompress(instance.read_bytes()))
        moved["placement"] = answer["placement"]
        there = tmp_path / "there.json"
        there.write_text(json.dumps(moved))
        again = json.loads(run(capsys, "solve", there, "--json", "--iterations", "1")[1])
        assert again["before"] == answer["after"]

    def test_for_people(self, instance: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = run(capsys, "solve", instance, *QUICK)
        assert code == 0
        assert re.search(r"^total +[\d,]+ +[\d,]+ +-\d+\.\d%$", out, re.MULTILINE)
        assert "no placement costs less than" in out
        assert re.search(r"\d+ of 30 brokers move; (accept|reject): ", out)
        assert " -> " in out

    def test_few_moves(self, instance: Path, capsys: pytest.CaptureFixture[str]) -> None:
        _, out, _ = run(capsys, "solve", instance, "--max-moves", "4", "--json", *QUICK)
        assert json.loads(out)["moved"] <= 4

    def test_moving_has_its_price(self, instance: Path, capsys: pytest.CaptureFixture[str]) -> None:
        _, out, _ = run(
            capsys, "solve", instance, "--net", "--moving-cost", "1e9,0,0", "--json", *QUICK
        )
        answer = json.loads(out)
        assert not answer["decision"]["accept"]
        assert answer["decision"]["reason"] == "cost_below_threshold"
        _, out, _ = run(
            capsys, "solve", instance, "--beta", "0", "--moving-cost", "0,0,0", "--json", *QUICK
        )
        assert json.loads(out)["decision"]["reason"] == "benefit_above_cost"

    def test_from_standard_input(
        self, instance: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with instance.open("rb") as raw:
            monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": raw}))
            code, _, _ = run(capsys, "solve", "-", *QUICK)
        assert code == 0

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"node_ids": []}, "node_ids: the ring is empty"),
            ({"publications": {"t0": -1}}, "publications.t0: input should be greater than"),
            ({"placement": {}}, "placement: broker 'b0' has no node"),
        ],
    )
    def test_bad_instances(
        self,
        instance: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        change: dict[str, Any],
        message: str,
    ) -> None:
        bad = tmp_path / "bad.json"
        bad.write_text(json.dumps(json.loads(gzip.decompress(instance.read_bytes())) | change))
        code, out, err = run(capsys, "solve", bad)
        assert (code, out) == (2, "")
        assert err.startswith(f"dynatops: {bad}: {message}")
        assert err.count("\n") == 1

    @pytest.mark.parametrize("command", ["solve", "compare"])
    def test_files_that_cannot_be_read(
        self, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, _, err = run(capsys, command, tmp_path / "none.json")
        assert code == 2
        assert "No such file" in err
        code, _, err = run(capsys, command, tmp_path)
        assert code == 2
        assert "Is a directory" in err

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--algorithm", "exact"), "too large for exact: 30 brokers"),
            (("--algorithm", "lsap", "--max-moves", "3"), "refine can"),
            (("--algorithm", "ssbr-greedy", "--net"), "dynatops-greedy minds moving"),
            (("--moving-cost", "1,2"), "three numbers"),
            (("--moving-cost", "1,2,x"), "'x' is no number"),
            (("--moving-cost", "1,2,-3"), "from 0 up"),
        ],
    )
    def test_what_cannot_be_asked(
        self,
        instance: Path,
        capsys: pytest.CaptureFixture[str],
        options: tuple[str, ...],
        message: str,
    ) -> None:
        code, _, err = run(capsys, "solve", instance, *options)
        assert code == 2
        assert message in err
        assert err.count("\n") == 1


class TestInstance:
    @pytest.mark.parametrize("pattern", ["uniform", "zipf", "multimodal"])
    def test_to_standard_output(self, pattern: str, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ("instance", "--pattern", pattern, "--brokers", "5", "--seed", "9")
        _, out, _ = run(capsys, *arguments)
        assert len(json.loads(out)["brokers"]) == 5
        assert run(capsys, *arguments)[1] == out

    def test_too_large(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, _, err = run(capsys, "instance", "--brokers", "100000", "--topics", "100000")
        assert code == 2
        assert "--brokers times --topics" in err

    def test_nowhere_to_write(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, _, err = run(capsys, "instance", "--output", tmp_path / "no" / "i.json")
        assert code == 1
        assert "No such file or directory" in err


class TestCompare:
    def test_side_by_side(self, instance: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = run(capsys, "compare", instance, *QUICK)
        assert code == 0
        names = [line.split()[0] for line in out.splitlines() if line and line[0] in "drsl("]
        assert names == [
            "(as",
            "ssbr-greedy",
            "ssbr-greedy-overhead",
            "dynatops-greedy",
            "lsap",
            "refine",
        ]
        assert "exact: too large" in out

    def test_as_json_for_several(self, instance: Path, capsys: pytest.CaptureFixture[str]) -> None:
        _, out, _ = run(capsys, "compare", instance, instance, "--json", *QUICK)
        first, second = json.loads(out)
        assert first["instance"] == second["instance"] == str(instance)
        totals = {s["algorithm"]: s.get("total") for s in first["solvers"]}
        assert totals["refine"] <= min(total for total in totals.values() if total is not None)
        refused = next(s for s in first["solvers"] if s["algorithm"] == "exact")
        assert "too large" in refused["refused"]

    @pytest.mark.parametrize("suffix", ["svg", "png"])
    def test_draws(
        self, instance: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
    ) -> None:
        target = tmp_path / f"plot.{suffix}"
        code, _, _ = run(capsys, "compare", instance, "--plot", target, *QUICK)
        assert code == 0
        assert target.stat().st_size > 5_000

    def test_draws_nothing_it_does_not_know(
        self, instance: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, _, err = run(capsys, "compare", instance, "--plot", tmp_path / "plot.xyz", *QUICK)
        assert code == 1
        assert "xyz" in err

    def test_one_picture_for_one_instance(
        self, instance: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        code, _, err = run(capsys, "compare", instance, instance, "--plot", "x.svg")
        assert code == 2
        assert "--plot goes with one instance" in err
