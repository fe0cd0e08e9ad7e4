"""The page in a real browser: what people see and do there, with a mouse, with keys alone, and on a phone."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

import anncur
from anncur.scorers.base import Pair
from anncur.service.served import ServedIndex
from anncur.service.settings import AccessTokens
from browser import Browser, Tab, browser, find_chromium
from programs import wait_until
from service_worlds import Overlap, corpus, overlap, queries, quick, serving_in_thread, true_best

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(find_chromium() is None, reason="chromium isn't installed"),
]

QUERY = "small red bird"
TOKEN = "a-token-für-the-page"
PHONE = {"width": 390, "height": 844}
KEEP_ANSWERS = """
window.answers = [];
const original = window.fetch;
window.fetch = async (path, ...rest) => {
  const response = await original(path, ...rest);
  if (String(path).endsWith("/v1/search")) response.clone().json().then((answer) => window.answers.push(answer));
  return response;
};
"""
NOTHING_FIRES = "window.fired = []; window.fire = (what) => window.fired.push(what);"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def serving(folder: Path, scorer: Overlap, **settings: Any) -> AbstractContextManager[str]:
    """A service whose scorer a test can let fail; its address."""
    index = ServedIndex.open("things", folder, scorer, refresh_seconds=0.0)
    return serving_in_thread(index, **settings)


@pytest.fixture(scope="module")
def url(built: Path) -> Iterator[str]:
    """A service for tests that change nothing."""
    with serving(built, Overlap()) as found:
        yield found


@dataclass(frozen=True)
class Page:
    """The page in a tab."""

    tab: Tab
    url: str

    def open(self, query: str | None = None, **options: Any) -> None:
        """Open the page, or a link to a search, and wait for what it shows."""
        link = {"q": query, "k": 5, "budget": 40, **options}
        self.tab.open(f"{self.url}/" + (f"#{urlencode(link)}" if query else ""))
        self.tab.wait("document.querySelector('.hit')" if query else "!document.getElementById('welcome').hidden")

    def search(self, query: str) -> None:
        """Type a query and press Enter."""
        self.tab.evaluate("document.getElementById('query').select()")
        self.tab.click("#query")
        self.tab.evaluate("document.getElementById('query').select()")
        self.tab.type(query)
        self.tab.press("Enter")

    def answer(self, place: int = -1) -> dict[str, Any]:
        """What the service answered."""
        self.tab.wait("answers.length")
        found: dict[str, Any] = self.tab.evaluate(f"answers.at({place})")
        return found

    def titles(self) -> list[str]:
        return self.tab.texts(".hit h3")

    @property
    def is_too_wide(self) -> bool:
        return bool(self.tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


@contextlib.contextmanager
def page_of(chromium: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page that must not complain of anything."""
    with chromium.tab(**options) as tab:
        for source in (KEEP_ANSWERS, NOTHING_FIRES):
            tab.send("Page.addScriptToEvaluateOnNewDocument", source=source)
        yield Page(tab, url)
        tab.evaluate("0")
        assert tab.complaints == []


@pytest.fixture
def page(chromium: Browser, url: str) -> Iterator[Page]:
    with page_of(chromium, url) as found:
        yield found


def settled_after(answer: dict[str, Any], k: int) -> int:
    """The items that were scored when the final best k had all been found."""
    final, n_scored = {hit["id"] for hit in answer["hits"]}, 0
    found: set[str] = set()
    for step in answer["story"]["rounds"]:
        n_scored += len(step["items"])
        found |= {item["id"] for item in step["items"]} & final
        if len(found) == min(k, len(final)):
            break
    return n_scored


def test_a_search_shows_titles_texts_and_exact_scores_in_order(page: Page) -> None:
    page.open()
    page.search(QUERY)
    page.tab.wait("document.querySelector('.hit')")
    hits = page.answer()["hits"]
    assert len(hits) == 10
    assert page.titles() == [hit["title"] for hit in hits]
    assert page.tab.texts(".hit .id") == [hit["id"] for hit in hits]
    assert page.tab.texts(".hit .text") == [hit["text"] for hit in hits]
    shown = [float(text) for text in page.tab.texts(".hit .score")]
    by_id = {item.id: item for item in corpus()}
    assert shown == pytest.approx([overlap(QUERY, by_id[hit["id"]].full_text) for hit in hits], abs=0.006)
    assert shown == sorted(shown, reverse=True)


