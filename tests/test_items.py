"""Items, queries and the corpus."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anncur.anchors import check_method
from anncur.cli.options import drawn_queries
from anncur.errors import DuplicateIdError, InputError, InvalidTextError, UnknownIdError
from anncur.items import Corpus, Item, Query, TextDigest, as_queries, metadata_json

plain_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00[]\\"), min_size=1)


def test_an_item_without_a_title_shows_just_its_text() -> None:
    assert Item("1", "flies by night").full_text == "flies by night"


def test_an_item_with_a_title_shows_title_newline_text() -> None:
    assert Item("1", "flies by night", "bat").full_text == "bat\nflies by night"


@pytest.mark.parametrize("key", ["id", "_id"])
def test_an_item_is_read_from_a_dict_with_either_id_key(key: str) -> None:
    assert Item.from_record({key: "7", "text": "a", "title": "b"}) == Item("7", "a", "b")


def test_unknown_keys_of_a_dict_become_metadata() -> None:
    item = Item.from_record({"id": 7, "text": "a", "metadata": {"year": 1}, "lang": "en"})
    assert item.id == "7"
    assert item.metadata == {"year": 1, "lang": "en"}


@pytest.mark.parametrize(
    "record", [{"text": "a"}, {"id": "", "text": "a"}, {"id": True, "text": "a"}, {"id": "1"}, {"id": "1", "text": 5}]
)
def test_a_dict_without_id_or_text_is_refused_with_the_key_that_is_missing(record: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"needs an 'id'|needs a 'text'"):
        Item.from_record(record)


@pytest.mark.parametrize("text", ["nul \x00 here", "lone \ud800 surrogate"])
@pytest.mark.parametrize("make", [lambda t: Item("1", t), lambda t: Item("1", "a", t), Query, lambda t: Item(t, "a")])
def test_text_that_no_file_can_hold_is_refused_and_the_remedy_works(make: Callable[[str], object], text: str) -> None:
    with pytest.raises(InvalidTextError, match="remove it"):
        make(text)
    make(text.replace("\0", " ").encode("utf-8", "replace").decode())


@pytest.mark.parametrize("metadata", ["abc", ["abc"], 5])
def test_metadata_that_is_no_mapping_is_refused(metadata: object) -> None:
    with pytest.raises(InputError, match="'metadata' must be an object"):
        Item.from_record({"id": "1", "text": "a", "metadata": metadata})


def test_numpy_integers_serve_as_ids_and_spans() -> None:
    assert Item.from_record({"id": np.int64(7), "text": "a"}).id == "7"
    assert Query.from_record({"text": "a bat", "mention": [np.int64(2), np.int64(5)]}).mention == (2, 5)


def test_an_id_of_none_leaves_the_other_key() -> None:
    assert Item.from_record({"id": None, "_id": "x", "text": "a"}).id == "x"


def test_a_data_frame_is_refused_with_the_way_to_its_records() -> None:
    class Frame(list[str]):
        columns = ("id", "text")

    with pytest.raises(InputError, match="to_dict"):
        Corpus(Frame(["id", "text"]))


def test_one_bracket_marks_the_mention() -> None:
    query = Query.marked("small [bat] that eats fruit")
    assert query == Query("small bat that eats fruit", mention=(6, 9))
    assert query.marked_text == "small [bat] that eats fruit"


@pytest.mark.parametrize(
    "text", ["no brackets", "[one] and [two]", "never [closed", "closed] never opened", "empty []"]
)
def test_a_marked_text_must_have_one_mention_and_a_plain_text_may_have_any(text: str) -> None:
    with pytest.raises(InputError, match=r"exactly one \[mention\]"):
        Query.marked(text)
    assert as_queries([text]) == [Query(text)]


def test_a_backslash_escapes_a_bracket() -> None:
    assert Query.marked(r"array\[0] of [bats]") == Query("array[0] of bats", mention=(12, 16))
    with pytest.raises(InputError, match=r"exactly one \[mention\]"):
        Query.marked(r"array\[0]")


@given(before=plain_text, inside=plain_text, after=plain_text)
def test_marked_text_is_what_was_parsed(before: str, inside: str, after: str) -> None:
    marked = f"{before}[{inside}]{after}"
    if inside.strip():
        query = Query.marked(marked)
        assert query.marked_text == marked
        assert query.mention is not None
        assert query.text[slice(*query.mention)] == inside


@pytest.mark.parametrize("span", [(3, 3), (-1, 2), (0, 99), (2,), "ab", (0.0, 2.0)])
def test_a_span_outside_the_text_is_refused(span: object) -> None:
    with pytest.raises(InputError, match="mention must be"):
        Query("a bat", mention=span)  # type: ignore[arg-type]


def test_a_query_dict_may_give_the_span_and_is_plain_text_otherwise() -> None:
    assert Query.from_record({"_id": "q", "text": "a [bat]", "mention": [3, 6]}) == Query("a [bat]", "q", (3, 6))
    assert Query.from_record({"text": "a [bat]"}) == Query("a [bat]")


@pytest.mark.parametrize("empty", ["", "  ", "\n"])
def test_an_empty_query_is_refused(empty: str) -> None:
    with pytest.raises(InputError, match="some text"):
        Query(empty)


def test_positions_and_ids_belong_together() -> None:
    corpus = Corpus([{"id": "a", "text": "x"}, Item("b", "y"), "bare text"])
    assert [corpus.position(item.id) for item in corpus] == [0, 1, 2]
    assert corpus[2] == Item("2", "bare text")


def test_an_unknown_id_is_named() -> None:
    with pytest.raises(UnknownIdError, match="no item has the id 'z'"):
        Corpus(["a"]).position("z")


def test_duplicate_ids_are_refused_with_both_positions() -> None:
    with pytest.raises(DuplicateIdError, match="'a' at positions 0 and 2"):
        Corpus([Item("a", "x"), Item("b", "y"), Item("a", "z")])


@pytest.mark.parametrize("items", ["corpus.jsonl", {"id": "a", "text": "b"}, 5])
def test_a_path_in_the_place_of_items_is_refused_with_the_way_to_read_it(items: object) -> None:
    with pytest.raises(InputError, match="read_items"):
        Corpus(items)  # type: ignore[arg-type]


def test_a_single_query_in_the_place_of_a_list_is_refused() -> None:
    with pytest.raises(InputError, match="put a single one in a list"):
        as_queries("a query")


def test_the_digest_differs_by_order_and_borders() -> None:
    def digest(*items: Item) -> str:
        found = TextDigest()
        for item in items:
            found.add_item(item)
        return str(found)

    digests = {
        digest(Item("a", "xy"), Item("b", "z")),
        digest(Item("b", "z"), Item("a", "xy")),
        digest(Item("a", "x"), Item("b", "yz")),
        digest(Item("a", "y", "x"), Item("b", "z")),
        digest(Item("a", "xy", metadata={"n": 1}), Item("b", "z")),
    }
    assert len(digests) == 5


@pytest.mark.parametrize("metadata", [{"note": "\ud800"}, {"\udfff": 1}, {"deep": [{"er": "a\udc00b"}]}])
def test_a_lone_surrogate_in_the_metadata_is_refused(metadata: dict[str, object]) -> None:
    with pytest.raises(InvalidTextError, match="item 'a': metadata holds the lone surrogate U"):
        TextDigest().add_item(Item("a", "text", metadata=metadata))


def test_any_other_text_may_be_in_the_metadata() -> None:
    metadata = {"zero": "\0", "bat": "\U0001f987", "line": "a\nb"}
    assert json.loads(metadata_json(Item("a", "text", metadata=metadata))) == metadata


@pytest.mark.parametrize("method", [["random"], {}, None, 1, b"random", "best"])
def test_a_way_to_choose_anchors_that_there_is_not_is_refused(method: object) -> None:
    with pytest.raises(InputError, match="anchors must be one of"):
        check_method(method)


@pytest.mark.parametrize("n_anchor_queries", [0, -1, -5])
def test_fewer_than_one_anchor_query_is_refused(tmp_path: Path, n_anchor_queries: int) -> None:
    (tmp_path / "queries.txt").write_text("one\ntwo\nthree\n")
    with pytest.raises(InputError, match=f"--n-anchor-queries must be at least 1, got {n_anchor_queries}"):
        drawn_queries(tmp_path / "queries.txt", n_anchor_queries, 0, marked=False)
    assert len(drawn_queries(tmp_path / "queries.txt", 2, 0, marked=False)) == 2
