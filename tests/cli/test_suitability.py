"""`anncur info`, `plan` and `tune` show how well an index suits its scorer."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import anncur
from anncur.cli.main import app
from anncur.retrievers import loading
from anncur.tuning import posterior, splits

pytestmark = pytest.mark.slow  # the whole of it takes seconds

GOLDEN = Path(__file__).parent.parent / "reliability" / "golden" / "format-2"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a corpus, queries, a scorer, and an index that was tuned in little time, as all others here are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("built"))
        patch.setattr(posterior, "MOST_PAIRS", 100)
        patch.setattr(splits, "ANCHOR_COUNTS", (0, 5))
        patch.setattr(loading, "has_minilm", lambda: False)
        items = [{"id": f"i{n}", "text": f"a word of {n % 17} and {n}"} for n in range(120)]
        Path("corpus.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
        Path("queries.txt").write_text("".join(f"number {n} of some\n" for n in range(14)))
        Path("scorer_of_suitability.py").write_text(
            "def score(pairs): return [-abs(int(q.split()[1]) * 9 - int(i.split()[-1])) / 9 for q, i in pairs]\n"
        )
        run("build", *FILES, "--retriever", "bm25", "--out", "x.anncur")
        yield Path.cwd()


@pytest.fixture
def folder(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An index in a folder of the test's own."""
    monkeypatch.chdir(shutil.copytree(built, tmp_path / "own"))
    return "x.anncur"


FILES = ["corpus.jsonl", "--queries", "queries.txt", "--scorer", "scorer_of_suitability:score"]


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result


def as_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def test_info_has_spectrum_recalls_and_advice(folder: str) -> None:
    found = as_json("info", folder)["suitability"]
    assert [row["explained_variance"] for row in found["components"]] == [0.9, 0.95, 0.99]
    assert {row["method"] for row in found["recalls"]} == {"posterior", "anncur", "rerank bm25"}
    assert {(row["k"], row["budget"]) for row in found["recalls"]} == {
        (1, 50),
        (1, 100),
        (10, 50),
        (10, 100),
        (50, 100),
    }
    assert any("re-ranking" in line for line in found["advice"])


def test_info_shows_what_its_json_has(folder: str) -> None:
    found, shown = as_json("info", folder)["suitability"], run("info", folder).stdout
    recall = next(row["recall"] for row in found["recalls"] if (row["method"], row["budget"]) == ("rerank bm25", 50))
    assert f"rerank bm25 │{recall:>9.0%}" in shown
    assert " ".join(found["advice"]) in " ".join(shown.split()).replace(" - ", " ")
    assert f"{found['components'][0]['n_components']} explain 90%" in shown


def test_info_shows_what_an_index_is_made_of_as_people_read_it(folder: str) -> None:
    shown = run("info", folder).stdout
    rows = dict(re.findall(r"^ *(\S.*?)  (.*)$", shown.partition("\n\n")[0], re.M))
    assert (rows["retrievers"], rows["higher is better"]) == ("bm25", "yes")
    assert re.fullmatch(r"0\.\d MiB", rows["size"])
    assert rows["scorer"] == "scorer_of_suitability:score"
    assert not {"scorer name", "bytes", "drift"} & set(rows)
    sample = run("info", str(anncur.load_sample().index_path)).stdout
    assert re.search(r"items  2,000\n", sample)
    assert "scorer name  builtin\n" in sample
    assert "retrievers  bm25, tfidf\n" in sample


