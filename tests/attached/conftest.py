"""Fixtures that tests of attached collections share."""

from __future__ import annotations

from pathlib import Path

import pytest

from servers import LiteFolder, MilvusServer, milvus_lite_in


@pytest.fixture(
    params=[
        pytest.param("milvus_lite", marks=pytest.mark.slow),
        pytest.param("milvus", marks=pytest.mark.processes),
    ]
)
def any_milvus(request: pytest.FixtureRequest, tmp_path: Path) -> MilvusServer | LiteFolder:
    """Either kind; a milvus-lite of its own, because one that has served many clients refuses others."""
    if request.param == "milvus_lite":
        return milvus_lite_in(tmp_path)
    found: MilvusServer | LiteFolder = request.getfixturevalue(request.param)
    return found
