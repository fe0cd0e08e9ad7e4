"""Entity linking in ZESHEL's layout: `documents/<world>.json` with entities, `mentions/<split>.json` with mentions.

A world is a set of entities with mentions of its own; no world is in two splits. A mention is a span of whitespace
tokens (both ends included) of a context document, which is among its world's documents or in a file of documents
that isn't a world's. Feeds `training/` and `evaluation/linking.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from anncur.datasets.jsonl import read_records
from anncur.errors import FileFormatError, InputError, UnknownIdError
from anncur.items import Corpus, Item, Query, TextDigest


@dataclass(frozen=True, slots=True)
class Mention:
    """A query and its gold entity, the one that its marked span names."""

    query: Query
    entity_id: str
    world: str
    document_id: str


@dataclass(frozen=True, slots=True)
class WorldStatistics:
    """The counts of one world."""

    split: str
    world: str
    n_entities: int
    n_mentions: int


class Zeshel:
    """A folder in ZESHEL's layout; files are read when they are first needed.

    A mention's query holds the `context_words` words before and after it, not the full document."""

    def __init__(self, folder: str | Path, *, context_words: int = 128) -> None:
        self.folder = Path(folder)
        self._context_words = context_words
        self._documents: dict[str, dict[str, list[str]]] = {}
        for part in ("documents", "mentions"):
            if not (self.folder / part).is_dir():
                raise InputError(
                    f"no folder {self.folder / part}; a ZESHEL folder holds documents/<world>.json and "
                    "mentions/<split>.json"
                )

    @property
    def splits(self) -> list[str]:
        """The splits that have mentions."""
        return sorted(file.stem for file in (self.folder / "mentions").glob("*.json"))

    def worlds(self, split: str) -> list[str]:
        """The worlds of a split, those with most mentions first."""
        return [world for world, _ in Counter(row["corpus"] for row in self._rows(split)).most_common()]

    def entities(self, world: str) -> list[Item]:
        """All entities of a world; an empty description is allowed, as ZESHEL has some."""
        return [_entity(where, record) for where, record in read_records(self._world_file(world))]

    def mentions(self, split: str, world: str | None = None) -> list[Mention]:
        """The mentions of a split, or of one world of it; a world without any is an error."""
        rows = [row for row in self._rows(split) if world in (None, row["corpus"])]
        if not rows:
            raise InputError(
                f"world {world!r} has no mentions in split {split!r}; take one of {', '.join(self.worlds(split))}"
            )
        return [self._mention(row) for row in rows]

    def statistics(self) -> list[WorldStatistics]:
        """Entities and mentions of every world, in the order of splits."""
        rows = []
        for split in self.splits:
            counts = Counter(row["corpus"] for row in self._rows(split))
            for world, n_mentions in counts.most_common():
                n_entities = sum(1 for _ in read_records(self._world_file(world)))
                rows.append(WorldStatistics(split, world, n_entities, n_mentions))
        return rows

    def _rows(self, split: str) -> list[dict[str, Any]]:
        if split not in self._mention_rows:
            file = self.folder / "mentions" / f"{split}.json"
            if not file.is_file():
                raise InputError(f"no split {split!r} in {self.folder}; take one of {', '.join(self.splits)}")
            rows = [_checked_mention(where, record) for where, record in read_records(file)]
            if not rows:
                raise FileFormatError(f"{file} holds no mentions; each line must be one")
            self._mention_rows[split] = rows
        return self._mention_rows[split]

    @cached_property
    def _mention_rows(self) -> dict[str, list[dict[str, Any]]]:
        return {}

    @cached_property
    def _shared_documents(self) -> list[str]:
        """Files of documents that aren't the world of any mention."""
        worlds = {row["corpus"] for split in self.splits for row in self._rows(split)}
        return sorted({file.stem for file in (self.folder / "documents").glob("*.json")} - worlds)

    def _mention(self, row: dict[str, Any]) -> Mention:
        words = self._words(row["corpus"], row["context_document_id"], row["mention_id"])
        start, end = row["start_index"], row["end_index"] + 1
        if not 0 <= start < end <= len(words):
            raise FileFormatError(
                f"mention {row['mention_id']!r}: the span {start} to {end - 1} must lie within the {len(words)} "
                f"words of document {row['context_document_id']!r}; the mentions belong to other documents"
            )
        left = " ".join(words[max(0, start - self._context_words) : start])
        mention = " ".join(words[start:end])
        right = " ".join(words[end : end + self._context_words])
        offset = len(left) + bool(left)
        text = " ".join(part for part in (left, mention, right) if part)
        query = Query(text, row["mention_id"], (offset, offset + len(mention)))
        return Mention(query, row["label_document_id"], row["corpus"], row["context_document_id"])

    def _words(self, world: str, document_id: str, mention_id: str) -> list[str]:
        for name in (world, *self._shared_documents):
            found = self._documents_of(name).get(document_id)
            if found is not None:
                return found
        raise FileFormatError(
            f"mention {mention_id!r}: no document {document_id!r} in {self._world_file(world)} or in "
            f"{', '.join(self._shared_documents) or 'any other file'}; is a file of documents missing?"
        )

    def _documents_of(self, name: str) -> dict[str, list[str]]:
        if name not in self._documents:
            self._documents[name] = {document.id: document.text.split() for document in self.entities(name)}
        return self._documents[name]

    def _world_file(self, world: str) -> Path:
        file = self.folder / "documents" / f"{world}.json"
        if not file.is_file():
            there = sorted(file.stem for file in (self.folder / "documents").glob("*.json"))
            raise InputError(f"no world {world!r} in {self.folder}; take one of {', '.join(there)}")
        return file


