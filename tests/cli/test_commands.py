"""The commands on an index, from building to throwing away."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import anncur
from anncur.cli.frame import printable
from anncur.cli.main import app

pytestmark = pytest.mark.slow

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in a folder that holds a corpus, queries and a scorer; returns its JSON, or its error."""
    monkeypatch.chdir(tmp_path)
    items = [{"id": f"i{n}", "text": "x" * (n % 17 + 1), "title": f"item {n}"} for n in range(60)]
    Path("corpus.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    Path("new.jsonl").write_text(json.dumps({"id": "new", "text": "y" * 100}) + "\n")
    Path("queries.txt").write_text("".join(f"query number {n}\n" for n in range(30)))
    Path("scorer_of_tests.py").write_text("def score(pairs): return [float(len(i)) for q, i in pairs]\n")

    def command(*arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [*arguments, "--json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if result.stdout else json.loads(result.stderr.splitlines()[-1])["error"]

    return command


BUILD = ["build", "corpus.jsonl", "--queries", "queries.txt", "--out", "x.anncur", "--scorer", "scorer_of_tests:score"]


def test_the_life_of_an_index(run: Run) -> None:
    assert run(*BUILD, "--n-anchor-queries", "20") == {"path": "x.anncur", "is_complete": True, "calls": 20 * 60 + 8}
    assert run(*BUILD, "--n-anchor-queries", "20")["calls"] == 0
    assert run("info", "x.anncur")["n_items"] == 60
    assert run("search", "x.anncur", "anything", "-k", "2", "--budget", "60")["hits"][0]["id"] == "i16"
    assert run("add", "x.anncur", "new.jsonl") == {"path": "x.anncur", "version": 2, "n_items": 61}
    assert run("search", "x.anncur", "anything", "-k", "1", "--method", "exhaustive")["hits"][0]["id"] == "new"
    assert run("remove", "x.anncur", "new")["version"] == 3
    assert run("search", "x.anncur", "anything", "-k", "1", "--method", "exhaustive")["hits"][0]["id"] == "i16"
    assert run("tune", "x.anncur")["version"] == 4
    assert run("verify", "x.anncur")["problems"] == []
    assert "manifests/00000001.json" in run("gc", "x.anncur")["deleted"]
    assert run("verify", "x.anncur")["problems"] == []


def test_items_that_change_are_upserted_and_their_segments_merged(run: Run) -> None:
    run(*BUILD, "--n-anchor-queries", "4")
    changes = [{"id": "i3", "text": "z" * 200}, {"id": "i4", "text": "xxxxx", "title": "item 4", "colour": "red"}]
    Path("today.jsonl").write_text("".join(json.dumps(item) + "\n" for item in changes))
    assert run("upsert", "x.anncur", "today.jsonl") == {"path": "x.anncur", "version": 2, "n_items": 60}
    assert run("upsert", "x.anncur", "today.jsonl")["version"] == 2
    assert run("search", "x.anncur", "anything", "-k", "1", "--method", "exhaustive")["hits"][0]["id"] == "i3"
    compacted = run("compact", "x.anncur")
    assert (compacted["version"], compacted["n_items"]) == (3, 60)
    assert run("info", "x.anncur")["n_segments"] == 1
    assert run("verify", "x.anncur")["problems"] == []


def test_a_filter_is_given_as_json(run: Run) -> None:
    lines = [json.dumps({"id": f"i{n}", "text": "x" * (n + 1), "colour": ["red", "blue"][n % 2]}) for n in range(20)]
    Path("corpus.jsonl").write_text("\n".join(lines))
    run(*BUILD, "--n-anchor-queries", "4")
    search = ["search", "x.anncur", "anything", "-k", "2"]
    found = run(*search, "--filter", '{"colour": "red"}')
    assert ([hit["id"] for hit in found["hits"]], found["calls"]) == (["i18", "i16"], 10)
    assert [hit["id"] for hit in run(*search, "--filter", '["i3", "i5"]')["hits"]] == ["i5", "i3"]
    run("search", "x.anncur", "--queries", "queries.txt", "--out", "answers.jsonl", "--filter", '{"colour": "blue"}')
    answers = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert all(hit["id"] == "i19" for answer in answers for hit in answer["hits"][:1])


def test_a_search_that_no_item_may_answer_says_so(run: Run) -> None:
    run(*BUILD[:2], *BUILD[4:])
    assert run("search", "x.anncur", "anything", "--filter", '["gone"]')["hits"] == []

    def shown(*arguments: str) -> str:
        return CliRunner().invoke(app, ["search", "x.anncur", *arguments]).output

    many = ("--queries", "queries.txt", "--out", "answers.jsonl")
    assert shown("anything", "--filter", '["gone"]').startswith("No item passes the filter.\n0 pairs in ")
    assert "No item passes the filter." in shown(*many, "--filter", '["gone"]')
    assert "No item passes" not in shown("anything", "--min-score", "1000", "--filter", '["i3"]')
    assert "\n1 pair in " in shown("anything", "--filter", '["i3"]')
    assert "30 queries; 30 pairs scored" in shown(*many, "--filter", '["i3"]')


def test_an_empty_file_upserts_nothing(run: Run) -> None:
    run(*BUILD[:2], *BUILD[4:])
    Path("nothing.jsonl").write_text("")
    assert run("upsert", "x.anncur", "nothing.jsonl") == {"path": "x.anncur", "version": 1, "n_items": 60}


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ("{colour: red}", "--filter must be JSON"),
        ('"red"', "a JSON object of conditions or a list of ids"),
        ('{"color": "red"}', "color"),
        ("[1]", "strings"),
        ("[" * 100_000, "must be nested less deeply"),
        ('{"colour":' * 3000 + "1" + "}" * 3000, "must be nested less deeply"),
        ('{"colour": "red", "colour": "blue"}', "the key 'colour' is there twice"),
        ('{"or": [{"colour": {"=": "red", "=": "blue"}}]}', "the key '=' is there twice"),
    ],
)
def test_what_is_no_filter_is_refused_in_one_line(run: Run, filter: str, message: str) -> None:
    lines = [json.dumps({"id": f"i{n}", "text": "x" * (n + 1), "colour": "red"}) for n in range(20)]
    Path("corpus.jsonl").write_text("\n".join(lines))
    run(*BUILD[:2], *BUILD[4:])
    assert message in run("search", "x.anncur", "anything", "--filter", filter, code=1)


def test_an_index_without_anchor_queries_learns_from_its_searches(run: Run) -> None:
    assert run("build", "corpus.jsonl", *BUILD[4:])["calls"] == 0
    assert "the query log is empty" in run("learn", "x.anncur", code=1)
    run("search", "x.anncur", "item", "--budget", "20")
    assert not Path("x.anncur/query_log").exists()
    for number in range(3):
        run("search", "x.anncur", f"item {number}", "--budget", "20", "--log-queries", "2", "--explore", "0.2")
    assert run("learn", "x.anncur") == {"path": "x.anncur", "version": 2, "n_queries": 2}
    assert run("search", "x.anncur", "item", "-k", "1", "--budget", "60")["hits"][0]["id"] == "i16"
    shown = CliRunner().invoke(app, ["learn", "x.anncur"]).stdout
    assert "Fitted to 2 queries; x.anncur is at version 3." in shown


def test_every_command_with_a_scorer_takes_threads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def find(name: str, *, threads: int | None = None) -> Any:
        asked.append(threads)
        return Threaded(threads)

    monkeypatch.setattr("anncur.scorers.loading.find_scorer", find)
    for command in (
        ["plan", *BUILD[1:4]],
        ["build", *BUILD[1:6]],
        ["search", "x.anncur", "q"],
        ["add", "x.anncur", "new.jsonl"],
        ["verify", "x.anncur", "--repair"],
    ):
        run(*command, "--threads", "3")
        assert asked == [3], command
        asked.clear()


def test_commands_share_a_cache_of_scores(run: Run) -> None:
    run("build", "corpus.jsonl", *BUILD[4:])
    search = ("search", "x.anncur", "item", "--budget", "20", "--cache", "scores.cache")
    assert [run(*search)["cached_calls"] for _ in range(2)] == [0, 20]
    assert run(*BUILD[:4], "--out", "y.anncur", *BUILD[6:], "--cache", "scores.cache")["calls"] == 30 * 60 + 8
    assert run(*BUILD[:4], "--out", "z.anncur", *BUILD[6:], "--cache", "scores.cache")["calls"] == 8


def test_a_search_has_the_rounds_and_scores_that_were_asked_for(run: Run) -> None:
    run("build", "corpus.jsonl", *BUILD[4:])
    found = run("search", "x.anncur", "item", "--budget", "60", "--max-rounds", "2", "--min-score", "22")
    assert found["n_rounds"] <= 2
    assert {hit["score"] for hit in found["hits"]} <= {22.0, 23.0, 24.0, 25.0}
    assert found["hits"]


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("speed=3", "one of the names concurrency"),
        ("concurrency", "must be a number"),
        ("concurrency=many", "must be a number, got 'many'"),
        ("concurrency=0", "concurrency must be at least 1"),
        ("pairs-per-minute=0", "pairs_per_minute must be"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(run: Run, rule: str, problem: str) -> None:
    run("build", "corpus.jsonl", *BUILD[4:])
    assert problem in run("search", "x.anncur", "item", "--rule", rule, code=1)


def test_rules_are_those_of_the_scorer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("build", "corpus.jsonl", *BUILD[4:])
    given: list[dict[str, Any]] = []

    def load(name: str, **rules: Any) -> anncur.GuardedScorer:
        given.append(rules)
        return anncur.load_scorer(name)

    monkeypatch.setattr("anncur.cli.options.load_scorer", load)
    run("search", "x.anncur", "item", "--rule", "concurrency=8", "--rule", "requests-per-minute=0.5")
    assert (given[0]["concurrency"], given[0]["requests_per_minute"]) == (8, 0.5)


class Threaded:
    """A scorer that has threads."""

    fingerprint = "threaded"

    def __init__(self, threads: int | None) -> None:
        self.n_threads = threads

    def score(self, query: anncur.Query, items: list[anncur.Item]) -> list[float]:
        return [float(len(item.text)) for item in items]


def test_shards_are_published_by_the_last_one(run: Run) -> None:
    shards = [run(*BUILD, "--items-per-chunk", "8", "--shard", f"{part}/3") for part in range(3)]
    assert [shard["is_complete"] for shard in shards] == [False, False, True]
    assert sum(shard["calls"] for shard in shards) == 30 * 60 + 8
    assert run("verify", "x.anncur")["problems"] == []


def test_gc_keeps_an_unfinished_build_unless_it_is_asked_to_drop_it(run: Run) -> None:
    run(*BUILD, "--max-calls", "700", code=1)
    assert run("gc", "x.anncur")["deleted"] == []
    assert len(run("gc", "x.anncur", "--unpublished")["deleted"]) == 1
    assert run(*BUILD)["calls"] == 30 * 60 + 8


def test_a_capped_build_is_resumed(run: Run) -> None:
    assert "cap of 700 pairs" in run(*BUILD, "--max-calls", "700", code=1)
    assert run(*BUILD)["calls"] == 30 * 60 + 8 - 700


def test_damage_is_named_with_code_1_and_repaired_on_request(run: Run) -> None:
    run(*BUILD)
    (chunk,) = Path("x.anncur").glob("segments/*/scores/c/0/0")
    chunk.write_bytes(b"damaged")
    (problem,) = run("verify", "x.anncur", code=1)["problems"]
    assert str(chunk) in problem
    assert str(chunk) in run("search", "x.anncur", "anything", code=1)
    assert run("verify", "x.anncur", "--repair")["problems"] == []


def test_a_plan_shows_what_a_build_costs_and_writes_nothing(run: Run) -> None:
    before = sorted(path.name for path in Path().rglob("*") if "__pycache__" not in str(path))
    made = run("plan", "corpus.jsonl", "--queries", "queries.txt", "--scorer", "scorer_of_tests:score")
    assert made["n_pairs"] == 30 * 60
    assert sorted(path.name for path in Path().rglob("*") if "__pycache__" not in str(path)) == before


def test_a_build_does_not_pay_again_for_the_pilot_that_was_kept(run: Run) -> None:
    made = run("plan", *BUILD[1:6], *BUILD[6:], "--seconds", "0.001")
    assert run(*BUILD)["calls"] == 30 * 60 + 8 - made["pilot_items"] * made["pilot_queries"]
    assert run("verify", "x.anncur")["problems"] == []
    assert not Path("x.anncur/pilot").exists()
    run("build", *BUILD[1:4], "--out", "y.anncur", *BUILD[6:])
    assert digest("x.anncur") == digest("y.anncur")


def digest(path: str) -> str:
    return anncur.Index.open(path).digest()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["search", "nowhere", "q"], "no index at nowhere"),
        (["info", "nowhere"], "no index at nowhere"),
        (["remove", "nowhere", "a"], "no index at nowhere"),
        (["tune", "nowhere"], "no index at nowhere"),
        (["learn", "nowhere"], "no index at nowhere"),
        (["gc", "nowhere"], "no index at nowhere"),
        ([*BUILD, "--shard", "x"], "--shard must look like 0/4"),
        ([*BUILD, "--shard", "4/4"], "shard must be"),
        ([*BUILD[:-1], "no_such_module:score"], "no scorer 'no_such_module:score'"),
        (
            [*BUILD[:-1], "no_such_module:score"],
            "run in the folder of the module, add it to PYTHONPATH, or pass a scorer",
        ),
        (["build", "nothing.jsonl", *BUILD[2:]], "no file nothing.jsonl"),
    ],
)
def test_mistakes_end_in_one_clear_line(run: Run, arguments: list[str], problem: str) -> None:
    assert problem in run(*arguments, code=1)
    shown = CliRunner().invoke(app, arguments).stderr
    assert shown.startswith("error: ")
    assert problem in shown
    assert len(shown.splitlines()) == 1
    assert not Path("nowhere").exists()


