"""A resumed training must have the settings, weights and texts of the one that began in its folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra `train`")
pytest.importorskip("transformers", reason="needs the extra `train`")

from safetensors import safe_open
from safetensors.torch import save_file

from anncur.errors import InputError, LockedError, ResumeError
from anncur.training.distillation import DistillationJob, distill
from anncur.training.folder import training_in
from anncur.training.jobs import train_cross_encoder, train_dual_encoder
from anncur.training.loop import RESUME, LogRow, TrainSettings, train
from toy_linking import write_network
from training.toy_tasks import TEXT, Toys, toy_scores

SHORT = TrainSettings(epochs=1, evaluations=1)


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Toys:
    """Two networks of the same shape, and a dual encoder over each."""
    toys = Toys(tmp_path_factory.mktemp("toys"), dropout=0.0)
    toys.save_dual(write_network(toys.network.parent / "network2", seed=1))
    return toys


def run_cross_encoder(toys: Toys, out: Path, network: Path) -> list[LogRow]:
    return train_cross_encoder(toys.cross_job(network=str(network), train=SHORT), out)


def run_dual_encoder(toys: Toys, out: Path, network: Path) -> list[LogRow]:
    return train_dual_encoder(toys.dual_job(network=str(network), train=SHORT), out)


def run_distillation(toys: Toys, out: Path, network: Path) -> list[LogRow]:
    start = str(toys.dual.with_name(f"dual-{network.name}"))
    return distill(DistillationJob(start, "match", n_top=5, queries_per_batch=8, train=SHORT), toy_scores(), out)


@pytest.mark.parametrize(
    ("run", "field"),
    [(run_cross_encoder, "network"), (run_dual_encoder, "network"), (run_distillation, "start")],
)
def test_a_training_from_other_weights_of_the_same_shape_is_refused(
    toys: Toys, tmp_path: Path, run: Callable[..., list[LogRow]], field: str
) -> None:
    network = toys.network
    rows = run(toys, tmp_path, network)
    with pytest.raises(ResumeError, match=rf"{field} was '.*network' and is now '.*network2'"):
        run(toys, tmp_path, network.parent / "network2")
    assert run(toys, tmp_path, network) == rows


def test_a_state_that_an_older_version_saved_with_fewer_fields_is_resumed(toys: Toys, tmp_path: Path) -> None:
    rows = train(toys.cross_encoder(tmp_path), tmp_path, SHORT)
    remove_field(tmp_path / RESUME, "network")
    assert train(toys.cross_encoder(tmp_path), tmp_path, SHORT) == rows
    with pytest.raises(ResumeError, match="mentions_per_batch was 8 and is now 3"):
        train(replace(toys.cross_encoder(tmp_path), mentions_per_batch=3), tmp_path, SHORT)


def remove_field(file: Path, field: str) -> None:
    """Remove a field from the plan of a finished training."""
    with safe_open(file, "pt") as stored:
        about: dict[str, str] = stored.metadata()
    plan: dict[str, Any] = json.loads(about["plan"])
    del plan[field]
    save_file({}, file, {**about, "plan": json.dumps(plan)})


def test_a_seed_that_nothing_can_be_drawn_with_is_refused() -> None:
    with pytest.raises(InputError, match="seed must be at least 0, got -1"):
        TrainSettings(seed=-1)


def test_distillation_needs_two_queries_and_two_items() -> None:
    scored = toy_scores()
    lone = replace(scored, items=scored.items[:1], exact_scores=scored.exact_scores[:, :1])
    with pytest.raises(InputError, match="at least 2 scored queries and 2 items, got 69 and 1"):
        lone.split(0.1, 0)
    with pytest.raises(InputError, match="a share of 1 held out leaves none of 69 queries to train on"):
        scored.split(1.0, 0)


@pytest.mark.parametrize("run", [run_cross_encoder, run_dual_encoder])
@pytest.mark.parametrize("world", ["beta", "gamma"])
def test_a_training_whose_texts_were_changed_since_is_refused(
    toys: Toys, tmp_path: Path, run: Callable[..., list[LogRow]], world: str
) -> None:
    changed = replace_toys(toys, copytree(toys.data, tmp_path / "data"))
    network, out = toys.network, tmp_path / "out"
    rows = run(changed, out, network)
    documents = changed.data / "documents" / f"{world}.json"
    before = documents.read_text()
    documents.write_text(before.replace("today", "near", 1))
    with pytest.raises(ResumeError, match=r"texts was '.*' and is now '.*'; take another folder, or delete .*resume"):
        run(changed, out, network)
    documents.write_text(before)
    assert run(changed, out, network) == rows


def replace_toys(toys: Toys, data: Path) -> Toys:
    """The same network with other data."""
    other = copy(toys)
    other.data = data
    return other


def test_a_distillation_whose_texts_were_changed_since_is_refused(toys: Toys, tmp_path: Path) -> None:
    job = DistillationJob(str(toys.network), "match", n_top=5, queries_per_batch=8, text=TEXT, train=SHORT)
    scored = toy_scores()
    distill(job, scored, tmp_path)
    items = [*scored.items[:-1], replace(scored.items[-1], text="the changed")]
    with pytest.raises(ResumeError, match=r"texts was '.*' and is now '.*'; take another folder, or delete"):
        distill(job, replace(scored, items=items), tmp_path)


@pytest.mark.parametrize("losses", [("match", "best"), ("best", "pair")])
def test_a_distillation_with_another_loss_is_refused_and_leaves_the_first_as_it_was(
    toys: Toys, tmp_path: Path, losses: tuple[Any, Any]
) -> None:
    first, second = (
        DistillationJob(str(toys.network), loss, n_top=5, queries_per_batch=8, text=TEXT, train=SHORT)
        for loss in losses
    )
    rows = distill(first, toy_scores(), tmp_path)
    with pytest.raises(InputError, match="holds a distillation with another loss; take another folder"):
        distill(second, toy_scores(), tmp_path)
    assert distill(first, toy_scores(), tmp_path) == rows


@pytest.mark.parametrize("run", [run_cross_encoder, run_dual_encoder, run_distillation])
def test_two_trainings_at_once_in_one_folder_are_refused(
    toys: Toys, tmp_path: Path, run: Callable[..., list[LogRow]]
) -> None:
    with training_in(tmp_path), pytest.raises(LockedError, match="is being written to by process"):
        run(toys, tmp_path, toys.network)
