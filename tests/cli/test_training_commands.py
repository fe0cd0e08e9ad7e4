"""`anncur train`, `anncur distill` and `anncur link`, from a folder of data to a model that links it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="needs the extra `train`")
pytest.importorskip("transformers", reason="needs the extra `train`")

from anncur.cli.main import app
from anncur.models.encoders import load_cross_encoder, load_dual_encoder, new_dual_encoder
from anncur.tokens import PairFormat
from toy_linking import WORDS, write_network, write_zeshel

pytestmark = pytest.mark.slow  # the whole of it takes seconds

Run = Callable[..., Any]
START = ["--network", "network", "--dual-encoder", "dual", "--query-length", "12", "--item-length", "12"]
SHORT = ["--epochs", "1", "--evaluations", "1", "--negatives", "3", "--pool", "5"]
CROSS = ["train", "cross-encoder", "data", *START, *SHORT]
DUAL = ["train", "dual-encoder", "data", *START, *SHORT]
LINK = ["link", "data", "--scorer", "scorer_of_links:score", "--retriever", "tfidf"]
SCORER = "def score(pairs): return [float(q.split('[')[1].split(']')[0] == i.split()[0]) for q, i in pairs]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, a network, a dual encoder and a scorer."""
    folder = tmp_path_factory.mktemp("commands")
    write_zeshel(folder / "data")
    write_network(folder / "network", initializer_range=0.2)
    new_dual_encoder(folder / "network", PairFormat(12, 12), head="mean", is_shared=True).save(folder / "dual")
    (folder / "scorer_of_links.py").write_text(SCORER)
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command there; returns its JSON, or its error."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def command(*arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [*arguments, "--json"])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if result.stdout else json.loads(result.stderr.splitlines()[-1])["error"]

    return command


@pytest.mark.parametrize("head", ["emb", "cls"])
def test_a_cross_encoder_is_trained_from_a_folder_of_data(run: Run, tmp_path: Path, head: str) -> None:
    made = run(*CROSS, "--head", head, "--out", str(tmp_path))
    assert made["path"] == str(tmp_path)
    assert made["best"] in made["rows"]
    assert [row["step"] for row in made["rows"]] == [0, 6]
    assert load_cross_encoder(tmp_path).head == head
    assert (tmp_path / "training.jsonl").is_file()
    assert run(*CROSS, "--head", head, "--out", str(tmp_path)) == made, "the same again is done already"


def test_a_cross_encoder_learns_from_a_teacher(run: Run, tmp_path: Path) -> None:
    run(*CROSS, "--out", str(tmp_path / "large"))
    run(*CROSS, "--teacher", str(tmp_path / "large"), "--layers", "1", "--out", str(tmp_path / "small"))
    assert load_cross_encoder(tmp_path / "small").head == "emb"
    assert list((tmp_path / "small" / "cache").glob("teacher-*.npy"))


def test_a_dual_encoder_is_trained_from_a_folder_of_data(run: Run, tmp_path: Path) -> None:
    made = run(*DUAL, "--out", str(tmp_path), "--cache", str(tmp_path / "kept"))
    assert [row["step"] for row in made["rows"]] == [0, 6]
    assert load_dual_encoder(tmp_path).is_shared
    assert list((tmp_path / "kept").glob("pool-mined-*.npy"))