def test_an_item_without_a_title_is_called_by_its_id_above_its_text(chromium: Browser, tmp_path: Path) -> None:
    path, scorer = tmp_path / "plain.anncur", Overlap()
    items = [anncur.Item(item.id, f"{item.text} at length, " * 20) for item in corpus(60)]
    anncur.Index.build(items, scorer, path=path, retrievers=["bm25"], progress=False).close()
    with serving(path, scorer) as url, page_of(chromium, url) as page:
        page.open(QUERY, budget=20)
        hits = page.answer()["hits"]
        assert page.titles() == [hit["id"] for hit in hits]
        assert page.tab.texts(".hit .id") == []
        page.tab.click(".hit .text button")
        assert page.tab.texts(".hit .text")[0] == f"{hits[0]['text'].strip()} less"


def test_terms_of_the_query_are_marked_in_titles_and_texts(page: Page) -> None:
    page.open("birds and small Things")
    marked = {text.lower() for text in page.tab.texts(".hit mark")}
    assert {"small", "bird", "thing"} >= marked >= {"small", "thing"}


def test_the_summary_says_what_the_budget_bought(page: Page) -> None:
    page.open(QUERY)
    answer = page.answer()
    assert f"{answer['calls']} of 120 items scored" in page.tab.text("#summary")
    assert f"{answer['n_rounds']} round" in page.tab.text("#summary")
    assert re.search(r"\d% estimated recall", page.tab.text("#summary"))


def test_a_link_asks_for_the_same_search_again(page: Page) -> None:
    page.open(QUERY, k=3, budget=33, method="adacur")
    body = {key: page.answer()[key] for key in ("query", "method")}
    assert body == {"query": QUERY, "method": "adacur"}
    assert len(page.titles()) == 3
    assert page.answer()["calls"] <= 33
    assert page.tab.text("#budget-value") == "33 pairs"


def test_the_address_follows_the_search_and_going_back_shows_the_one_before(page: Page) -> None:
    page.open(QUERY)
    first = page.titles()
    page.search("large blue fish")
    page.tab.wait("answers.length === 2 && location.hash.includes('q=large+blue+fish')")
    page.tab.wait(f"document.querySelector('.hit h3').innerText !== {json.dumps(first[0])}")
    page.tab.evaluate("history.back()")
    page.tab.wait(f"document.querySelector('.hit h3').innerText === {json.dumps(first[0])}")
    assert page.titles() == first
    assert page.tab.evaluate("document.getElementById('query').value") == QUERY


def test_brackets_mark_a_mention_where_it_is_asked_for(page: Page) -> None:
    page.open()
    page.tab.click("#marked")
    page.search("small red [bird]")
    page.tab.wait("answers.length && location.hash.includes('marked')")
    best = page.answer()["hits"][0]
    item = next(item for item in corpus() if item.id == best["id"])
    assert best["score"] == pytest.approx(overlap("small red bird", item.full_text))  # without the brackets
    assert page.answer()["query"] == "small red [bird]"  # as a service shows a query that has a mention
    page.search("no mention")
    page.tab.wait("document.querySelector('.notice')")
    assert "exactly one mention in [brackets]" in page.tab.text("#notice")


@pytest.mark.parametrize("typed", ["the [bat] flew", "😀 [bat]", "[a bat]", r"list\[0] of [bats]", r"a \ [bat\[]"])
def test_a_marked_query_is_read_as_the_library_reads_it(page: Page, typed: str) -> None:
    page.open()
    query = anncur.Query.marked(typed)
    script = "import('/page/words.js').then(({{parseMarked}}) => parseMarked({}))"
    assert query.mention is not None
    assert page.tab.evaluate(script.format(json.dumps(typed))) == {"text": query.text, "mention": list(query.mention)}


