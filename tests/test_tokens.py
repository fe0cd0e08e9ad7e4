"""Queries and items as integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="needs the extra `train`")

from anncur import Item, Query
from anncur.errors import FileFormatError, InputError
from anncur.tokens import ENTITY, MENTION_END, MENTION_START, PairFormat, PairTokenizer, Tokens
from toy_linking import VOCABULARY, WORDS, tokenizer_json

NAMES = {MENTION_START: "[Ms]", MENTION_END: "[Me]", ENTITY: "[ENT]"}


def tokenizer(query_length: int = 32, item_length: int = 16, **format: object) -> PairTokenizer:
    return PairTokenizer.from_json(tokenizer_json(), PairFormat(query_length, item_length, **format))  # type: ignore[arg-type]


def shown(tokens: Tokens) -> str:
    """Tokens as words, with the marks under the paper's names."""
    words = [VOCABULARY[token] for token in tokens]
    return " ".join(NAMES.get(word, word) for word in words)


def test_a_mention_stands_between_its_marks() -> None:
    query = Query("the ant near a bat today", mention=(4, 7))
    assert shown(tokenizer().query(query)) == "[CLS] the [Ms] ant [Me] near a bat today [SEP]"


def test_a_query_without_a_mention_stands_between_the_marks_as_a_whole() -> None:
    assert shown(tokenizer().query(Query("the ant"))) == "[CLS] [Ms] the ant [Me] [SEP]"


def test_an_item_has_its_mark_between_title_and_description() -> None:
    items = [Item("a", "the cat stands", "cat"), Item("b", "no title"), Item("c", "", "dog")]
    assert [shown(tokens) for tokens in tokenizer().items(items)] == [
        "cat [ENT] the cat stands [SEP]",
        "[ENT] [UNK] [UNK] [SEP]",
        "dog [ENT] [SEP]",
    ]


def test_two_items_make_the_pair_of_the_papers_appendix() -> None:
    first, second = Item("1", "near a bat", "ant"), Item("2", "near a dog", "cat")
    read = tokenizer()
    batch = read.assemble([read.query(Query.of_item(first))], read.items([second]))
    assert shown(batch.token_ids[0]) == "[CLS] [Ms] ant [Me] near a bat [SEP] cat [ENT] near a dog [SEP]"


def test_an_item_without_a_title_is_a_query_without_a_mention() -> None:
    assert Query.of_item(Item("1", "near a bat")) == Query("near a bat", "1")
    assert Query.of_item(Item("1", "", "ant")) == Query("ant", "1", (0, 3))
    assert Query.of_item(Item("1", "near", "ant")) == Query("ant near", "1", (0, 3))


def test_without_marks_a_pair_is_transformers_own() -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer

    own = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(tokenizer_json()), pad_token="[PAD]")
    read = tokenizer(marks=False)
    texts = [("the ant near a bat", "a dog stands"), ("cat", "")]
    batch = read.assemble(
        [read.query(Query(query)) for query, _ in texts], read.items([Item(text or "x", text) for _, text in texts])
    )
    expected = own(*map(list, zip(*texts, strict=True)), padding=True, return_token_type_ids=True)
    assert batch.mask.tolist() == expected["attention_mask"]
    assert batch.token_ids.tolist() == expected["input_ids"]
    assert batch.segment_ids.tolist() == expected["token_type_ids"]
    assert batch.position_ids[0].tolist() == list(range(batch.mask.shape[1])), "BERT counts from the left"
    assert not batch.marks.any()


def test_without_marks_a_mention_stands_in_brackets() -> None:
    query = Query("the ant near", mention=(4, 7))
    assert shown(tokenizer(marks=False).query(query)) == "[CLS] the [ ant ] near [SEP]"


@given(
    left=st.lists(st.sampled_from(WORDS), max_size=40),
    mention=st.lists(st.sampled_from(WORDS), min_size=1, max_size=40),
    right=st.lists(st.sampled_from(WORDS), max_size=40),
    length=st.integers(8, 48),
)
def test_a_cut_keeps_the_mention_and_what_is_next_to_it(
    left: list[str], mention: list[str], right: list[str], length: int
) -> None:
    start = len(" ".join(left)) + bool(left)
    text = " ".join([*left, *mention, *right])
    query = Query(text, mention=(start, start + len(" ".join(mention))))
    words = shown(tokenizer(query_length=length).query(query)).split()
    assert len(words) <= length
    assert (words[0], words[-1]) == ("[CLS]", "[SEP]")
    open_at, close_at = words.index("[Ms]"), words.index("[Me]")
    assert words[open_at + 1 : close_at] == mention[: length - 4], "the mention goes first"
    kept_left, kept_right = words[1:open_at], words[close_at + 1 : -1]
    assert kept_left == left[len(left) - len(kept_left) :], "the end of the left context"
    assert kept_right == right[: len(kept_right)], "the start of the right context"
    whole = len(left) + len(mention) + len(right) + 4
    assert len(words) == min(length, whole), "no room is wasted"
    if len(kept_left) < len(left) and len(kept_right) < len(right):
        assert abs(len(kept_left) - len(kept_right)) <= 1, "both sides get the same"


@given(n_title=st.integers(0, 30), n_text=st.integers(0, 30), length=st.integers(4, 20))
def test_a_cut_item_keeps_its_mark_and_its_end(n_title: int, n_text: int, length: int) -> None:
    item = Item("a", " ".join(["cat"] * n_text), " ".join(["ant"] * n_title))
    (tokens,) = tokenizer(item_length=length).items([item])
    words = shown(tokens).split()
    assert len(words) == min(length, n_title + n_text + 2)
    assert words[-1] == "[SEP]"
    assert words.count("[ENT]") == 1
    assert words.count("ant") == min(n_title, length - 2), "a description is cut before a title"


