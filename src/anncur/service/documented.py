"""How problems stand in the OpenAPI description: every status that a route may answer with, and no other."""

from __future__ import annotations

from typing import Any

from anncur.service.problems import KINDS, MEDIA_TYPE

SCHEMA = {"$ref": "#/components/schemas/ProblemAnswer"}
EVERYWHERE = (421, 431)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Responses of these statuses, for a route."""
    return {status: _documented(status) for status in (*statuses, *EVERYWHERE)}


def _documented(status: int) -> dict[str, Any]:
    kinds = [kind for kind in KINDS.values() if kind.status == status]
    return {
        "description": "; ".join(f"{kind.title} (`{kind.type}`)" for kind in kinds),
        "content": {MEDIA_TYPE: {"schema": SCHEMA}},
    }