@pytest.mark.parametrize("typed", ["no brackets", "[ ]", "an open [bracket", "a [b] and [c]", r"a \[b]"])
def test_a_query_without_one_mention_is_no_marked_query(page: Page, typed: str) -> None:
    page.open()
    with pytest.raises(anncur.InputError):
        anncur.Query.marked(typed)
    script = "import('/page/words.js').then(({{parseMarked}}) => parseMarked({}))"
    assert page.tab.evaluate(script.format(json.dumps(typed))) is None


def test_the_scrubber_goes_through_the_rounds(page: Page) -> None:
    page.open(QUERY)
    rounds = page.answer()["story"]["rounds"]
    assert len(rounds) >= 3
    page.tab.evaluate("document.getElementById('scrubber').focus()")
    page.tab.press("Home")
    n_scored, seen = 0, []
    for number, step in enumerate(rounds, start=1):
        n_scored += len(step["items"])
        seen += step["items"]
        assert f"Round {number} of {len(rounds)}" in page.tab.text("#story .caption")
        assert page.tab.evaluate("document.querySelectorAll('.map circle.scored').length") == n_scored
        best = sorted(seen, key=lambda item: -item["score"])[:5]
        assert page.tab.texts("#story ol.bars li:not(.axis) .label") == [item["label"] for item in best]
        assert page.tab.evaluate("document.querySelectorAll('.map circle.best').length") == len(best)
        page.tab.press("ArrowRight")
    page.tab.evaluate("document.activeElement.blur()")
    page.tab.press("ArrowLeft")  # also where the scrubber hasn't the focus
    assert f"Round {len(rounds) - 1} of" in page.tab.text("#story .caption")


def test_bars_have_the_prior_the_posterior_its_spread_and_the_score(page: Page) -> None:
    page.open(QUERY)
    page.tab.evaluate("document.getElementById('scrubber').focus()")
    page.tab.press("Home", "ArrowRight")
    parts = ("exact", "end", "prior", "posterior", "spread")
    counts = {part: page.tab.evaluate(f"document.querySelectorAll('ol.bars .bar .{part}').length") for part in parts}
    assert set(counts.values()) == {5}
    assert "posterior" in page.tab.evaluate("document.querySelector('ol.bars li').textContent")


def test_colours_of_scored_items_are_those_of_their_rounds(page: Page) -> None:
    page.open(QUERY)
    rounds = page.answer()["story"]["rounds"]
    fills = page.tab.evaluate(
        "Object.fromEntries(Array.from(document.querySelectorAll('.map circle.scored'),"
        " (each) => [each.dataset.item, each.getAttribute('fill')]))"
    )
    of_rounds = [{fills[item["id"]] for item in step["items"]} for step in rounds]
    assert all(len(colours) == 1 for colours in of_rounds)
    assert len(set.union(*of_rounds)) == len(rounds)


def test_the_play_button_runs_to_the_last_round(page: Page) -> None:
    page.open(QUERY)
    page.tab.click("#play")
    page.tab.wait("document.getElementById('scrubber').value === '1'")
    page.tab.wait("document.getElementById('play').getAttribute('aria-label') === 'Play'")
    assert page.tab.evaluate("document.getElementById('scrubber').value === document.getElementById('scrubber').max")


def test_the_curve_says_where_the_search_could_have_stopped(page: Page) -> None:
    page.open(QUERY, budget=100)
    answer = page.answer()
    settled = settled_after(answer, 5)
    assert settled < answer["calls"]
    assert "you could have stopped here" in page.tab.text(".curve")
    assert f"After {settled} items the best 5 didn't change any more" in page.tab.text("#story .advice")


def test_a_round_is_chosen_on_the_curve(page: Page) -> None:
    page.open(QUERY)
    page.tab.click("#story .curve .point:nth-of-type(3) .target")
    page.tab.wait("document.getElementById('scrubber').value !== document.getElementById('scrubber').max")