@pytest.mark.parametrize("literal", ["[SEP]", "[CLS]", "[unused0]", "[unused2]", "[PAD]"])
@pytest.mark.parametrize("marks", [True, False])
def test_a_text_can_not_forge_a_special_token(literal: str, marks: bool) -> None:
    read = tokenizer(marks=marks)
    plain = read.assemble([read.query(Query("ant"))], read.items([Item("a", "bat", "cat")]))
    batch = read.assemble([read.query(Query(f"ant {literal}"))], read.items([Item("a", literal, f"cat {literal}")]))
    forged = VOCABULARY.index(literal)
    assert (batch.token_ids == forged).sum() == (plain.token_ids == forged).sum()


def test_every_row_of_a_batch_is_its_own_pair_with_its_marks() -> None:
    read = tokenizer()
    queries = [Query("ant near a bat", mention=(0, 3)), Query("the bat", mention=(4, 7)), Query("fox")]
    items = [Item("a", "near", "cat"), Item("b", "the dog stands near", "dog"), Item("c", "", "eel fox")]
    tokens = read.queries(queries), read.items(items)
    batch = read.assemble(*tokens)
    for row, (query, item) in enumerate(zip(*tokens, strict=True)):
        n_query, n_pair = len(query), len(query) + len(item)
        assert batch.token_ids[row].tolist() == [*query, *item] + [read.pad] * (batch.mask.shape[1] - n_pair)
        assert batch.segment_ids[row].nonzero()[0].tolist() == list(range(n_query, n_pair))
        assert batch.mask[row].nonzero()[0].tolist() == list(range(n_pair))
        assert batch.position_ids[row, :n_pair].tolist() == list(range(n_pair))
        marked = [shown(batch.token_ids[row, [column]]) for column in batch.marks[row]]
        assert marked == ["[Ms]", "[Me]", "[ENT]"]


def test_queries_tokenised_together_are_those_tokenised_alone() -> None:
    read = tokenizer()
    queries = [Query("the ant"), Query("a bat near", mention=(2, 5))]
    assert [tokens.tolist() for tokens in read.queries(queries)] == [read.query(query).tolist() for query in queries]


def test_in_the_fixed_layout_an_item_starts_at_the_same_position_after_every_query() -> None:
    read = tokenizer(layout="fixed-offset")
    queries = [Query("ant"), Query("the bat near a cat")]
    batch = read.assemble(read.queries(queries), read.items([Item("a", "near", "dog")] * 2))
    for row, n_query in enumerate(len(tokens) for tokens in read.queries(queries)):
        assert batch.position_ids[row, :n_query].tolist() == list(range(n_query))
        assert batch.position_ids[row, n_query : n_query + 4].tolist() == [32, 33, 34, 35]


@pytest.mark.parametrize("layout", ["contiguous", "fixed-offset"])
def test_a_text_alone_starts_at_position_0_and_has_one_segment(layout: str) -> None:
    read = tokenizer(layout=layout)
    items = read.single(read.items([Item("a", "near", "dog"), Item("b", "", "cat")]), are_items=True)
    queries = read.single([read.query(Query("ant"))], are_items=False)
    assert [shown(items.token_ids[row]) for row in (0, 1)] == [
        "[CLS] dog [ENT] near [SEP]",
        "[CLS] cat [ENT] [SEP] [PAD]",
    ]
    assert shown(queries.token_ids[0]) == "[CLS] [Ms] ant [Me] [SEP]"
    assert items.position_ids.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 0]]
    assert queries.position_ids.tolist() == [[0, 1, 2, 3, 4]]
    assert not items.segment_ids.any()


def test_a_fingerprint_names_the_words_and_the_format() -> None:
    formats = [
        {},
        {"query_length": 31},
        {"item_length": 15},
        {"layout": "fixed-offset"},
        {"marks": False},
    ]
    prints = [tokenizer(**options).fingerprint for options in formats]  # type: ignore[arg-type]
    other_words = PairTokenizer.from_json(tokenizer_json([*VOCABULARY, "zebra"]), PairFormat(32, 16)).fingerprint
    assert len({*prints, other_words}) == len(formats) + 1
    assert tokenizer().fingerprint == prints[0]
    assert PairTokenizer.from_json(tokenizer().json, PairFormat(32, 16)).fingerprint == prints[0]


@pytest.mark.parametrize(
    ("format", "problem"),
    [
        ({"query_length": 7}, "query_length must be"),
        ({"item_length": 3}, "item_length must be"),
        ({"layout": "other"}, "layout must be"),
    ],
)
def test_a_format_without_room_is_refused(format: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        PairFormat(**format)  # type: ignore[arg-type]


def test_a_tokenizer_without_the_marks_is_refused() -> None:
    words = [word for word in VOCABULARY if not word.startswith("[unused")]
    with pytest.raises(InputError, match=r"no token \[unused0\].* a format without marks"):
        PairTokenizer.from_json(tokenizer_json(words), PairFormat())
    assert PairTokenizer.from_json(tokenizer_json(words), PairFormat(marks=False)).format.marks is False


def test_what_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(FileFormatError, match=r"not a tokenizer\.json"):
        PairTokenizer.from_json("{}", PairFormat())
    with pytest.raises(InputError, match=r"no file .*tokenizer\.json"):
        PairTokenizer.from_folder("nowhere", PairFormat())
