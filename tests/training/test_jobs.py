"""Complete trainings: what they learn, what they cache, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `train`")
pytest.importorskip("transformers", reason="needs the extra `train`")

from anncur.errors import FileFormatError, InputError
from anncur.models.encoders import load_cross_encoder, load_dual_encoder
from anncur.training.distillation import (
    DistillationJob,
    DistillationTask,
    ScoredQueries,
    distill,
    retrieval_recall,
)
from anncur.training.examples import Examples, macro_accuracy, pool_size, pools
from anncur.training.jobs import (
    CrossEncoderJob,
    DataSettings,
    DualEncoderJob,
    preset,
    train_cross_encoder,
    train_dual_encoder,
)
from anncur.training.loop import RESUME, LogRow, TrainSettings, train
from toy_linking import write_lines
from training.toy_tasks import NEGATIVES, Toys, toy_scores

pytestmark = pytest.mark.slow  # the whole of it takes seconds

FAST = TrainSettings(epochs=14, learning_rate=1e-2, evaluations=1, warmup=0.1)


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Toys:
    return Toys(tmp_path_factory.mktemp("toys"), dropout=0.0)


def cross_job(toys: Toys, **options: Any) -> CrossEncoderJob:
    return toys.cross_job(**{"train": FAST, **options})


@pytest.fixture(scope="module")
def trained(toys: Toys, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[LogRow]]:
    """A cross-encoder that links the toy worlds, and the rows of its training."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, train_cross_encoder(cross_job(toys), folder)


def test_a_cross_encoder_learns_to_link_mentions_of_unseen_worlds(trained: tuple[Path, list[LogRow]]) -> None:
    folder, rows = trained
    losses = [row.loss for row in rows if row.loss is not None]
    assert losses[-1] < losses[0] / 2
    assert max(row.dev for row in rows) > max(0.8, rows[0].dev + 0.2)
    assert load_cross_encoder(folder).head == "emb"


@pytest.mark.parametrize("kind", ["random", "tfidf"])
def test_every_kind_of_negatives_can_be_trained_on(toys: Toys, tmp_path: Path, kind: Any) -> None:
    rows = train_cross_encoder(cross_job(toys, negative_kind=kind, head="cls", train=replace(FAST, epochs=1)), tmp_path)
    assert [row.step for row in rows] == [0, 6]


def test_a_teachers_scores_are_computed_once(toys: Toys, tmp_path: Path) -> None:
    train_cross_encoder(cross_job(toys, train=replace(FAST, epochs=1)), tmp_path / "teacher")
    student = cross_job(toys, teacher=tmp_path / "teacher", gold_weight=0.2, train=replace(FAST, epochs=2))
    cache = tmp_path / "cache"
    train_cross_encoder(student, tmp_path / "first", cache=cache)
    (scores,) = cache.glob("teacher-*.npy")
    before = scores.stat().st_mtime_ns
    train_cross_encoder(replace(student, gold_weight=0.9), tmp_path / "second", cache=cache)
    assert [file.stat().st_mtime_ns for file in cache.glob("teacher-*.npy")] == [before]
    assert np.load(scores).shape == (48, 1 + NEGATIVES.n)