def test_two_methods_are_compared_and_movements_drawn(page: Page) -> None:
    page.open(QUERY, budget=20)
    page.tab.evaluate("document.getElementById('other').value = 'rerank'")
    page.tab.click("#compare")
    page.tab.wait("document.querySelector('.slopes')")
    left, right = (page.answer(place)["hits"] for place in (0, 1))
    assert page.answer()["method"] == "rerank"
    shared = {hit["id"] for hit in left} & {hit["id"] for hit in right}
    same = sum(one["id"] == other["id"] for one, other in zip(left, right, strict=True))
    assert f"{len(shared)} of 5 are in both, {same} in the same place" in page.tab.text("#compared")
    assert page.tab.evaluate("document.querySelectorAll('.slopes path').length") == len(shared)
    assert page.tab.evaluate("document.querySelectorAll('.slopes path.same').length") == same
    assert page.tab.texts(".column:last-child .label") == [hit["title"] for hit in right]
    assert "compare=rerank" in page.tab.evaluate("location.hash")


def test_a_link_to_a_comparison_makes_it(page: Page) -> None:
    page.open(QUERY, compare="anncur")
    page.tab.wait("document.querySelector('.slopes')")
    assert page.tab.texts(".slopes h3") == ["posterior", "anncur"]


def test_an_exhaustive_check_shows_what_was_missed(page: Page) -> None:
    page.open(QUERY, k=10, budget=12, method="rerank")
    found = {hit["id"] for hit in page.answer()["hits"]}
    truth = true_best(corpus(), QUERY, 10)
    missed = [(truth.index(each) + 1, each) for each in truth if each not in found]
    assert missed, "this search was meant to miss something"
    page.tab.click("#check-all")
    page.tab.wait("document.querySelector('.verdict')")
    assert f"Found {10 - len(missed)} of the truly best 10" in page.tab.text(".verdict")
    assert page.tab.texts("#check .missed li b") == [f"number {rank}" for rank, _ in missed]
    assert page.tab.evaluate("document.querySelectorAll('.map .missed').length") == len(missed)
    assert "share of the truly best" in page.tab.text("#story")


def test_a_check_shows_how_far_it_is_and_can_be_cancelled(chromium: Browser, built: Path, tmp_path: Path) -> None:
    items = [anncur.Item(f"i{number}", f"{number} things") for number in range(1500)]
    anncur.Index.build(items, quick, queries(3), path=tmp_path / "many.anncur", progress=False).close()
    scorer = Overlap(latency=0.4)
    with serving(tmp_path / "many.anncur", scorer) as url, page_of(chromium, url) as page:
        page.open(QUERY)
        page.tab.click("#check-all")
        page.tab.wait("document.getElementById('check-progress')?.value >= 256")
        page.tab.click("#cancel")
        page.tab.wait("document.getElementById('check-all')")
        time.sleep(0.5)
        n_requests = len(scorer.requests)
        time.sleep(1.0)
        assert len(scorer.requests) <= n_requests + 1
        assert page.tab.text("#check [role=alert]") == ""


class Distance(Overlap):
    """Lower is better."""

    fingerprint = "distance"
    higher_is_better = False

    def score_pairs(self, pairs: Sequence[Pair]) -> list[float]:
        return [-score for score in super().score_pairs(pairs)]


def test_lower_scores_are_better_where_the_scorer_says_so(chromium: Browser, tmp_path: Path) -> None:
    path, scorer = tmp_path / "distances.anncur", Distance()
    anncur.Index.build(corpus(60), scorer, queries(), path=path, retrievers=["bm25"], progress=False).close()
    with serving(path, scorer) as url, page_of(chromium, url) as page:
        page.open(QUERY, budget=8, method="rerank")
        assert page.tab.texts("ol.bars li:not(.axis) .label") == page.titles()
        ends = page.tab.evaluate(
            "Array.from(document.querySelectorAll('ol.bars .end'), (each) => parseFloat(each.style.left))"
        )
        assert ends == sorted(ends, reverse=True)
        page.tab.click("#check-all")
        page.tab.wait("document.querySelector('.verdict')")
        leads = page.tab.texts("#check .missed li .hint")
        assert leads, "this search was meant to miss something"
        assert all("better than the last result" in lead and "-" not in lead.partition(",")[2] for lead in leads)


def test_an_empty_query_is_refused_on_the_spot(page: Page) -> None:
    page.open()
    page.search("   ")
    page.tab.wait("document.querySelector('#notice .notice')")
    assert page.tab.text("#notice") == "Type what you are looking for."
    assert page.tab.evaluate("document.activeElement.id") == "query"
    assert page.tab.evaluate("answers.length") == 0