@pytest.mark.filterwarnings("always")
def test_a_number_of_anchor_queries_that_there_are_not_is_warned_of(run: Run) -> None:
    shown = {n: CliRunner().invoke(app, [*BUILD, "--n-anchor-queries", n]).stderr for n in ("31", "30")}
    warning = "warning: --n-anchor-queries 31 is more than the 30 of queries.txt: all of them are taken\n"
    assert warning in shown["31"]
    assert "warning" not in shown["30"]


@pytest.mark.parametrize("command", [BUILD, ["add", "x.anncur", "twice.jsonl"], ["upsert", "x.anncur", "twice.jsonl"]])
def test_lines_that_share_an_id_are_named(run: Run, command: list[str]) -> None:
    Path("twice.jsonl").write_text('{"id": "new", "text": "a"}\n\n{"id": "new", "text": "b"}\n')
    if command is BUILD:
        command = ["build", "twice.jsonl", *BUILD[2:]]
    else:
        run("build", "corpus.jsonl", *BUILD[4:])
    problem = run(*command, code=1)
    assert problem.startswith("twice.jsonl:3: ids must be unique, and twice.jsonl:1 has 'new' too")


def test_an_id_that_the_index_has_is_named_as_before(run: Run) -> None:
    run("build", "corpus.jsonl", *BUILD[4:])
    assert "the index already has an item with the id 'i0'" in run("add", "x.anncur", "corpus.jsonl", code=1)