def test_a_teacher_of_other_weights_is_scored_again(toys: Toys, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for seed in (0, 1):
        settings = replace(FAST, epochs=1, learning_rate=1e-3 * (1 + seed))
        train_cross_encoder(cross_job(toys, train=settings), tmp_path / f"teacher{seed}")
        student = cross_job(toys, teacher=tmp_path / f"teacher{seed}", train=replace(FAST, epochs=1))
        train_cross_encoder(student, tmp_path / f"student{seed}", cache=cache)
    assert len(list(cache.glob("teacher-*.npy"))) == 2


def test_a_student_learns_from_its_teachers_scores_alone(
    toys: Toys, tmp_path: Path, trained: tuple[Path, list[LogRow]]
) -> None:
    """Without weight on the gold entities, only the teacher's softmax is left to learn."""
    student = cross_job(toys, teacher=trained[0], gold_weight=0.0)
    rows = train_cross_encoder(student, tmp_path)
    assert max(row.dev for row in rows) > rows[0].dev + 0.2


def dual_job(toys: Toys, **options: Any) -> DualEncoderJob:
    return toys.dual_job(**{"train": FAST, **options})


def test_a_dual_encoder_learns_to_link_mentions_of_unseen_worlds(toys: Toys, tmp_path: Path) -> None:
    rows = train_dual_encoder(dual_job(toys, train=replace(FAST, epochs=6)), tmp_path)
    assert max(row.dev for row in rows) > rows[0].dev + 0.1
    assert load_dual_encoder(tmp_path).is_shared


def test_negatives_that_another_training_mined_are_not_used(toys: Toys, tmp_path: Path) -> None:
    settings = replace(FAST, epochs=2)
    expected = train_dual_encoder(dual_job(toys, train=settings), tmp_path / "fresh")
    train_dual_encoder(dual_job(toys, train=replace(settings, learning_rate=1e-5)), tmp_path / "used")
    (tmp_path / "used" / RESUME).unlink()
    found = train_dual_encoder(dual_job(toys, train=settings), tmp_path / "used")
    assert [row.loss for row in found] == [row.loss for row in expected]


def test_worlds_smaller_than_the_pool_are_trained_on_all_their_negatives(toys: Toys, tmp_path: Path) -> None:
    large = replace(NEGATIVES, n=20, pool=500)
    rows = train_dual_encoder(dual_job(toys, negatives=large, train=replace(FAST, epochs=2)), tmp_path)
    assert len(rows) == 3


def test_a_pool_is_no_larger_than_the_smallest_world_allows(toys: Toys) -> None:
    task = toys.dual_encoder(Path("unused"))
    assert pool_size(task.examples, 5) == 5
    assert pool_size(task.examples, 500) == 11
    assert [pool.shape for pool in pools(task.examples, None, 5)] == [(24, 5), (24, 5)]


def test_examples_are_drawn_in_proportion_or_from_each_world(toys: Toys) -> None:
    tokenizer = toys.dual_encoder(Path("unused")).model.tokenizer
    worlds = toys.worlds("train")
    drawn = Examples.draw(worlds, tokenizer, n=10, seed=0)
    assert len(drawn) == 10
    assert drawn.describe() == Examples.draw(worlds, tokenizer, n=10, seed=0).describe()
    assert drawn.describe() != Examples.draw(worlds, tokenizer, n=10, seed=1).describe()
    each = Examples.draw_from_each(worlds, tokenizer, n=3, seed=0)
    assert [len(mentions) for mentions in each.chosen] == [3, 3]
    assert each.owner.tolist() == [0, 0, 0, 1, 1, 1]


def test_macro_accuracy_counts_worlds_alike_and_gives_nothing_for_a_tie() -> None:
    scores = np.array([[2.0, 1.0], [1.0, 2.0], [1.0, 1.0], [3.0, 0.0]])
    assert macro_accuracy(scores, np.array([0, 0, 0, 1])) == pytest.approx((1 / 3 + 1) / 2)


@pytest.mark.parametrize("kind", ["match", "pair"])
def test_both_losses_raise_the_recall_of_the_best_items(
    toys: Toys, tmp_path: Path, kind: Literal["match", "pair"]
) -> None:
    task: DistillationTask = toys.distillation(tmp_path, kind=kind)
    rows = train(task, tmp_path, TrainSettings(epochs=4, learning_rate=2e-3, evaluations=1))
    assert max(row.dev for row in rows) > rows[0].dev + 0.1


def test_the_loss_that_is_better_on_held_out_queries_is_chosen(toys: Toys, tmp_path: Path) -> None:
    job = DistillationJob(
        start=str(toys.dual),
        n_top=10,
        queries_per_batch=4,
        train=TrainSettings(epochs=2, learning_rate=2e-3, evaluations=1),
    )
    rows = distill(job, toy_scores(), tmp_path)
    tries = {kind: distill(replace(job, loss=kind), toy_scores(), tmp_path / kind) for kind in ("match", "pair")}
    best = max(tries, key=lambda kind: max(row.dev for row in tries[kind]))
    assert rows == tries[best]
    queries = toy_scores().queries
    chosen, expected = (load_dual_encoder(folder).embed_queries(queries) for folder in (tmp_path, tmp_path / best))
    np.testing.assert_array_equal(chosen, expected)


def test_false_positives_are_never_among_the_best(toys: Toys, tmp_path: Path) -> None:
    task = toys.distillation(tmp_path)
    for rows, items in task.batches(0):
        for row, found in zip(rows, items, strict=True):
            best = np.argsort(-task.train_on.exact_scores[row], kind="stable")[:10]
            assert found[:10].tolist() == best.tolist()
            assert not np.isin(found[10:], best).any()


def test_held_out_queries_are_not_trained_on() -> None:
    scored = toy_scores()
    train_on, held_out = scored.split(0.25, 3)
    texts = [{query.text for query in part.queries} for part in (train_on, held_out)]
    assert not texts[0] & texts[1]
    assert len(texts[0]) + len(texts[1]) == len(scored.queries)
    row = [query.text for query in scored.queries].index(held_out.queries[0].text)
    np.testing.assert_array_equal(held_out.exact_scores[0], scored.exact_scores[row])


def test_recall_counts_the_exact_top_k_among_the_retrieved() -> None:
    exact = np.array([[4.0, 3.0, 2.0, 1.0]])
    approx = np.array([[0.0, 9.0, 8.0, 7.0]])
    assert retrieval_recall(exact, approx, k=2, n_retrieved=2) == 0.5
    assert retrieval_recall(exact, approx, k=2, n_retrieved=4) == 1.0


def test_scores_that_do_not_fit_are_refused() -> None:
    scored = toy_scores()
    with pytest.raises(InputError, match="exact scores must be"):
        ScoredQueries(scored.queries, scored.items, scored.exact_scores.T)
    with pytest.raises(InputError, match="at least 2 scored queries"):
        scored.take(np.array([0])).split(0.1, 0)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"mentions_per_batch": 0}, "mentions_per_batch must be at least 1"),
        ({"gold_weight": 2}, "gold_weight must be"),
        ({"network": "no/such/folder"}, "no folder no/such/folder"),
        ({"dual_encoder": "nowhere"}, "nowhere"),
        ({"teacher": Path("nowhere")}, "nowhere"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_job_that_can_not_be_done_is_refused_with_the_reason(
    toys: Toys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], problem: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=problem):
        train_cross_encoder(cross_job(toys, **wrong), tmp_path)


