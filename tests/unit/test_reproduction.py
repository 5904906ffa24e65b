"""`dynatops reproduce`: what is kept, what is refused, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynatops.cli.main import main
from experiments.figures.catalogue import FIGURES
from experiments.figures.figure import (
    Figure,
    FigureRow,
    FigureTable,
    JudgedAs,
    Parameter,
    RunSpec,
)
from experiments.figures.judging import by, judge_least, less_by
from experiments.report import last_verdicts
from experiments.reproduction import judge_figure, measure_all, runs_of
from experiments.results import RESULTS_VERSION, Outcome, ResultsError, ResultsFile

SPEC = RunSpec.of("visits")


def silent(done: int, total: int, what: str) -> None:
    pass


class TestResults:
    def test_what_was_measured_is_there_again(self, tmp_path: Path) -> None:
        ResultsFile(tmp_path, 0.5).add(SPEC, 3, Outcome({"x": 1.25}, 7.0))
        again = ResultsFile(tmp_path, 0.5)
        assert again.get(SPEC, 3) == Outcome({"x": 1.25}, 7.0)
        assert again.get(SPEC, 4) is None
        # Another scale is another file.
        assert ResultsFile(tmp_path, 0.25).get(SPEC, 3) is None

    def test_half_a_line_at_the_end_is_left_out_and_said(self, tmp_path: Path) -> None:
        results = ResultsFile(tmp_path, 0.5)
        results.add(SPEC, 1, Outcome({"x": 1.0}, 1.0))
        with results.path.open("a") as out:
            out.write('{"run": "visits", "se')
        again = ResultsFile(tmp_path, 0.5)
        assert again.torn == 1
        again.add(SPEC, 2, Outcome({"x": 2.0}, 1.0))
        whole = ResultsFile(tmp_path, 0.5)
        assert whole.torn == 0
        assert [whole.get(SPEC, seed) is not None for seed in (1, 2)] == [True, True]

    def test_a_damaged_line_in_the_middle_is_named(self, tmp_path: Path) -> None:
        results = ResultsFile(tmp_path, 0.5)
        results.add(SPEC, 1, Outcome({"x": 1.0}, 1.0))
        text = results.path.read_text()
        results.path.write_text(text + "garbage\n" + text.splitlines()[1] + "\n")
        with pytest.raises(ResultsError, match="line 3 is damaged"):
            ResultsFile(tmp_path, 0.5)

    @pytest.mark.parametrize(
        "head",
        ["", "[]", "no json", '{"results_version": 0, "dynatops": "0", "scale": 0.5}'],
    )
    def test_other_files_and_other_versions_are_refused(self, tmp_path: Path, head: str) -> None:
        (tmp_path / "runs-scale-0.5.jsonl").write_text(head + "\n")
        with pytest.raises(ResultsError, match=r"runs-scale-0\.5"):
            ResultsFile(tmp_path, 0.5)


def test_a_run_that_is_cut_off_goes_on(tmp_path: Path) -> None:
    figure = FIGURES["fig5"]
    measured: list[str] = []

    def interrupt(done: int, total: int, what: str) -> None:
        if what:
            measured.append(what)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_all([figure], ResultsFile(tmp_path, 0.01), (1, 2), 1, interrupt)
    assert measured == ["visits seed 1"]
    steps: list[tuple[int, int]] = []
    results = ResultsFile(tmp_path, 0.01)
    measure_all([figure], results, (1, 2), 1, lambda done, total, what: steps.append((done, total)))
    assert steps == [(1, 2), (2, 2)]
    assert judge_figure(figure, results, (1, 2)).seeds == (1, 2)


def test_a_figure_whose_runs_are_not_there_is_not_judged(tmp_path: Path) -> None:
    found = judge_figure(FIGURES["fig6a"], ResultsFile(tmp_path, 1.0), (1,))
    assert found.verdict is JudgedAs.OPEN
    assert {judgement.verdict for _, judgement in found.judgements} == {JudgedAs.OPEN}


def test_gains_are_said_in_words() -> None:
    assert by(less_by(60.0, 100.0)) == "40% less"
    assert by(less_by(150.0, 100.0)) == "50% more"
    # GeoPS sends nothing to subscribe to the cell where the user is.
    assert by(less_by(5.0, 0.0)) == "more (the other has none)"
    assert by(less_by(0.0, 0.0)) == "0% less"


def test_verdicts_follow_direction_and_size() -> None:
    assert judge_least(0.4, 0.4, "", "").verdict is JudgedAs.HOLDS
    assert judge_least(0.1, 0.4, "", "").verdict is JudgedAs.PARTLY
    assert judge_least(0.0, 0.4, "", "").verdict is JudgedAs.FAILS


def test_rows_of_ablations_are_found_by_naming_what_they_vary() -> None:
    def row(**parameters: Parameter) -> FigureRow:
        return FigureRow(RunSpec.of("location", **parameters), {})

    usual, friendless, loadless = row(c=10), row(c=10, friends=0), row(c=10, w_l=0.0, friends=0)
    table = FigureTable((loadless, friendless, usual))
    assert table.where(c=10) == [usual]
    assert table.where(friends=0) == [friendless]
    assert table.where(friends=0, w_l=0.0) == [loadless]
    # A plot that has lines for it shows it.
    assert table.among({"friends": 0}, {"w_l"}) == [loadless, friendless]
    with pytest.raises(KeyError, match="no row with"):
        table.one(c=20)


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_every_figure_judges_what_it_measures(figure: Figure, tmp_path: Path) -> None:
    """With made-up metrics: each claim comes to a verdict, and says why."""
    results = ResultsFile(tmp_path, 1.0)
    names = {
        *(metric for each in FIGURES.values() for metric in each.metrics),
        *(plot.metric for plot in figure.plots),
    }
    for number, spec in enumerate(runs_of([figure], 1.0)):
        metrics = dict.fromkeys(names, 10.0 + number)
        results.add(spec, 1, Outcome(metrics, 1.0))
    found = judge_figure(figure, results, (1,))
    assert found.verdict is not JudgedAs.OPEN
    for _, judgement in found.judgements:
        assert judgement.measured
        assert judgement.reason
    assert set(found.as_json()) >= {"name", "scale", "seeds", "rows", "claims"}


class TestCommand:
    def run(self, *arguments: str) -> int:
        return main(["reproduce", *arguments])

    def test_a_figure_with_a_report(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = str(tmp_path / "report")
        assert self.run("fig5", "--scale", "0.01", "--report", folder, "--json") == 0
        (found,) = json.loads(capsys.readouterr().out)
        assert (found["name"], found["scale"], found["seeds"]) == ("fig5", 0.01, [1])
        assert set(found["claims"][0]) == {"text", "expected", "measured", "verdict", "reason"}
        assert {"index.md", "index.html", "report.json"} <= {
            path.name for path in Path(folder).iterdir()
        }
        assert set(last_verdicts(Path(folder))) == {"fig5"}
        assert self.run("--list", "--report", folder) == 0
        assert "dynatops reproduce fig7a" in capsys.readouterr().out

    def test_a_report_grows_and_each_figure_says_its_scale(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        report = ["--report", str(tmp_path)]
        assert self.run("table2", "--scale", "0.02", *report) == 0
        assert self.run("fig5", "--scale", "0.01", "--seeds", "2", "--seed", "3", *report) == 0
        text = (tmp_path / "index.md").read_text()
        assert "`dynatops reproduce fig5 --scale 0.01 --seeds 2 --seed 3`" in text
        assert "Scale 0.02, seeds 1: `dynatops reproduce table2" in text
        assert list(last_verdicts(tmp_path)) == ["fig5", "table2"]
        # Measured again, it takes its own place.
        assert self.run("fig5", "--scale", "0.02", *report) == 0
        text = (tmp_path / "index.md").read_text()
        assert text.count("## fig5") == 1
        assert "`dynatops reproduce fig5 --scale 0.02 --seeds 1`" in text
        # Without its measurements a figure stays as it was reported.
        table2 = (tmp_path / "index.md").read_text().partition("## table2")[2]
        (tmp_path / "runs-scale-0.02.jsonl").unlink()
        assert self.run("fig5", "--scale", "0.01", *report) == 0
        assert list(last_verdicts(tmp_path)) == ["fig5", "table2"]
        assert (tmp_path / "index.md").read_text().partition("## table2")[2] == table2
        # What cannot be read is not written over.
        (tmp_path / "report.json").write_text(f'{{"results_version": {RESULTS_VERSION}}}')
        capsys.readouterr()
        assert self.run("fig5", "--scale", "0.01", *report) == 2
        assert "is damaged; remove it" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["fig99"], "no figure 'fig99'; there are fig5"),
            ([], "--list shows them"),
            (["fig5", "--all"], "or say --all"),
            (["fig6a", "--scale", "0.05"], "the least that does is 0.1"),
            (["fig5", "--scale", "2"], "at most 1"),
        ],
    )
    def test_what_cannot_be_is_refused(
        self, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.run(*arguments) == 2
        assert why in capsys.readouterr().err

    def test_a_trace_whose_bad_rows_are_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        trace, folder = tmp_path / "trace.csv", tmp_path / "report"
        rows = [f"u{i % 3},2010-10-{1 + i:02}T12:00:00Z,{30 + i % 5},-97" for i in range(20)]
        trace.write_text("\n".join(["user,time,lat,lon", *rows, "u1,whenever,30,-97"]) + "\n")
        command = ["fig5", "--scale", "0.01", "--trace", str(trace), "--report", str(folder)]
        assert self.run(*command, "--json") == 0
        out, err = capsys.readouterr()
        assert "1 of 21 rows are left out: 1 with a time that is none (line 22)" in err
        assert json.loads(out)[0]["rows"][0]["visits"] == 20
        # Another file of that name is measured anew.
        trace.write_text("\n".join(["user,time,lat,lon", *rows[:10]]) + "\n")
        assert self.run(*command, "--json") == 0
        assert json.loads(capsys.readouterr().out)[0]["rows"][0]["visits"] == 10

    @pytest.mark.parametrize(
        ("figure", "why"),
        [("fig5", "No such file"), ("fig7a", "fig7a is not of the location workload")],
    )
    def test_a_trace_that_cannot_be_used(
        self, figure: str, why: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.run(figure, "--scale", "0.01", "--trace", "nowhere.csv") == 2
        assert why in capsys.readouterr().err

    def test_a_trace_that_ends_before_anything_is_measured(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        trace = tmp_path / "trace.csv"
        rows = [f"u{i % 3},2010-10-{1 + i // 2:02}T12:00:00Z,{30 + i % 5},-97" for i in range(20)]
        trace.write_text("\n".join(["user,time,lat,lon", *rows]) + "\n")
        assert self.run("fig6d", "--scale", "0.02", "--trace", str(trace)) == 2
        assert "of 9.0 days; the first 12, in which users come" in capsys.readouterr().err

    def test_a_report_of_another_version_is_left_alone(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "report.json").write_text('{"results_version": 0}')
        assert self.run("fig5", "--scale", "0.01", "--report", str(tmp_path)) == 2
        assert "another version" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