def test_a_file_without_queries_is_refused(run: Run) -> None:
    run(*BUILD[:2], *BUILD[4:])
    Path("empty.jsonl").write_text("\n")
    search = ("search", "x.anncur", "--queries", "empty.jsonl", "--out", "answers.jsonl")
    assert "empty.jsonl holds no queries" in run(*search, code=1)
    assert not Path("answers.jsonl").exists()


SEARCH = ["search", "x.anncur", "anything"]


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ([*SEARCH, "--budget", "0"], "budget must be at least 1, got 0; give a larger number"),
        ([*SEARCH, "-k", "0"], "k must be at least 1, got 0; give a larger number"),
        ([*SEARCH, "--target-recall", "0.9", "--method", "rerank"], "give a budget instead"),
        ([*SEARCH, "--target-recall", "0.9", "--budget", "9"], "max_budget, the most to spend on it"),
        ([*SEARCH, "--scorer", "failing_scorer_of_tests:score"], "give it the fingerprint 'scorer_of_tests:score'"),
        ([*BUILD[:5], "y.anncur", "--scorer", "failing_scorer_of_tests:score"], "allow retries, such as 3"),
    ],
)
def test_advice_names_nothing_that_only_python_has(run: Run, arguments: list[str], advice: str) -> None:
    Path("failing_scorer_of_tests.py").write_text("def score(pairs): raise OSError('down')\n")
    run("build", "corpus.jsonl", *BUILD[4:])
    shown = run(*arguments, code=1)
    assert advice in shown
    assert not re.search(r"load_scorer|\w=…", shown)