def test_a_busy_service_says_when_to_try_again(chromium: Browser, built: Path) -> None:
    scorer = Overlap()
    with serving(built, scorer, max_running=1, max_waiting=0) as url, page_of(chromium, url) as page:
        page.open()
        scorer._latency = 1.0
        slow = threading.Thread(
            target=httpx.post, args=[f"{url}/v1/search"], kwargs={"json": {"query": "old tree"}, "timeout": 60}
        )
        slow.start()
        wait_until(lambda: len(scorer.requests) > 0)
        page.search(QUERY)
        page.tab.wait("document.querySelector('#notice button')")
        assert "The service is busy." in page.tab.text("#notice")
        assert page.tab.evaluate("document.querySelector('#notice button').disabled")
        assert "Try again in" in page.tab.text("#notice button")
        scorer._latency = 0.0
        slow.join()
        page.tab.wait("!document.querySelector('#notice button').disabled")
        page.tab.click("#notice button")
        page.tab.wait("document.querySelector('.hit')")
        assert page.tab.text("#notice") == ""


def test_a_token_is_asked_for_and_kept_in_the_tab_only(chromium: Browser, built: Path) -> None:
    tokens = AccessTokens(TOKEN.encode(), None)
    with serving(built, Overlap(), tokens=tokens) as url, page_of(chromium, url) as page:
        page.tab.open(f"{url}/#{urlencode({'q': QUERY})}")
        for token in ("another-token-of-mine", TOKEN):
            page.tab.wait("document.querySelector('#token')?.value === ''")
            page.tab.click("#token")
            page.tab.type(token)
            page.tab.press("Enter")
        page.tab.wait("document.querySelector('.hit')")
        assert page.tab.evaluate("[document.cookie, JSON.stringify(localStorage)].join().includes('token')") is False
        assert TOKEN not in page.tab.evaluate("location.href + document.documentElement.outerHTML")


def test_a_scorer_that_is_down_is_named_and_first_guesses_are_offered(chromium: Browser, built: Path) -> None:
    scorer = Overlap()
    with serving(built, scorer) as url, page_of(chromium, url) as page:
        scorer.is_down = True
        page.open()
        page.search(QUERY)
        page.tab.wait("document.querySelectorAll('#notice button').length === 2")
        assert "The scorer doesn't answer." in page.tab.text("#notice")
        assert "secret" not in page.tab.text()
        page.tab.click("#notice button:last-child")
        page.tab.wait("document.querySelector('.hit')")
        assert set(page.tab.texts(".hit .score")) == {"unscored"}
        assert "first guesses, without scores" in page.tab.text("#notice")


def test_a_service_that_is_gone_is_reported_and_asked_again(chromium: Browser, built: Path) -> None:
    with page_of(chromium, "") as page:
        with serving(built, Overlap()) as url:
            Page(page.tab, url).open()
        page.search(QUERY)
        page.tab.wait("document.querySelector('#notice button')")
        assert "The service can't be reached." in page.tab.text("#notice")


def test_links_that_make_no_sense_are_read_as_far_as_they_do(page: Page) -> None:
    page.open(QUERY, k="-3", budget="lots", method="<b>", index="../../etc", compare="?")
    assert len(page.titles()) == 10
    assert page.answer()["method"] == "posterior"


def test_everything_can_be_done_with_keys_alone(page: Page) -> None:
    page.open()
    page.tab.press("/")
    page.tab.type(QUERY)
    page.tab.press("Tab", "Tab", "Tab", "ArrowLeft", "Tab", "ArrowLeft")
    assert page.tab.evaluate("document.activeElement.id") == "budget"
    page.tab.press("Shift+Tab", "Shift+Tab", "Shift+Tab", "Enter")
    page.tab.wait("document.querySelector('.hit')")
    assert len(page.titles()) == 5
    reach(page.tab, "play")
    page.tab.press(" ")
    page.tab.wait("document.getElementById('play').getAttribute('aria-label') === 'Pause'")
    page.tab.press(" ", "Tab", "Home", "ArrowRight")
    assert "Round 2 of" in page.tab.text("#story .caption")
    reach(page.tab, "check-all")
    page.tab.press("Enter")
    page.tab.wait("document.querySelector('.verdict')")
    reach(page.tab, "other")
    reach(page.tab, "compare")
    page.tab.press("Enter")
    page.tab.wait("document.querySelector('.slopes')")


