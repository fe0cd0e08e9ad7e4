"""The page: files that are read once, served from memory, and allowed to load nothing from elsewhere.

No path comes from a request: each file has a route of its own."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from fastapi import FastAPI, Request, Response

PAGE = Path(__file__).parent / "page"
START = "index.html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"  # no text becomes HTML or script, by no function
)
HEADERS = {"Content-Security-Policy": POLICY, "X-Frame-Options": "DENY", "Cache-Control": "no-cache"}


def add_page(app: FastAPI, folder: Path = PAGE) -> frozenset[str]:
    """Serve the files of a folder, the first at `/`; the paths, which need no token because they hold no data."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix != ".py")
    for file in files:
        name = file.relative_to(folder).as_posix()
        for path in {f"/page/{name}"} | ({"/"} if name == START else set()):
            app.add_api_route(path, _serving(file), methods=["GET"], include_in_schema=False)
    served = {f"/page/{file.relative_to(folder).as_posix()}" for file in files}
    return frozenset(served | ({"/"} if files else set()))


def _serving(file: Path):  # type: ignore[no-untyped-def]  # the framework reads the types of what is returned
    content, kind = file.read_bytes(), mimetypes.guess_type(file.name)[0] or "application/octet-stream"

    async def serve(request: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return serve
