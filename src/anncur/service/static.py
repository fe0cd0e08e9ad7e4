"""The page: files that are read once, served from memory, and allowed to load nothing from elsewhere.

No path comes from a request: each file has a route of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI, Request, Response

PAGE = Path(__file__).parent / "page"
START = "index.html"
KINDS = {  # by the end of a file's name; no other files are served
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"  # no function may make HTML or scripts of text
)
HEADERS = {"Content-Security-Policy": POLICY, "X-Frame-Options": "DENY", "Cache-Control": "no-cache"}


def add_page(app: FastAPI, folder: Path = PAGE) -> frozenset[str]:
    """Serve the files of a folder, and the start at `/` too; the paths, which need no token: they hold no data."""
    paths = {f"/page/{file.relative_to(folder).as_posix()}": file for file in folder.rglob("*") if file.suffix in KINDS}
    if (start := folder / START).is_file():
        paths["/"] = start
    for path, file in paths.items():
        app.add_api_route(path, _serving(file), methods=["GET"], include_in_schema=False)
    return frozenset(paths)


def _serving(file: Path) -> Callable[[Request], Awaitable[Response]]:
    content, kind = file.read_bytes(), KINDS[file.suffix]

    async def serve(request: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return serve