def reach(tab: Tab, id: str) -> None:
    """Press Tab until an element has the focus, and see that it shows."""
    for _ in range(60):
        if tab.evaluate("document.activeElement.id") == id:
            assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            return
        tab.press("Tab")
    raise AssertionError(f"Tab never came to {id}")


def test_every_control_has_a_name(page: Page) -> None:
    page.open(QUERY, compare="rerank")
    page.tab.wait("document.querySelector('.slopes')")
    page.tab.send("Accessibility.enable")
    nodes = page.tab.send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "slider", "searchbox", "combobox", "image", "link", "region", "progressbar"}
    found = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    assert {node["role"]["value"] for node in found} >= {"button", "slider", "searchbox", "combobox", "image"}
    assert [node for node in found if not node.get("name", {}).get("value")] == []


HOSTILE = [
    "<script>fire('script')</script>",
    "<img src=x onerror=\"fire('onerror')\">",
    "<svg onload=\"fire('onload')\"><style>*{display:none}</style>",
    '"><iframe srcdoc="<script>parent.fire(\'frame\')</script>"></iframe>',
    "javascript:fire('link')",
    "</title></textarea><b autofocus onfocus=fire('focus') tabindex=0>",
]


@pytest.fixture(scope="module")
def hostile_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("hostile") / "hostile.anncur"
    items = [anncur.Item(text, f"{text} bird", title=f"{text} small", metadata={text: text}) for text in HOSTILE]
    anncur.Index.build([*items, *corpus(30)], quick, queries(5), path=path, retrievers=["bm25"], progress=False).close()
    with serving(path, Overlap()) as found:
        yield found


def test_nothing_fires_of_what_items_hold(chromium: Browser, hostile_url: str) -> None:
    with page_of(chromium, hostile_url) as page:
        page.open("small bird", k=len(HOSTILE), budget=36, compare="rerank")
        page.tab.wait("document.querySelector('.slopes')")
        page.tab.click("#check-all")
        page.tab.wait("document.querySelector('.verdict')")
        page.tab.click("#play")
        page.tab.wait("document.getElementById('play').getAttribute('aria-label') === 'Pause'")
        page.tab.wait("document.getElementById('play').getAttribute('aria-label') === 'Play'")
        assert set(page.titles()) == {" ".join(f"{text} small".split()) for text in HOSTILE}
        assert_nothing_fired(page)


@pytest.mark.parametrize("query", HOSTILE)
def test_nothing_fires_of_what_a_query_holds(chromium: Browser, hostile_url: str, query: str) -> None:
    with page_of(chromium, hostile_url) as page:
        page.open(query, index=query, compare=query)
        assert page.answer()["query"] == query
        assert_nothing_fired(page)


def assert_nothing_fired(page: Page) -> None:
    """No handler of an item ran, and no element was made of one."""
    assert page.tab.evaluate("fired") == []
    assert page.tab.evaluate("document.querySelectorAll('main :is(script, iframe, style, img)').length") == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(
    chromium: Browser, built: Path, tmp_path: Path, theme: str
) -> None:
    long = [anncur.Item("long" * 60, f"{QUERY} {'Donaudampfschifffahrt' * 40}", title="bird" * 80), *corpus(60)]
    path = tmp_path / "long.anncur"
    anncur.Index.build(long, quick, queries(5), path=path, retrievers=["bm25"], progress=False).close()
    options = {**PHONE, "prefers_color_scheme": theme}
    with serving(path, Overlap()) as url, page_of(chromium, url, **options) as page:
        page.open()
        assert not page.is_too_wide
        page.open(QUERY + " " + "x" * 300, k=50, budget=61, compare="rerank")
        page.tab.wait("document.querySelector('.slopes')")
        assert "bird" * 80 in page.titles()
        assert page.tab.evaluate("document.documentElement.clientWidth") == PHONE["width"]
        assert not page.is_too_wide
        page.tab.click("#check-all")
        page.tab.wait("document.querySelector('.verdict')")
        assert not page.is_too_wide
        small = "Array.from(document.querySelectorAll('button, select, input')).filter((each) =>"
        small += " each.offsetParent && each.offsetHeight < 24).map((each) => each.outerHTML)"
        assert page.tab.evaluate(small) == []


