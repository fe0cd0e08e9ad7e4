"""Draw docs/images/page.png, a picture of the page over the bundled sample; it needs chromium.

With a folder as argument, pictures of each part in both themes and both widths are written there instead, to be looked
at after a change of the page."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image

from anncur.datasets.sample import SAMPLE_INDEX
from anncur.service.served import ServedIndex

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser, Tab, browser  # noqa: E402
from service_worlds import serving_in_thread  # noqa: E402

TARGET = ROOT / "docs" / "images" / "page.png"
LINK = {"q": "the [dog] barked at the mailman", "k": 10, "budget": 100, "method": "posterior", "marked": "yes"}
WIDTH, HEIGHT, PHONE = 1200, 1330, 390
N_COLOURS = 80  # of the file, a third of the size of all
ROUNDS_BACK = 3  # from the last round, so that some of the map is still grey


def main() -> None:
    """Draw the picture of the README, or all."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        index, profile = Path(folder) / "animals.anncur", Path(folder) / "profile"
        shutil.copytree(SAMPLE_INDEX, index)
        profile.mkdir()
        served = ServedIndex.open("animals", index, "builtin")
        with serving_in_thread(served) as url, browser(profile) as chromium:
            if len(sys.argv) > 1:
                draw_all(chromium, url, Path(sys.argv[1]))
            else:
                draw(chromium, url, TARGET)


def draw(chromium: Browser, url: str, target: Path) -> None:
    """One picture: an answer and its story."""
    with chromium.tab(width=WIDTH, height=HEIGHT, prefers_color_scheme="light") as tab:
        open_answer(tab, url)
        check(tab)
        tab.screenshot(target, height=HEIGHT)
    with Image.open(target) as image:
        full, method = image.convert("RGB"), Image.Quantize.MAXCOVERAGE  # which keeps rare colours
        full.quantize(N_COLOURS, method, kmeans=2, dither=Image.Dither.NONE).save(target, optimize=True)


def draw_all(chromium: Browser, url: str, folder: Path) -> None:
    """Each part, light and dark, wide and narrow."""
    folder.mkdir(parents=True, exist_ok=True)
    for theme in ("light", "dark"):
        for width in (WIDTH, PHONE):
            with chromium.tab(width=width, height=900, prefers_color_scheme=theme) as tab:
                draw_parts(tab, url, folder / f"{theme}-{width}")


def draw_parts(tab: Tab, url: str, start: Path) -> None:
    """The page before a search, with a mistake, with an answer, and after a check."""
    tab.open(url)
    tab.wait("document.querySelector('.idea')")
    tab.screenshot(start.with_name(f"{start.name}-welcome.png"))
    tab.click("#go")
    tab.wait("document.querySelector('.notice')")
    tab.screenshot(start.with_name(f"{start.name}-notice.png"))
    open_answer(tab, url, compare="rerank")
    tab.wait("document.querySelector('.slopes')")
    tab.screenshot(start.with_name(f"{start.name}-answer.png"))
    check(tab)
    tab.screenshot(start.with_name(f"{start.name}-checked.png"))


def open_answer(tab: Tab, url: str, **options: str) -> None:
    """Open a link, and go back some rounds; bars have come to rest."""
    tab.open(f"{url}/#{urlencode({**LINK, **options})}")
    tab.wait("document.querySelector('.hit')")
    tab.press(*["ArrowLeft"] * ROUNDS_BACK)
    tab.wait("document.getAnimations().length === 0")


def check(tab: Tab) -> None:
    """Check exhaustively."""
    tab.click("#check-all")
    tab.wait("document.querySelector('.verdict') && document.getAnimations().length === 0")


if __name__ == "__main__":
    main()
