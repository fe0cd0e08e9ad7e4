"""`anncur bench`: a user's scorer, items and queries become rows and a report, and nothing is paid for twice."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from anncur.cli.main import app
from anncur.evaluation.rows import read_rows, select

pytestmark = pytest.mark.slow

pytest.importorskip("matplotlib")
Run = Callable[..., Any]
SCORER = """
import zlib
def score(pairs):
    return [sum(zlib.crc32((w + q[-3:]).encode()) % 97 for w in i.split()) / 97 for q, i in pairs]
n_left = 1000
def stopped(pairs):
    global n_left
    n_left -= len(pairs)
    if n_left < 0:
        raise KeyboardInterrupt
    return score(pairs)
stopped.fingerprint = score.fingerprint = "the same"
def broken(pairs):
    return [float("nan")] * len(pairs)
"""
OWN = ["corpus.jsonl", "--queries", "queries.jsonl", "--scorer", "bench_scorer:score", "--out", "out"]
SMALL = ["--tests", "8", "--anchors", "20", "--seeds", "1"]
FEW = [*SMALL, "--experiment", "spectrum", "--experiment", "histogram"]
FEW_OF_PAPER = [*SMALL, "--experiment", "recall-at-cost", "--experiment", "rank"]
BOTH = [("run", FEW), ("reproduce", FEW_OF_PAPER)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a bench command in a folder with some data; returns its JSON and its messages."""
    monkeypatch.chdir(tmp_path)
    items = [{"id": f"i{n}", "text": f"word{n % 13} thing{n % 7} item{n}"} for n in range(120)]
    Path("corpus.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    queries = [{"id": f"q{n}", "text": f"thing{n % 7} number {n}", "document": f"d{n % 10}"} for n in range(40)]
    Path("queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    Path("qrels").mkdir()
    judged = [f"q{n}\ti{n}\t1\n" for n in range(40)]
    Path("qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    Path("bench_scorer.py").write_text(SCORER)

    def command(*arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, ["bench", *arguments, "--json"])
        assert result.exit_code == code, result.output
        return (json.loads(result.stdout) if result.stdout else None), result.stderr

    return command


def cost(messages: str) -> dict[str, Any]:
    """The cost, which comes before any progress."""
    first = json.loads(messages.splitlines()[0])
    found: dict[str, Any] = first["cost"]
    return found


@pytest.mark.parametrize(("command", "few"), BOTH)
def test_own_data_becomes_rows_and_a_report_and_a_rerun_pays_for_nothing(
    run: Run, command: str, few: list[str]
) -> None:
    made, messages = run(command, *OWN, *few)
    assert made["n_rows"] > 0
    assert cost(messages)["n_missing"] == 28 * 120, "20 anchors and 8 tests"
    assert cost(messages)["seconds_per_pair"] > 0
    assert {row.cell.world for row in read_rows(Path("out/rows.jsonl"))} == {"corpus"}
    assert Path("out/report.html").is_file()
    assert Path("out/report.md").is_file()
    again, messages = run(command, *OWN, *few)
    assert again["n_rows"] == 0
    assert cost(messages) == {"n_queries": 28, "n_items": 120, "n_missing": 0, "seconds_per_pair": None}


def test_the_line_up_front_says_that_methods_are_measured_after_scoring(run: Run) -> None:
    first, *_ = CliRunner().invoke(app, ["bench", "run", *OWN, *FEW]).stderr.splitlines()
    assert first.startswith("28 queries x 120 items = 3,360 pairs, of which 3,360 are to be scored: about ")
    assert first.endswith("; then methods are measured on them, which takes some minutes")


def test_scores_that_were_paid_for_before_a_crash_are_not_paid_for_again(run: Run) -> None:
    _, messages = run("run", *OWN, *FEW, "--max-calls", "1000", code=1)
    assert "would exceed the cap of 1000 pairs" in messages
    _, messages = run("run", *OWN, *FEW)
    assert cost(messages)["n_missing"] < 28 * 120 - 800


def test_scores_are_paid_for_once_for_both_commands(run: Run) -> None:
    run("run", *OWN, *FEW)
    _, messages = run("reproduce", *OWN, *FEW_OF_PAPER)
    assert cost(messages)["n_missing"] == 0


def test_own_data_meets_no_paper(run: Run) -> None:
    pytest.importorskip("ir_measures")
    run("run", *OWN, *SMALL)
    for file in (Path("out/rows.jsonl"), Path("out/report.md"), Path("out/report.html")):
        assert "paper" not in file.read_text().lower()
    shown = CliRunner().invoke(app, ["bench", "run", "--help"]).stdout
    assert "paper" not in shown.lower()


def test_queries_of_one_document_are_never_on_both_sides(run: Run) -> None:
    run("run", *OWN, *SMALL, "--experiment", "scoreboard")
    rows = read_rows(Path("out/rows.jsonl"))
    (documents,) = select(rows, method="documents")
    assert len(documents["groups"]) > len(set(documents["groups"])), "the documents of the file, not a group for each"


def test_judgements_give_the_tasks_own_metrics_and_runs(run: Run) -> None:
    Path("corpus.jsonl").rename("corpus.jsonl.old")
    Path("beir").mkdir()
    Path("corpus.jsonl.old").rename("beir/corpus.jsonl")
    Path("queries.jsonl").rename("beir/queries.jsonl")
    Path("qrels").rename("beir/qrels")
    pytest.importorskip("ir_measures")
    run("run", "beir", "--qrels", "test", *OWN[3:], *SMALL, "--experiment", "depth")
    rows = read_rows(Path("out/rows.jsonl"))
    assert {"nDCG@10", "R@100", "recall"} <= rows[0].values.keys()
    assert select(rows, method="exhaustive")
    assert list(Path("out/runs").glob("posterior-*.trec"))


def test_items_as_queries_give_the_item_item_baselines(run: Run) -> None:
    run("reproduce", *OWN, *SMALL, "--experiment", "item-item", "--item-anchors", "10")
    methods = {row.cell.method for row in read_rows(Path("out/rows.jsonl"))}
    assert {"fixedITEM", "itemCUR", "ANNCUR"} <= methods


def test_a_report_is_written_from_rows_of_several_files(run: Run) -> None:
    run("run", *OWN, *FEW)
    run("run", *OWN[:-1], "other", *FEW, "--items", "60")
    made, _ = run("report", "out/rows.jsonl", "other/rows.jsonl", "--out", "both")
    assert made["n_rows"] == sum(len(read_rows(Path(folder) / "rows.jsonl")) for folder in ("out", "other"))
    assert Path("both/report.html").is_file()


def test_the_report_begins_with_a_recommendation_in_the_terms_of_the_user(run: Run) -> None:
    terms = ["--price", "4", "--latency-ms", "50", "--pair-ms", "3", "--queries-served", "2000"]
    made, _ = run("run", *OWN, *SMALL, *terms, "--experiment", "scoreboard")
    page = Path("out/report.md").read_text()
    assert page.startswith("# Recommendation: corpus, scored by bench_scorer:score")
    (recommended,) = made["recommendations"]
    assert f"**{recommended['sentence']}**" in page
    shown = CliRunner().invoke(app, ["bench", "report", "out/rows.jsonl", "--out", "again", *terms]).stdout
    assert f"{recommended['data']}: {recommended['sentence']}" in shown
    assert all(command in shown for command in recommended["commands"])
    assert "your scorer, 50 ms + 3 ms per pair | a GPU" in page
    assert "$4 per 1,000 pairs" in page
    run("report", "out/rows.jsonl", "--out", "again")
    again = Path("again/report.md").read_text()
    assert "your scorer as measured" in again
    assert "$" not in again


def test_what_takes_longer_than_the_minutes_is_drawn_and_a_rerun_draws_the_same(run: Run) -> None:
    slow = SCORER.replace("    return [sum", "    __import__('time').sleep(0.0005 * len(pairs))\n    return [sum", 1)
    Path("slow_scorer.py").write_text(slow)
    items = [{"id": f"i{n}", "text": f"word{n % 13} item{n}"} for n in range(1000)]
    Path("corpus.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    own = [*OWN[:3], "--scorer", "slow_scorer:score", *OWN[-2:]]
    arguments = [*own, "--seeds", "1", "--minutes", "0.0125", "--experiment", "scoreboard"]
    _, messages = run("run", *arguments)
    drawn = cost(messages)
    assert (drawn["n_queries"], drawn["n_items"]) == (40, 200), "the fewest that make sense"
    again, messages = run("run", *arguments)
    assert again["n_rows"] == 0
    assert cost(messages)["n_missing"] == 0
    (pace,) = select(read_rows(Path("out/rows.jsonl")), method="scorer")
    assert pace["n_corpus_items"] == 1000


def test_a_report_of_the_papers_experiments_judges_its_claims(run: Run) -> None:
    run("reproduce", *OWN, *FEW_OF_PAPER)
    _, message = run("report", "out/rows.jsonl", "--out", "plain", code=1)
    assert "pass --claims" in message
    run("report", "out/rows.jsonl", "--claims", "--out", "claims")
    assert "The paper's claims, and ours" in Path("claims/report.md").read_text()
    assert "The paper's claims, and ours" in Path("out/report.md").read_text()


def test_a_gzipped_file_of_rows_is_reported_too(run: Run) -> None:
    run("run", *OWN, *FEW)
    Path("rows.jsonl.gz").write_bytes(gzip.compress(Path("out/rows.jsonl").read_bytes()))
    made, _ = run("report", "rows.jsonl.gz", "--out", "packed")
    assert made["n_rows"] == len(read_rows(Path("out/rows.jsonl")))
    assert Path("packed/report.md").read_text() == Path("out/report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", *OWN, "--preset", "huge"], "--preset must be one of quick, full"),
        (["reproduce", *OWN, "--preset", "huge"], "--preset must be one of quick, paper"),
        (["run", *OWN, "--anchors", "0"], "anchors must be at least 1"),
        (["run", *OWN, "--minutes", "-1"], "--minutes must be a number at least 0"),
        (["run", *OWN, "--price", "-1"], "--price must be a number at least 0"),
        (["run", *OWN, "--queries-served", "0"], "--queries-served must be at least 1"),
        (["report", "corpus.jsonl", "--out", "x", "--pair-ms", "-1"], "--pair-ms must be a number at least 0"),
        (["run", *OWN, *SMALL, "--experiment", "magic"], "no experiment 'magic'"),
        (["run", *OWN, *SMALL, "--experiment", "heatmap"], "no experiment 'heatmap'"),
        (["run", *OWN, "--retriever", "magic"], "no retriever 'magic'"),
        (["run", *OWN[1:]], "name the corpus too"),
        (["run", *OWN[:1], *OWN[3:]], "--queries must name a file of queries"),
        (["run", *OWN, "--tests", "40"], "40 queries leave none for anchors beside 40 tests; take fewer tests"),
        (["run", *OWN, "--items", "50"], "needs more items than the smallest budget, 50, got 50"),
        (["reproduce", *OWN, "--item-anchors", "-1"], "item_anchors must be at least 0"),
        (["run", *OWN[:-1], "corpus.jsonl"], "--out must be a folder, and corpus.jsonl is a file"),
        (["report", "nothing.jsonl", "--out", "x"], "no file nothing.jsonl"),
        (["report", "qrels", "--out", "x"], "qrels is a folder; name the rows.jsonl in it"),
        (["report", "corpus.jsonl", "--out", "x"], "corpus.jsonl:1: not a row of results"),
        (["report", "corpus.jsonl", "--out", "queries.jsonl"], "--out must be a folder"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(run: Run, arguments: list[str], message: str) -> None:
    _, error = run(*arguments, code=1)
    assert message in error
    assert not Path("out").exists(), "nothing was paid for"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("queries.jsonl", "", "at least 12 different queries, got 0"),
        ("queries.jsonl", '{"text": "one"}\n' * 20, "at least 12 different queries, got 1"),
        ("queries.jsonl", "".join(f'{{"text": "{n}", "document": "d"}}\n' for n in range(20)), "20 queries in 1 group"),
        ("corpus.jsonl", "", "more items than the smallest budget, 50, got 0"),
        ("corpus.jsonl", '{"id": "twin", "text": "one"}\n' * 2, "ids must be unique, got 'twin'"),
    ],
)
def test_data_that_cannot_be_measured_is_refused_before_it_is_scored(
    run: Run, file: str, content: str, message: str
) -> None:
    Path(file).write_text(content)
    assert message in run("run", *OWN, code=1)[1]
    assert not Path("out").exists(), "nothing was paid for"


def test_a_seed_that_no_generator_takes_is_wrong_usage(run: Run) -> None:
    assert "a seed must be at least 0" in run("run", *OWN, "--seed", "-1", code=2)[1]


def test_rows_of_another_program_are_left_alone_and_nothing_is_scored(run: Run) -> None:
    Path("out").mkdir()
    Path("out/rows.jsonl").write_text('{"id": 1}\n')
    assert "a file of another program" in run("run", *OWN, *FEW, code=1)[1]
    assert Path("out/rows.jsonl").read_text() == '{"id": 1}\n'
    assert not Path("out/scores").exists()


def test_a_scorer_that_gives_no_number_is_named_with_the_pair(run: Run) -> None:
    message = run("run", *OWN[:3], "--scorer", "bench_scorer:broken", *OWN[-2:], *FEW, code=1)[1]
    assert "must return one finite number per pair, got nan for item 'i0'" in message


def test_what_was_scored_before_ctrl_c_is_not_scored_again(run: Run) -> None:
    _, messages = run("run", *OWN[:3], "--scorer", "bench_scorer:stopped", *OWN[-2:], *FEW, code=130)
    assert "run the same again to resume" in messages
    _, messages = run("run", *OWN, *SMALL, *FEW[-2:])
    assert 0 < cost(messages)["n_missing"] < 28 * 120 - 800


@pytest.mark.slow
@pytest.mark.parametrize(("command", "few"), [("run", ["spectrum", "scoreboard"]), ("reproduce", ["recall-at-cost"])])
def test_without_data_the_bundled_sample_is_measured(run: Run, command: str, few: list[str]) -> None:
    made, _ = run(command, "--out", "sample", *(word for name in few for word in ("--experiment", name)))
    rows = read_rows(Path(made["rows"]))
    assert {(row.cell.world, row.cell.scorer, row.cell.n_items) for row in rows} == {("animals", "builtin", 2000)}
