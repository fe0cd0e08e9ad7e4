"""A build takes over exactly what its pilot has scored."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anncur
from anncur.errors import InputError
from anncur.filling import STAGE
from anncur.items import Query
from anncur.planning.plan import plan
from anncur.scorers.loading import load_scorer
from anncur.scores import ScoreMatrix, ScoreSpec
from anncur.storage.manifest import PILOT
from anncur.storage.pilot import PilotScores, read_pilot, write_pilot
from worlds import World, low_rank_scores

pytestmark = pytest.mark.slow


def pilot_of(folder: Path, world: World) -> PilotScores:
    values = world.exact_scores.T.copy()
    pilot = PilotScores.of(load_scorer(world.scorer), world.items, [Query(text) for text in world.queries], values)
    write_pilot(folder, pilot)
    return pilot


def test_repeated_anchor_queries_count_once_and_the_build_gets_the_exact_scores(tmp_path: Path) -> None:
    world = World(low_rank_scores(20, 120, rank=3))
    repeated = [*world.queries[:9], *world.queries]
    made = plan(world.items, world.scorer, repeated, path=tmp_path / "x.anncur")
    assert (made.n_anchor_queries, made.pilot_queries) == (20, 20)
    world.scorer.pairs.clear()
    anncur.Index.build(world.items, world.scorer, repeated, path=tmp_path / "x.anncur")
    assert len(world.scorer.pairs) < 20  # a check of the scorer alone
    index = anncur.Index.open(tmp_path / "x.anncur", world.scorer)
    np.testing.assert_array_equal(index.anchor_scores(), world.exact_scores.T)


def test_repeated_queries_and_items_keep_their_scores_in_a_file(tmp_path: Path) -> None:
    world = World(low_rank_scores(3, 4, rank=2))
    queries = [Query(world.queries[number]) for number in (0, 1, 0, 2)]
    items = [world.items[number] for number in (0, 0, 1, 2, 3)]
    values = world.exact_scores[np.ix_([0, 1, 0, 2], [0, 0, 1, 2, 3])].T.copy()
    scorer = load_scorer(world.scorer)
    write_pilot(tmp_path, PilotScores.of(scorer, items, queries, values))
    read = read_pilot(tmp_path, scorer)
    assert read is not None
    known = read.known(world.items, [Query(text) for text in world.queries])
    np.testing.assert_array_equal(known, world.exact_scores.T)


def test_an_item_with_other_metadata_is_another_item(tmp_path: Path) -> None:
    world = World(low_rank_scores(3, 4, rank=2))
    pilot = pilot_of(tmp_path, world)
    changed = [replace(world.items[0], metadata={"year": 1999}), *world.items[1:]]
    known = pilot.known(changed, [Query(text) for text in world.queries])
    assert np.isnan(known).any(axis=1).tolist() == [True, False, False, False]


def as_list(described: dict[str, Any]) -> Any:
    return [described]


def without_scorer(described: dict[str, Any]) -> Any:
    return {name: value for name, value in described.items() if name != "scorer"}


def without_items(described: dict[str, Any]) -> Any:
    return {name: value for name, value in described.items() if name != "items"}


def with_null_queries(described: dict[str, Any]) -> Any:
    return {**described, "queries": None}


def with_listed_queries(described: dict[str, Any]) -> Any:
    return {**described, "queries": list(described["queries"])}


def with_rows_outside(described: dict[str, Any]) -> Any:
    return {**described, "items": dict.fromkeys(described["items"], 99)}


@pytest.mark.parametrize(
    "damage", [as_list, without_scorer, without_items, with_null_queries, with_listed_queries, with_rows_outside]
)
def test_a_damaged_description_is_as_good_as_none(tmp_path: Path, damage: Callable[[dict[str, Any]], Any]) -> None:
    world = World(low_rank_scores(3, 4, rank=2))
    pilot_of(tmp_path, world)
    path = tmp_path / PILOT / "pilot.json"
    assert read_pilot(tmp_path, load_scorer(world.scorer)) is not None
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    assert read_pilot(tmp_path, load_scorer(world.scorer)) is None


def empty_matrix(world: World, dtype: str) -> ScoreMatrix:
    queries = [Query(text) for text in world.queries]
    scorer = load_scorer(world.scorer)
    return ScoreMatrix.in_memory(
        ScoreSpec.make(scorer, queries, items_digest="", n_items=len(world.items), dtype=dtype)
    )


def fill(matrix: ScoreMatrix, world: World, known: Any, **options: Any) -> None:
    queries = [Query(text) for text in world.queries]
    scorer = load_scorer(world.scorer)
    matrix.fill(scorer, queries, lambda start, stop: world.items[start:stop], known=lambda *_: known, **options)


def test_known_scores_that_the_type_cannot_hold_are_scored_again() -> None:
    world = World(low_rank_scores(3, 4, rank=2))
    known = world.exact_scores.T.copy()
    known[2, 1] = 1e6
    matrix = empty_matrix(world, "float16")
    fill(matrix, world, known)
    assert world.scorer.pairs == [("query 1", "i2")]
    np.testing.assert_allclose(matrix.all(), world.exact_scores.T, rtol=1e-3)


def test_progress_counts_known_scores_as_done() -> None:
    world = World(low_rank_scores(3, 4, rank=2))
    known = world.exact_scores.T.copy()
    known[0] = np.nan
    seen: list[tuple[str, int, int]] = []
    fill(empty_matrix(world, "float32"), world, known, progress=lambda *step: seen.append(step))
    assert (seen[0], seen[-1]) == ((STAGE, 9, 12), (STAGE, 12, 12))


def test_a_dtype_that_is_no_string_is_refused() -> None:
    world = World(low_rank_scores(3, 4, rank=2))
    with pytest.raises(InputError, match="dtype must be one of float32, float16"):
        empty_matrix(world, np.dtype("float32"))  # type: ignore[arg-type]
