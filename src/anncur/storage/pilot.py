"""The scores of a pilot, kept so that the build after it doesn't pay for them again.

Written by `anncur plan --out`, read by a build in the same folder, and deleted when that is published."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anncur.arrays import FloatMatrix
from anncur.errors import DamagedError
from anncur.items import Item, Query, TextDigest
from anncur.scorers.guard import GuardedScorer
from anncur.storage.files import FileRecord, read_checked, write_file
from anncur.storage.manifest import PILOT


@dataclass(frozen=True, eq=False)
class PilotScores:
    """Exact scores by the digest of an item and the text of a query. `values` is (n_items, n_queries).

    `items` and `queries` give the row and the column; of one that was scored twice, the last."""

    scorer: str
    higher_is_better: bool
    items: Mapping[str, int]
    queries: Mapping[str, int]
    values: FloatMatrix

    @classmethod
    def of(
        cls, scorer: GuardedScorer, items: Sequence[Item], queries: Sequence[Query], values: FloatMatrix
    ) -> PilotScores:
        """What a pilot has scored."""
        return cls(
            scorer.fingerprint,
            scorer.rules.higher_is_better,
            {_digest(item): row for row, item in enumerate(items)},
            {query.key: column for column, query in enumerate(queries)},
            values,
        )

    def known(self, items: Sequence[Item], queries: Sequence[Query]) -> FloatMatrix:
        """What is known of these, (n_items, n_queries); NaN where nothing is."""
        found = np.full((len(items), len(queries)), np.nan, dtype=np.float32)
        rows = [
            (place, self.items[digest]) for place, item in enumerate(items) if (digest := _digest(item)) in self.items
        ]
        texts = [query.key for query in queries]
        columns = [(place, self.queries[text]) for place, text in enumerate(texts) if text in self.queries]
        for place, row in rows:
            for column_place, column in columns:
                found[place, column_place] = self.values[row, column]
        return found


def write_pilot(folder: Path, pilot: PilotScores) -> None:
    """Keep the scores of a pilot in the folder of the index to come; the description is written last."""
    content = io.BytesIO()
    np.save(content, pilot.values, allow_pickle=False)
    record = write_file(folder / PILOT / "scores.npy", content.getvalue())
    described = {
        "scorer": pilot.scorer,
        "higher_is_better": pilot.higher_is_better,
        "items": dict(pilot.items),
        "queries": dict(pilot.queries),
        "sha256": record.sha256,
        "size": record.size,
    }
    write_file(folder / PILOT / "pilot.json", json.dumps(described).encode())


def read_pilot(folder: Path, scorer: GuardedScorer) -> PilotScores | None:
    """The scores of a pilot with the same scorer, if there are any; damaged ones are as good as none."""
    try:
        described = json.loads((folder / PILOT / "pilot.json").read_bytes())
        record = FileRecord(described["sha256"], described["size"])
        pilot = _decode(described, read_checked(folder / PILOT / "scores.npy", record))
    except (OSError, ValueError, TypeError, KeyError, DamagedError):
        return None
    is_same = (pilot.scorer, pilot.higher_is_better) == (scorer.fingerprint, scorer.rules.higher_is_better)
    return pilot if is_same else None


def drop_pilot(folder: Path) -> None:
    """Forget a pilot, once its scores are in an index."""
    shutil.rmtree(folder / PILOT, ignore_errors=True)


def _decode(described: dict[str, Any], content: bytes) -> PilotScores:
    values = np.load(io.BytesIO(content), allow_pickle=False)
    n_rows, n_columns = values.shape
    return PilotScores(
        scorer=described["scorer"],
        higher_is_better=described["higher_is_better"],
        items=_checked_numbers(described["items"], n_rows),
        queries=_checked_numbers(described["queries"], n_columns),
        values=values,
    )


def _checked_numbers(found: object, limit: int) -> dict[str, int]:
    """Row or column numbers by digest or text; whatever else is found is an error."""
    if not isinstance(found, dict) or not all(type(number) is int and 0 <= number < limit for number in found.values()):
        raise ValueError("the description of a pilot must number its rows and columns")
    return found


def _digest(item: Item) -> str:
    digest = TextDigest()
    digest.add_item(item)
    return str(digest)
