"""A headless Chromium, driven over the DevTools protocol: what tests of the page and pictures of it are made of.

Only a socket and JSON: no driver program that would have to match the browser's version."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--remote-debugging-port=0",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # nothing beyond this machine
]
SECONDS = 60.0  # for anything to come
MODIFIERS = {"Shift": 8}
KEYS = {  # the code of a key, and the text that it types
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    " ": (32, " "),
    "End": (35, ""),
    "Home": (36, ""),
    "ArrowLeft": (37, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
    "/": (191, "/"),
}


def find_chromium() -> str | None:
    """The program of a browser that speaks the protocol; ANNCUR_CHROMIUM names another one."""
    return os.environ.get("ANNCUR_CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in a folder, until the end of the block."""
    program = find_chromium()
    assert program is not None, "there is no chromium"
    command = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield Browser(_port(folder / "DevToolsActivePort", process))
    finally:
        process.terminate()
        process.wait(timeout=SECONDS)


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + SECONDS
    while not (file.exists() and file.read_text().strip()):
        assert process.poll() is None, f"chromium ended: {(file.parent / 'log').read_text(errors='replace')[-2000:]}"
        assert time.monotonic() < deadline, "chromium didn't start"
        time.sleep(0.05)
    return int(file.read_text().split()[0])


class Browser:
    """A running browser."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    @contextlib.contextmanager
    def tab(self, *, width: int = 1200, height: int = 900, **features: str) -> Iterator[Tab]:
        """A new tab; `features` are media features such as `prefers_color_scheme="dark"`."""
        found = httpx.put(f"{self._url}/json/new", timeout=SECONDS).json()
        with connect(found["webSocketDebuggerUrl"], max_size=None) as connection:
            tab = Tab(connection)
            tab.resize(width, height)
            values = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
            tab.send("Emulation.setEmulatedMedia", features=values)
            try:
                yield tab
            finally:
                httpx.get(f"{self._url}/json/close/{found['id']}", timeout=SECONDS)


class Tab:
    """A tab: what a person does in it, what it shows, and what it complains of."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something, and wait for the answer."""
        number = next(self._ids)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv(timeout=SECONDS))
            self._note(message)
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result

    def _note(self, message: Mapping[str, Any]) -> None:
        """Keep what the browser complains of: errors of scripts, what the policy forbids, dialogs that opened."""
        kind, content = message.get("method"), message.get("params", {})
        if kind == "Runtime.exceptionThrown":
            details = content["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])
        elif kind == "Log.entryAdded" and content["entry"]["source"] in {"security", "javascript", "other"}:
            self.complaints.append(content["entry"]["text"])
        elif kind == "Page.javascriptDialogOpening":
            self.complaints.append(f"a dialog opened: {content['message']}")
            self._connection.send(
                json.dumps({"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}})
            )

    def resize(self, width: int, height: int) -> None:
        """Give it a size; narrow ones are phones."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def open(self, url: str) -> None:
        """Load an address, as a page of its own even if only the part after "#" differs."""
        self.send("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank'")
        self.send("Page.navigate", url=url)
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, awaited."""
        options = {"returnByValue": True, "awaitPromise": True, "userGesture": True}
        found = self.send("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in found, f"{expression}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + SECONDS
        while not self._holds(condition):
            assert time.monotonic() < deadline, f"it never came: {condition}; {self.text()[:2000]}; {self.complaints}"
            time.sleep(0.03)

    def _holds(self, condition: str) -> bool:
        found = self.send("Runtime.evaluate", expression=f"Boolean({condition})", returnByValue=True)
        return bool(found["result"].get("value")) and "exceptionDetails" not in found

    def text(self, selector: str = "body") -> str:
        """The text of an element as it is shown, on one line."""
        return next(iter(self.texts(selector)), "")

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that match."""
        text = "(each) => each.innerText ?? each.textContent"  # drawings have only the latter
        shown = f"Array.from(document.querySelectorAll({json.dumps(selector)}), {text})"
        return [" ".join(each.split()) for each in self.evaluate(shown)]

    def click(self, selector: str) -> None:
        """Click the middle of an element with a mouse, once it is there."""
        self.wait(f"document.querySelector({json.dumps(selector)})")
        box = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{box}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        place = self.evaluate(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({box}.getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            options = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", type=kind, **options)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.send("Input.insertText", text=text)

    def press(self, *keys: str) -> None:
        """Press keys, one after another; `Shift+Tab` with a modifier."""
        for combination in keys:
            *modifiers, key = combination.split("+")
            code, text = KEYS[key]
            event = {
                "key": key,
                "code": key,
                "windowsVirtualKeyCode": code,
                "modifiers": sum(MODIFIERS[m] for m in modifiers),
            }
            self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **event)
            self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def screenshot(self, file: Path, *, height: int | None = None) -> None:
        """Write a picture of the whole page, or of its top, as PNG."""
        size = self.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": height or size[1], "scale": 1}
        found = self.send("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(found["data"]))
