"""What installs and runs the package elsewhere. That wheel and sdist are in order is checked by `make package`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCKERFILE, COMPOSE, UNIT = ROOT / "Dockerfile", ROOT / "compose.yaml", ROOT / "deploy" / "anncur.service"


def image_extras() -> set[str]:
    """The extras that images are built with."""
    texts = (DOCKERFILE.read_text(encoding="utf-8"), COMPOSE.read_text(encoding="utf-8"))
    return {
        extra for text in texts for found in re.findall(r"EXTRAS[=:] ?([\w,]+)", text) for extra in found.split(",")
    }


def test_images_have_no_torch() -> None:
    heavy = {
        name
        for name, needs in PROJECT["optional-dependencies"].items()
        if any(re.search(r"torch|minilm|transformers|anncur\[", need) for need in needs)
    }
    assert {"train", "st"} <= heavy
    assert image_extras()
    assert not image_extras() & heavy


def test_images_are_built_with_extras_that_there_are() -> None:
    if not (ROOT / "src" / "anncur" / "service").is_dir():
        pytest.skip("needs the service, which images are for and this version lacks")
    assert image_extras() <= set(PROJECT["optional-dependencies"])


def test_an_image_is_given_all_that_a_build_reads() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    copied = set(" ".join(re.findall(r"^COPY ((?!--from)[^\n]+) \S+$", DOCKERFILE.read_text("utf-8"), re.M)).split())
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
    assert {PROJECT["readme"], "pyproject.toml", "src"} <= copied


def test_an_image_runs_as_an_unprivileged_user_and_tells_whether_it_is_ready() -> None:
    last_stage = DOCKERFILE.read_text(encoding="utf-8").rpartition("\nFROM ")[2]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", last_stage, re.M)
    assert "HEALTHCHECK" in last_stage
    assert "/readyz" in last_stage


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("needs hadolint; `make package` installs it")
    done = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_compose_file_names_services_and_volumes_that_it_defines() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    whole = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    services = whole["services"]
    assert {"anncur", "milvus", "ray"} <= set(services)
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        assert {config["source"] for config in service.get("configs", [])} <= set(whole["configs"])
        named = {volume.split(":")[0] for volume in service.get("volumes", []) if not volume.startswith(".")}
        assert named <= set(whole["volumes"])
    assert services["anncur"]["read_only"]


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("needs systemd-analyze, of Debian's package systemd")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/anncur/bin/anncur", "/bin/true"))
    done = subprocess.run([systemd, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_pages_of_the_site_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs mkdocs-material; `make site` installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    pages = list(tmp_path.rglob("*.html"))
    assert {"index.html", "tutorial.html"} <= {page.name for page in pages}
    loaded = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?(?:https?:)?//[^>]+>")
    assert not [found for page in pages for found in loaded.findall(page.read_text(encoding="utf-8"))]