@pytest.mark.parametrize("loss", ["match", "best"])
def test_a_dual_encoder_is_distilled_from_an_index(run: Run, tmp_path: Path, loss: str) -> None:
    items = [{"id": word, "text": f"the {word}", "title": word} for word in WORDS]
    Path("corpus.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    queries = [{"text": f"a {word} near the {word}", "mention": [2, 2 + len(word)]} for word in WORDS]
    Path("queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    index = str(tmp_path / "x.anncur")
    run("build", "corpus.jsonl", "--queries", "queries.jsonl", "--out", index, "--scorer", "scorer_of_links:score")
    out = tmp_path / "distilled"
    made = run("distill", index, "--start", "dual", "--loss", loss, "--epochs", "1", "--n-top", "4", "--out", str(out))
    assert made["best"]["dev"] == max(row["dev"] for row in made["rows"])
    assert load_dual_encoder(out).head == "mean"


def test_linking_compares_a_scorer_and_baselines_on_the_same_candidates(run: Run) -> None:
    rows = run(*LINK, "--baseline", "dual", "--candidates", "4", "--mentions", "10")["rows"]
    by_name = {(row["world"], row["ranker"]): row for row in rows}
    assert set(by_name) == {
        (world, ranker) for world in ("delta", "macro average") for ranker in ("scorer_of_links:score", "tfidf", "dual")
    }
    exact = by_name["macro average", "scorer_of_links:score"]
    assert exact["n_mentions"] == 10
    assert exact["accuracy"] == exact["recall"] > 0.9
    assert len({row["recall"] for row in rows}) == 1


def test_a_trained_model_links(run: Run, tmp_path: Path) -> None:
    run(*CROSS, "--out", str(tmp_path))
    rows = run("link", "data", "--scorer", str(tmp_path), "--retriever", "dual", "--split", "val")["rows"]
    assert [row["world"] for row in rows] == ["gamma", "gamma", "macro average", "macro average"]
    assert all(0 <= row["accuracy"] <= row["recall"] <= 1 for row in rows)


def test_statistics_count_every_world(run: Run) -> None:
    rows = run("link", "data", "--statistics")["worlds"]
    assert {row["world"]: (row["split"], row["n_entities"], row["n_mentions"]) for row in rows} == {
        "delta": ("test", 12, 24),
        "alpha": ("train", 12, 24),
        "beta": ("train", 12, 24),
        "gamma": ("val", 12, 24),
    }


def test_what_people_see_are_rows_and_tables(run: Run, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, [*CROSS, "--out", str(tmp_path)]).stdout
    assert "step      0  loss      -  held-out" in shown
    assert "holds the best model" in " ".join(shown.split())
    assert "delta" in CliRunner().invoke(app, LINK).stdout
    assert "alpha" in CliRunner().invoke(app, ["link", "data", "--statistics"]).stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["train", "cross-encoder", "nowhere", *START], "no folder nowhere/documents"),
        ([*CROSS, "--world", "omega"], "no world 'omega'"),
        ([*CROSS, "--world", "gamma"], "world 'gamma' has no mentions in split 'train'"),
        ([*CROSS, "--layers", "9"], "layers must be between 1 and the network's 1"),
        ([*CROSS, "--query-length", "100"], "longer than the 64 that this network can read"),
        ([*CROSS, "--mentions-per-batch", "0"], "mentions_per_batch must be at least 1"),
        ([*CROSS, "--mentions", "0"], "mentions must be at least 1"),
        ([*CROSS, "--threads", "0"], "threads must be at least 1"),
        ([*CROSS, "--preset", "large"], "no preset 'large'"),
        ([*CROSS, "--layout", "odd"], "layout must be"),
        ([*CROSS, "--teacher", "dual"], "holds a dual-encoder, where a cross-encoder is needed"),
        ([*CROSS, "--dual-encoder", "network"], "anncur.json"),
        ([*DUAL, "--network", "data"], "config.json"),
        ([*DUAL, "--epochs", "0"], "epochs must be at least 1"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else "",
)
def test_a_training_that_can_not_be_done_ends_in_one_line(
    run: Run, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    assert problem in run(*arguments, "--out", str(tmp_path / "out"), code=1)


def test_another_training_in_the_same_folder_is_refused(run: Run, tmp_path: Path) -> None:
    run(*CROSS, "--out", str(tmp_path))
    shown = run(*CROSS, "--learning-rate", "0.5", "--out", str(tmp_path), code=1)
    assert "holds another training: learning_rate was 5e-05 and is now 0.5" in shown


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["link", "nowhere", *LINK[2:]], "no folder nowhere/documents"),
        (["link", "nowhere", "--statistics"], "no folder nowhere/documents"),
        ([*LINK, "--split", "dev"], "no split 'dev'"),
        ([*LINK, "--world", "omega"], "no world 'omega'"),
        ([*LINK, "--world", "alpha"], "world 'alpha' has no mentions in split 'test'"),
        ([*LINK, "--candidates", "0"], "n_candidates must be at least 1"),
        ([*LINK, "--mentions", "0"], "mentions must be at least 1"),
        ([*LINK, "--retriever", "bm26"], "no retriever 'bm26'"),
        ([*LINK, "--baseline", "network"], "anncur.json"),
        (["distill", "nowhere", "--out", "out"], "no index at nowhere"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else "",
)
def test_what_can_not_be_linked_ends_in_one_line(run: Run, arguments: list[str], problem: str) -> None:
    assert problem in run(*arguments, code=1)
    assert not Path("nowhere").exists()
