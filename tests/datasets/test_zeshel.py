"""Reading worlds in ZESHEL's layout."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anncur.datasets.zeshel import WorldStatistics, Zeshel, read_worlds
from anncur.errors import FileFormatError, InputError
from toy_linking import write_lines, write_zeshel

Change = Callable[[list[dict[str, Any]]], object]
WORDNET = os.environ.get("ANNCUR_WORDNET_LINKING", "")
needs_wordnet = pytest.mark.skipif(not WORDNET, reason="set ANNCUR_WORDNET_LINKING to the folder of wordnet-linking")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_zeshel(tmp_path)


def change(file: Path, how: Change) -> None:
    """Rewrite a file of records."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    how(records)
    write_lines(file, records)


def test_worlds_belong_to_their_split(folder: Path) -> None:
    data = Zeshel(folder)
    assert data.splits == ["test", "train", "val"]
    assert data.worlds("train") == ["alpha", "beta"]
    assert data.worlds("val") == ["gamma"]


def test_entities_are_the_documents_of_a_world_in_their_order(folder: Path) -> None:
    entities = Zeshel(folder).entities("alpha")
    assert [entity.id for entity in entities] == [f"alpha-{number}" for number in range(12)]
    assert (entities[0].title, entities[0].text) == ("ant", "ant stands near bat and fox today")


def test_a_mention_is_a_marked_span_of_its_context_with_its_entity(folder: Path) -> None:
    mention = Zeshel(folder).mentions("train", "alpha")[1]
    assert mention.query.marked_text == "ant stands near bat and [fox] today"
    assert (mention.query.id, mention.entity_id, mention.world) == ("alpha-0-5", "alpha-5", "alpha")
    assert mention.document_id == "alpha-0"


def test_without_a_world_all_mentions_of_a_split_come(folder: Path) -> None:
    data = Zeshel(folder)
    assert data.mentions("train") == data.mentions("train", "alpha") + data.mentions("train", "beta")


@pytest.mark.parametrize("name", ["semcor", "a file of contexts"])
def test_context_documents_may_be_in_a_file_that_is_no_world(folder: Path, name: str) -> None:
    expected = Zeshel(folder).mentions("test")
    document = {"document_id": "elsewhere", "title": "", "text": "the owl near a rat ."}
    write_lines(folder / "documents" / f"{name}.json", [document])

    def move(rows: list[dict[str, Any]]) -> None:
        rows[0] |= {"context_document_id": "elsewhere", "start_index": 4, "end_index": 4}

    change(folder / "mentions" / "test.json", move)
    data = Zeshel(folder)
    found = data.mentions("test")
    assert found[0].query.marked_text == "the owl near a [rat] ."
    assert found[1:] == expected[1:]
    assert data.worlds("test") == ["delta"]


def test_a_span_of_several_words_includes_both_ends(folder: Path) -> None:
    change(folder / "mentions" / "val.json", lambda rows: rows[0].update(start_index=0, end_index=6))
    query = Zeshel(folder).mentions("val")[0].query
    assert query.mention == (0, len(query.text))


def test_a_query_holds_only_the_words_around_its_mention(folder: Path) -> None:
    query = Zeshel(folder, context_words=2).mentions("train", "alpha")[0].query
    assert query.marked_text == "stands near [bat] and fox"
    assert Zeshel(folder, context_words=0).mentions("train", "alpha")[0].query.marked_text == "[bat]"


def test_worlds_to_link_have_the_position_of_every_gold_entity(folder: Path) -> None:
    for world in read_worlds(Zeshel(folder), "train"):
        assert len(world.golds) == len(world.mentions) == 24
        for query, gold in zip(world.queries, world.golds, strict=True):
            assert query.mention_alone().text == world.items[gold].title


def test_a_worlds_description_names_its_texts(folder: Path) -> None:
    def described() -> str:
        (world,) = read_worlds(Zeshel(folder), "val")
        return world.describe()

    before = described()
    assert described() == before
    change(folder / "mentions" / "val.json", lambda rows: rows.pop())
    fewer = described()
    change(folder / "documents" / "gamma.json", lambda rows: rows[3].update(title="other"))
    assert len({before, fewer, described()}) == 3


def test_statistics_count_entities_and_mentions_of_every_world(folder: Path) -> None:
    change(folder / "mentions" / "train.json", lambda rows: rows.pop())
    assert Zeshel(folder).statistics() == [
        WorldStatistics("test", "delta", 12, 24),
        WorldStatistics("train", "alpha", 12, 24),
        WorldStatistics("train", "beta", 12, 23),
        WorldStatistics("val", "gamma", 12, 24),
    ]


def test_an_empty_description_is_kept_as_it_is(folder: Path) -> None:
    write_lines(folder / "documents" / "bare.json", [{"document_id": "b", "title": "yak", "text": ""}])
    (entity,) = Zeshel(folder).entities("bare")
    assert (entity.title, entity.text) == ("yak", "")


@pytest.mark.parametrize("part", ["documents", "mentions"])
def test_a_folder_without_one_of_its_parts_is_refused(folder: Path, part: str) -> None:
    (folder / part).rename(folder / "away")
    with pytest.raises(InputError, match=f"no folder .*{part}; a ZESHEL folder holds"):
        Zeshel(folder)