def test_info_draws_recall_against_the_budget(folder: str) -> None:
    assert as_json("info", folder, "--plot", "recall.png")["plot"] == "recall.png"
    assert Path("recall.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib_names_the_extra(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    shown = run("info", folder, "--plot", "recall.png", code=1).stderr
    assert "pip install 'anncur[plots]'" in shown
    assert not Path("recall.png").exists()


def test_a_picture_of_another_kind_is_refused(folder: str) -> None:
    assert "must end in one of .png" in run("info", folder, "--plot", "recall.gif", code=1).stderr


def test_an_index_with_too_few_anchor_queries_to_tune_on_is_reported_as_such(tmp_path: Path) -> None:
    older = str(shutil.copytree(GOLDEN, tmp_path / "older"))
    assert "searches from the first query on" in " ".join(run("info", older).stdout.split())
    assert "nothing to draw" in run("info", older, "--plot", str(tmp_path / "x.png"), code=1).stderr
    assert as_json("tune", older)["chosen"] is None
    assert "at least 4 anchor queries" in run("tune", older).stdout


def test_a_plan_shows_the_same_of_its_pilot(folder: str) -> None:
    made = as_json("plan", *FILES)
    assert made["suitability"]["n_items"] == made["pilot_items"]
    assert {row["method"] for row in made["suitability"]["recalls"]} == {"posterior", "anncur", "rerank bm25"}
    shown = run("plan", *FILES).stdout
    assert "principal components of the anchor scores of the pilot" in shown
    assert "The same pilot with 9 anchor queries, for other k and budgets" in " ".join(shown.split())
    assert "top 50" in shown


def test_a_plan_heads_its_columns_with_the_pairs_that_were_scored(folder: str) -> None:
    shown = run("plan", *FILES).stdout
    (header,) = (line for line in shown.splitlines() if "pairs scored" in line)
    assert [cell.strip() for cell in header.strip("┃").split("┃")[1:]] == ["10 (8%)", "12 (10%)", "24 (20%)"]


def test_a_plan_says_what_its_pilot_costs_before_it_scores(folder: str) -> None:
    first, *_ = run("plan", *FILES, "--price", "2").stderr.splitlines()
    assert first == "The pilot scores 1,680 pairs, about 1 s, for $3.36; cap it with --max-calls"
    first, *_ = run("plan", *FILES, "--price", "2", "--json").stderr.splitlines()
    assert json.loads(first)["pilot"]["n_pairs"] == 1680


def test_a_plan_for_a_cluster_rounds_its_times(folder: str) -> None:
    shown = " ".join(run("plan", *FILES, "--cluster", "--load-seconds", "0.000298").stdout.split())
    assert "after less than 0.01 s to load the scorer (simulated)" in shown


def test_a_plan_shows_how_far_each_number_of_anchor_queries_gets_and_what_it_costs(folder: str) -> None:
    made, shown = as_json("plan", *FILES, "--price", "2"), run("plan", *FILES, "--price", "2").stdout
    for row in made["recalls"]:
        assert f"│ {row['method']} " in shown
    assert [cost["n_anchor_queries"] for cost in made["costs"]] == [0, 9, 14]
    assert [cost["price"] for cost in made["costs"]] == pytest.approx([0, 9 * 120 * 0.002, 14 * 120 * 0.002])
    for number in ("1,080", "1,680", "2.16", "3.36"):
        assert number in shown
    first, *_ = (line for line in made["advice"] if "without anchor queries" in line)
    assert first in " ".join(shown.split())


def test_a_plan_takes_retrievers_and_embeddings_as_a_build_does(folder: str) -> None:
    np.save("corpus.npy", np.stack([np.arange(120.0), np.ones(120)], axis=1))
    Path("embedder_of_suitability.py").write_text(
        "import numpy as np\ndef embed(queries): return np.ones((len(queries), 2))\n"
    )
    own = ["--embeddings", "corpus.npy", "--embed-queries", "embedder_of_suitability:embed"]
    made = as_json("plan", *FILES, "--retriever", "tfidf", *own)
    found = dict.fromkeys(row["method"] for row in made["recalls"] if row["method"].startswith("rerank"))
    assert list(found) == ["rerank tfidf", "rerank embeddings", "rerank rrf"]


def test_tune_reports_what_it_chose_and_what_that_changes(folder: str) -> None:
    report = as_json("tune", folder, "--seed", "0")
    assert report["version"] == 2
    assert report["chosen"].keys() == {
        "retrievers",
        "embeddings_of",
        "embedding_share",
        "noise_share",
        "retriever_weight",
        "n_initial",
        "min_round_size",
        "growth",
    }
    assert all(row["before"] == row["after"] is not None for row in report["expected_recall"]), (
        "the same seed as the build"
    )
    index = anncur.Index.open(folder)
    expected = {(row["k"], row["budget"]): row["after"] for row in report["expected_recall"]}
    assert expected[10, 50] == pytest.approx(index.expected_recall(10, 50), abs=1e-4)


def test_tune_shows_what_it_chose(folder: str) -> None:
    shown = run("tune", folder, "--seed", "3").stdout
    for words in ("retrievers  ", "embeddings  those of bm25", "noise  ", "first round  ", "top 10", "% → "):
        assert words in shown


def test_tune_repairs_what_was_tuned_and_is_damaged(folder: str) -> None:
    (tuned,) = Path(folder).glob("learned/*/tuned.json")
    tuned.write_bytes(b"damaged")
    changes = as_json("tune", folder, "--seed", "1")["expected_recall"]
    assert {row["before"] for row in changes} == {None}
    assert as_json("verify", folder)["problems"] == []
