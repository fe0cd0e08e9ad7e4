"""What is refused, and that the message names what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

import anncur
from anncur.storage.manifest import MANIFESTS, NEWEST
from worlds import World, low_rank_scores


@pytest.fixture
def world() -> World:
    return World(low_rank_scores(16, 40, rank=3))


def build(world: World, path: Path | None) -> anncur.Index:
    return anncur.Index.build(world.items, world.scorer, world.queries[:12], path=path)


@pytest.mark.parametrize("on_disk", [True, False], ids=["on disk", "in memory"])
def test_adding_an_id_that_is_there_is_refused_by_its_name(world: World, tmp_path: Path, on_disk: bool) -> None:
    index = build(world, tmp_path / "x.anncur" if on_disk else None)
    with pytest.raises(anncur.DuplicateIdError, match="the index already has an item with the id 'i7'; remove that"):
        index.add([anncur.Item("new", "a new one"), anncur.Item("i7", "another seven")])
    assert "new" not in index


def test_a_folder_of_something_else_is_not_built_in(world: World, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(anncur.InputError, match=r"isn't empty and holds no index \(thesis.tex"):
        build(world, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert not world.scorer.pairs


def test_a_file_is_not_built_in(world: World, tmp_path: Path) -> None:
    (tmp_path / "x.anncur").write_text("")
    with pytest.raises(anncur.InputError, match="is a file"):
        build(world, tmp_path / "x.anncur")


def test_an_empty_folder_is_built_in(world: World, tmp_path: Path) -> None:
    (tmp_path / "x.anncur").mkdir()
    assert len(build(world, tmp_path / "x.anncur")) == 40


def test_what_repair_leaves_is_reported_as_lost_and_not_as_repairable(world: World, tmp_path: Path) -> None:
    index = build(world, tmp_path / "x.anncur")
    (items,) = tmp_path.glob("x.anncur/segments/*/items.sqlite")
    items.unlink()
    (problem,) = index.verify(repair=True)
    assert "restore the file from a copy" in problem
    assert "--repair" not in problem
    with pytest.raises(anncur.DamagedError, match="`anncur verify --repair`"):
        anncur.Index.open(tmp_path / "x.anncur", world.scorer)


@pytest.mark.parametrize("damage", ["alter", "delete"])
def test_a_damaged_record_of_the_newest_version_is_named_and_repaired(
    world: World, tmp_path: Path, damage: str
) -> None:
    index = build(world, tmp_path / "x.anncur")
    newest = tmp_path / "x.anncur" / MANIFESTS / NEWEST
    newest.unlink() if damage == "delete" else newest.write_bytes(b"1")
    (problem,) = index.verify()
    assert str(newest) in problem
    assert index.verify(repair=True) == []
    assert index.verify() == []


def test_an_index_is_opened_with_one_look_at_its_manifest(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(world, tmp_path / "x.anncur")
    read: list[str] = []
    original = Path.read_bytes

    def counted(path: Path) -> bytes:
        read.append(path.name)
        return original(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    anncur.Index.open(tmp_path / "x.anncur", world.scorer).search(world.queries[13], k=2)
    assert read.count("00000001.json") == 1
    assert read.count("plan.json") == 1


def test_saving_over_an_index_or_into_a_folder_of_something_else_is_refused(world: World, tmp_path: Path) -> None:
    index = build(world, None)
    index.save(tmp_path / "x.anncur")
    with pytest.raises(anncur.InputError, match="holds an index already"):
        index.save(tmp_path / "x.anncur")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "photo.jpg").write_bytes(b"")
    with pytest.raises(anncur.InputError, match="isn't empty"):
        index.save(tmp_path / "other")
    on_disk = anncur.Index.open(tmp_path / "x.anncur", world.scorer)
    with pytest.raises(anncur.InputError, match="holds an index already"):
        on_disk.save(tmp_path / "x.anncur")


def test_a_damaged_index_is_not_copied(world: World, tmp_path: Path) -> None:
    index = build(world, tmp_path / "x.anncur")
    (chunk,) = tmp_path.glob("x.anncur/segments/*/scores/c/0/0")
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(anncur.DamagedError, match="can't be copied"):
        index.save(tmp_path / "copy.anncur")
    with pytest.raises(anncur.InputError, match="no index at"):
        anncur.Index.open(tmp_path / "copy.anncur", world.scorer)


@pytest.mark.parametrize("on_disk", [True, False], ids=["on disk", "in memory"])
def test_an_id_that_is_no_string_is_refused(world: World, tmp_path: Path, on_disk: bool) -> None:
    index = anncur.Index.build(["a", "b", "c"], longer_is_better, path=tmp_path / "x.anncur" if on_disk else None)
    for wrong in (1, ["a"], None):
        with pytest.raises(anncur.InputError, match="an item's id is a string"):
            index.remove([wrong])  # type: ignore[list-item]
        with pytest.raises(anncur.InputError, match="an item's id is a string"):
            index[wrong]  # type: ignore[index]
    assert len(index) == 3


def longer_is_better(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(len(item)) for _, item in pairs]


@pytest.mark.parametrize("on_disk", [True, False], ids=["on disk", "in memory"])
def test_bare_texts_get_numbers_that_are_free(tmp_path: Path, on_disk: bool) -> None:
    index = anncur.Index.build(["a", "b", "c"], longer_is_better, path=tmp_path / "x.anncur" if on_disk else None)
    index.remove(["0"])
    index.add(["d", "e"])
    assert [(item.id, item.text) for item in index] == [("1", "b"), ("2", "c"), ("3", "d"), ("4", "e")]


def test_building_again_with_other_retrievers_warns_that_the_index_stays(world: World, tmp_path: Path) -> None:
    build(world, tmp_path / "x.anncur")
    with pytest.warns(anncur.AnncurWarning, match="was built already"):
        anncur.Index.build(
            world.items, world.scorer, world.queries[:12], path=tmp_path / "x.anncur", retrievers=["tfidf"]
        )


def test_retrievers_of_the_same_name_in_two_modules_are_kept_apart(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("first_module", "second_module"):
        (tmp_path / f"{module}.py").write_text("def score(query, items):\n    return [len(i.text) for i in items]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ["first_module:score", "second_module:score"]
    index = anncur.Index.build(
        world.items, world.scorer, world.queries[:12], path=tmp_path / "x.anncur", retrievers=names
    )
    assert index.info.retrievers == tuple(names)
    assert len(index.search(world.queries[13], k=2)) == 2


def test_a_damaged_file_behind_a_damaged_manifest_is_named(world: World, tmp_path: Path) -> None:
    index = build(world, tmp_path / "x.anncur")
    index.remove(["i3"])
    (tmp_path / "x.anncur" / MANIFESTS / "00000002.json").write_bytes(b"{}")
    (items,) = tmp_path.glob("x.anncur/segments/*/items.sqlite")
    items.write_bytes(items.read_bytes()[:-1])
    with pytest.warns(anncur.DamagedWarning), pytest.raises(anncur.DamagedError, match=r"items\.sqlite"):
        anncur.Index.open(tmp_path / "x.anncur", world.scorer)


@pytest.mark.parametrize("path", [None, "", 7])
def test_a_path_that_is_none_is_refused(world: World, path: object) -> None:
    with pytest.raises(anncur.InputError, match="path must be"):
        anncur.Index.open(path)  # type: ignore[arg-type]
    with pytest.raises(anncur.InputError, match="path must be"):
        build(world, None).save(path)  # type: ignore[arg-type]