def test_unknown_names_are_answered_with_those_that_there_are(folder: Path) -> None:
    data = Zeshel(folder)
    with pytest.raises(InputError, match=r"no split 'dev' in .*; take one of test, train, val"):
        data.worlds("dev")
    with pytest.raises(InputError, match=r"no world 'omega' in .*; take one of alpha, beta, delta, gamma"):
        data.entities("omega")
    with pytest.raises(InputError, match="no world 'omega'"):
        list(read_worlds(data, "train", ["omega"]))


def test_a_world_without_mentions_in_a_split_is_an_error(folder: Path) -> None:
    with pytest.raises(InputError, match="world 'gamma' has no mentions in split 'train'; take one of alpha, beta"):
        list(read_worlds(Zeshel(folder), "train", ["gamma"]))


def test_a_split_without_mentions_is_an_error(folder: Path) -> None:
    (folder / "mentions" / "val.json").write_text("\n")
    with pytest.raises(FileFormatError, match=r"val\.json holds no mentions"):
        list(read_worlds(Zeshel(folder), "val"))


def test_a_world_whose_documents_are_missing_is_an_error(folder: Path) -> None:
    (folder / "documents" / "gamma.json").unlink()
    with pytest.raises(InputError, match="no world 'gamma'"):
        list(read_worlds(Zeshel(folder), "val"))


@pytest.mark.parametrize(("start", "end"), [(7, 7), (-1, 2), (3, 2), (5, 99)])
def test_a_span_out_of_range_is_named_with_its_mention(folder: Path, start: int, end: int) -> None:
    change(folder / "mentions" / "val.json", lambda rows: rows[2].update(start_index=start, end_index=end))
    problem = f"mention 'gamma-1-3': the span {start} to {end} must lie within the 7 words of document 'gamma-1'"
    with pytest.raises(FileFormatError, match=problem):
        Zeshel(folder).mentions("val")


def test_an_unknown_context_document_is_named_with_its_mention(folder: Path) -> None:
    change(folder / "mentions" / "val.json", lambda rows: rows[0].update(context_document_id="gone"))
    with pytest.raises(FileFormatError, match="mention 'gamma-0-3': no document 'gone' in"):
        Zeshel(folder).mentions("val")


def test_a_label_that_is_no_entity_of_its_world_is_named_with_mention_and_world(folder: Path) -> None:
    change(folder / "mentions" / "val.json", lambda rows: rows[0].update(label_document_id="alpha-1"))
    with pytest.raises(FileFormatError, match="mention 'gamma-0-3': its entity 'alpha-1' is no document of its world"):
        list(read_worlds(Zeshel(folder), "val"))


@pytest.mark.parametrize(
    "key", ["mention_id", "context_document_id", "label_document_id", "corpus", "start_index", "end_index"]
)
def test_a_mention_without_a_key_is_named_with_its_line(folder: Path, key: str) -> None:
    change(folder / "mentions" / "val.json", lambda rows: rows[4].pop(key))
    with pytest.raises(FileFormatError, match=rf"val\.json:5: a mention needs {key}"):
        Zeshel(folder).mentions("val")


@pytest.mark.parametrize("key", ["document_id", "title", "text"])
def test_a_document_without_a_key_is_named_with_its_line(folder: Path, key: str) -> None:
    change(folder / "documents" / "gamma.json", lambda rows: rows[1].pop(key))
    data = Zeshel(folder)
    for read in (lambda: data.entities("gamma"), lambda: data.mentions("val")):
        with pytest.raises(FileFormatError, match=rf"gamma\.json:2: a document needs .* but has no '{key}'"):
            read()


def test_a_document_whose_text_is_no_text_is_named_with_its_line(folder: Path) -> None:
    change(folder / "documents" / "gamma.json", lambda rows: rows[1].update(text=5))
    with pytest.raises(FileFormatError, match=r"gamma\.json:2: .* text must be a string, got int"):
        Zeshel(folder).mentions("val")


@pytest.mark.parametrize("file", ["mentions/val.json", "documents/gamma.json"])
def test_a_line_that_is_no_json_is_named(folder: Path, file: str) -> None:
    (folder / file).write_text((folder / file).read_text() + "not JSON\n")
    with pytest.raises(FileFormatError, match=r"\.json:\d+: not JSON"):
        list(read_worlds(Zeshel(folder), "val"))


@needs_wordnet
def test_wordnet_linking_has_the_counts_that_it_should_have() -> None:
    rows = Zeshel(WORDNET).statistics()
    assert len(rows) == len({row.world for row in rows}) == 43
    assert sum(row.n_entities for row in rows) == 103_533
    assert sum(row.n_mentions for row in rows) == 80_616


@needs_wordnet
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_every_mention_of_wordnet_linking_has_the_text_of_its_span(split: str) -> None:
    lines = (Path(WORDNET) / "mentions" / f"{split}.json").read_text(encoding="utf-8").splitlines()
    texts = {record["mention_id"]: record["text"] for record in map(json.loads, lines)}
    mentions = Zeshel(WORDNET).mentions(split)
    assert len(mentions) == len(lines)
    wrong = [mention.query for mention in mentions if mention.query.mention_alone().text != texts[mention.query.id]]
    assert not wrong