def test_what_people_see_names_the_next_step(run: Run) -> None:
    shown = CliRunner().invoke(app, BUILD).stdout
    assert "anncur search x.anncur" in " ".join(shown.split())
    shown = CliRunner().invoke(app, ["search", "x.anncur", "anything", "-k", "1"]).stdout
    assert "item 16: xxxxx" in shown
    shown = CliRunner().invoke(app, ["plan", *BUILD[1:4], *BUILD[6:]]).stdout
    assert "1,800 pairs to score" in shown


def test_an_index_is_built_and_grows_with_embeddings(run: Run) -> None:
    numbers = np.arange(61, dtype=np.float32)
    vectors = np.stack([np.cos(numbers), np.sin(numbers)], axis=1)
    np.save("corpus.npy", vectors[:60])
    np.save("new.npy", vectors[60:])
    Path("embedder_of_tests.py").write_text(
        "import numpy as np\ndef embed(queries): return np.array([[np.cos(7.0), np.sin(7.0)]] * len(queries))\n"
    )
    embedded = ["--embeddings", "corpus.npy", "--embed-queries", "embedder_of_tests:embed"]
    run(*BUILD, *embedded)
    assert run("info", "x.anncur")["retrievers"] == ["bm25", "embeddings"]
    assert "give those of the new ones" in run("add", "x.anncur", "new.jsonl", code=1)
    assert run("add", "x.anncur", "new.jsonl", "--embeddings", "new.npy")["n_items"] == 61
    run("search", "x.anncur", "seven", "--budget", "5")
    assert run("tune", "x.anncur")["version"] == 3
    opened = anncur.Index.open("x.anncur")
    hits = opened.search("seven", k=1, budget=3, method=anncur.Rerank("embeddings"))
    assert hits.trace[0].positions.tolist() == np.argsort(-vectors @ vectors[7])[:3].tolist()