@pytest.mark.parametrize("wrong", [{"mentions": 0}, {"dev_mentions": 0}, {"dev_candidates": 0}], ids=str)
def test_no_mentions_to_train_on_or_choose_by_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        DataSettings(Path(), **wrong)


def test_a_world_of_one_entity_is_refused_by_name(toys: Toys, tmp_path: Path) -> None:
    from shutil import copytree

    data = copytree(toys.data, tmp_path / "data")
    write_lines(data / "documents" / "lone.json", [{"document_id": "l", "title": "ant", "text": "the ant"}])
    mention = {"mention_id": "m", "context_document_id": "l", "label_document_id": "l", "corpus": "lone"}
    write_lines(data / "mentions" / "val.json", [{**mention, "start_index": 1, "end_index": 1}])
    with pytest.raises(InputError, match="world 'lone' has 1 entities"):
        train_cross_encoder(replace(cross_job(toys), data=DataSettings(data)), tmp_path / "out")


def test_the_papers_preset_is_the_papers() -> None:
    paper = preset("paper")
    assert (paper.train.epochs, paper.train.evaluations, paper.train.learning_rate) == (4, 5, 1e-5)
    assert (paper.negatives.n, paper.cross_encoder_batch, paper.dual_encoder_batch) == (63, 4, 8)
    assert (paper.text.query_length, paper.text.item_length) == (128, 128)
    assert (paper.distillation.epochs, paper.n_top, paper.network) == (10, 100, "bert-base-uncased")
    with pytest.raises(InputError, match="no preset 'large'; take one of small, paper"):
        preset("large")


def test_damaged_data_end_a_training_before_it_starts(toys: Toys, tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "mentions").mkdir()
    (tmp_path / "mentions" / "train.json").write_text("not JSON\n")
    with pytest.raises(FileFormatError, match=r"train\.json:1: not JSON"):
        train_cross_encoder(replace(cross_job(toys), data=DataSettings(tmp_path)), tmp_path / "out")