@dataclass(frozen=True, slots=True)
class LinkingWorld:
    """A world for training or evaluation: entities in their order, mentions, and their gold entities."""

    name: str
    items: Corpus
    mentions: list[Mention]
    golds: list[int]  # position of each mention's gold entity

    @property
    def queries(self) -> list[Query]:
        """The mentions' queries, in their order."""
        return [mention.query for mention in self.mentions]

    def describe(self) -> str:
        """The world's name and a digest of its entities and mentions."""
        digest = TextDigest()
        for item in self.items:
            digest.add_item(item)
        digest.add(*(f"{mention.entity_id} {mention.query.marked_text}" for mention in self.mentions))
        return f"{self.name} {digest}"


def read_worlds(data: Zeshel, split: str, worlds: Iterable[str] | None = None) -> Iterator[LinkingWorld]:
    """The worlds of a split with their mentions."""
    for world in worlds or data.worlds(split):
        items = Corpus(data.entities(world))
        mentions = data.mentions(split, world)
        yield LinkingWorld(world, items, mentions, [_gold(items, mention) for mention in mentions])


def _gold(items: Corpus, mention: Mention) -> int:
    try:
        return items.position(mention.entity_id)
    except UnknownIdError:
        raise FileFormatError(
            f"mention {mention.query.id!r}: its entity {mention.entity_id!r} is no document of its world "
            f"{mention.world!r}; the mentions belong to other documents"
        ) from None


def _entity(where: str, record: dict[str, Any]) -> Item:
    try:
        return Item(record["document_id"], record["text"], record["title"])
    except KeyError as error:
        raise FileFormatError(f"{where}: a document needs document_id, title and text, but has no {error}") from error
    except InputError as error:
        raise FileFormatError(f"{where}: {error}") from error


def _checked_mention(where: str, record: dict[str, Any]) -> dict[str, Any]:
    texts = ("mention_id", "context_document_id", "label_document_id", "corpus")
    numbers = ("start_index", "end_index")
    for name, kind in [*((name, str) for name in texts), *((name, int) for name in numbers)]:
        if not isinstance(record.get(name), kind):
            raise FileFormatError(f"{where}: a mention needs {name}, a {kind.__name__}, got {record.get(name)!r}")
    return record