@pytest.mark.parametrize("content", [b"", b"no array", None])
def test_a_file_of_embeddings_that_cannot_be_read_is_named(run: Run, content: bytes | None) -> None:
    if content is not None:
        Path("corpus.npy").write_bytes(content)
    assert "--embeddings must be an .npy file" in run(*BUILD, "--embeddings", "corpus.npy", code=1)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]52;c;Y2xpcA==\x1b\\text", "text"),
        ("a\x9b2Jb", "ab"),
        ("a\x9dtitle\x9cb", "ab"),
        ("a\x1bPq…\x1b\\b", "ab"),
        ("back\x08\x08\r\x07", "back"),
        ("\x1b", ""),
        ("\x1b[", ""),
        ("right\u202eleft", "rightleft"),
        ("plain: ä 漢字 🐟 [not an escape]", "plain: ä 漢字 🐟 [not an escape]"),
    ],
)
def test_what_is_printed_does_nothing_to_a_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_no_escape_of_an_item_reaches_the_terminal(run: Run) -> None:
    evil = {"id": "evil\u001b[2J", "text": "bat \u001b]0;owned\u0007\u009b31m of fruit", "title": "\u001b[31mtitle"}
    Path("evil.jsonl").write_text(json.dumps(evil) + "\n")
    run("build", "evil.jsonl", "--out", "evil.anncur", "--scorer", "scorer_of_tests:score")
    controls = {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))}
    for options in ([], ["--json"]):
        output = CliRunner().invoke(app, ["search", "evil.anncur", "small bat", *options]).output
        assert "fruit" in output
        assert not set(output) & controls
    assert run("search", "evil.anncur", "small bat")["hits"][0]["id"] == evil["id"]