def test_colours_follow_the_system_until_the_button_says_otherwise(chromium: Browser, url: str) -> None:
    lightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    with page_of(chromium, url, prefers_color_scheme="dark") as page:
        page.open(QUERY)
        assert page.tab.evaluate(lightness) < 60
        page.tab.click("#theme")
        assert page.tab.text("#theme") == "Theme: light"
        assert page.tab.evaluate(lightness) > 200
        page.open(QUERY)  # it is kept
        assert page.tab.evaluate(lightness) > 200
        page.tab.click("#theme")
        page.tab.click("#theme")
        assert page.tab.text("#theme") == "Theme: auto"


def test_nothing_moves_for_people_who_want_no_motion(chromium: Browser, url: str) -> None:
    longest = "Math.max(...Array.from(document.querySelectorAll('*'), (each) =>"
    longest += " parseFloat(getComputedStyle(each).transitionDuration)))"
    for preference, moves in (("reduce", False), ("no-preference", True)):
        with page_of(chromium, url, prefers_reduced_motion=preference) as page:
            page.open(QUERY)
            assert (page.tab.evaluate(longest) > 0) is moves


def test_a_change_of_the_index_shows_in_the_next_search(chromium: Browser, folder: Path) -> None:
    tokens = AccessTokens(None, TOKEN.encode())
    with serving(folder, Overlap(), tokens=tokens) as url, page_of(chromium, url) as page:
        page.open(QUERY)
        new = {"items": [{"id": "new", "title": "brand new", "text": "zebra crossing"}]}
        httpx.post(
            f"{url}/v1/items", json=new, headers={b"Authorization": b"Bearer " + TOKEN.encode()}
        ).raise_for_status()
        page.search("zebra crossing")
        page.tab.wait("document.querySelector('.hit h3').innerText === 'brand new'")
        assert "of 121 items scored" in page.tab.text("#summary")
        assert "121" in page.tab.text("#facts")
        dots = page.tab.evaluate("Array.from(document.querySelectorAll('.map circle'), (each) => each.dataset.item)")
        assert len(set(dots)) == len(dots) == 121


def test_one_of_several_indexes_is_chosen(chromium: Browser, built: Path, tmp_path: Path) -> None:
    anncur.Index.build(corpus(30), quick, queries(5), path=tmp_path / "few.anncur", progress=False).close()
    folders = {"things": built, "few": tmp_path / "few.anncur"}
    indexes = [ServedIndex.open(name, folder, Overlap()) for name, folder in folders.items()]
    with serving_in_thread(*indexes) as url, page_of(chromium, url) as page:
        page.open(QUERY, index="few")
        assert "of 30 items scored" in page.tab.text("#summary")
        reach(page.tab, "index")
        page.tab.press("ArrowUp")
        page.search(QUERY)
        page.tab.wait("answers.length === 2 && document.getElementById('summary').innerText.includes('120')")
        assert "“things”" in page.tab.text("#facts")
        assert "index=things" in page.tab.evaluate("location.hash")


def test_facts_of_the_index_are_shown_with_or_without_a_curve(page: Page) -> None:
    page.open()
    assert "120" in page.tab.text("#facts")
    assert "bm25" in page.tab.text("#facts")
    facts = page.tab.evaluate("fetch('/v1/indexes').then((found) => found.json())")["indexes"][0]
    has_curve = page.tab.evaluate("document.querySelectorAll('#facts .expected').length")
    assert has_curve == len(facts["expected_recall"])


def test_the_page_loads_nothing_from_elsewhere(page: Page) -> None:
    page.open(QUERY)
    loaded = page.tab.evaluate("performance.getEntriesByType('resource').map((each) => new URL(each.name).origin)")
    assert len(loaded) > 10
    assert set(loaded) == {page.url}
