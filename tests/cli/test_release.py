"""The wheel and the sdist install into an empty environment and run the demo there: minutes, by `make test-slow`.

The sdist has every file that README.md and the other documents link to.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import DOCUMENTS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command,
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the sdist. The wheel is made from the sdist, as an installer without wheels does."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "venv", folder / "builder", folder=folder)
    python = folder / "builder" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "build", folder=folder)
    run(python, "-m", "build", "--outdir", folder, ROOT, folder=folder)
    return folder


@pytest.mark.torture
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_release_installs_and_runs_the_demo_in_an_empty_environment(kind, built, tmp_path):
    (package,) = built.glob(kind)
    run(sys.executable, "-m", "venv", "env", folder=tmp_path)
    binary = tmp_path / "env" / "bin"
    constraints = ("-c", str(ROOT / "constraints.txt"))
    run(binary / "python", "-m", "pip", "install", "--quiet", *constraints, package, folder=tmp_path)
    run(binary / "nmt", "demo", folder=tmp_path)
    run(binary / "nmt", "prepare", "demo", folder=tmp_path)
    run(binary / "nmt", "train", "demo", "--minutes", "0.5", folder=tmp_path)
    translated = run(binary / "nmt", "translate", "runs/demo", "demo/test.en", folder=tmp_path)
    assert len(translated.splitlines()) == 500
    (tmp_path / "out.fr").write_text(translated, encoding="utf-8")
    assert "BLEU" in run(binary / "nmt", "score", "out.fr", "--ref", "demo/test.fr", folder=tmp_path)


def test_the_sdist_has_all_files_that_the_documents_link_to():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = {*settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"], "README.md", "LICENSE"}
    missing = set()
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)#\s]+)|(?:src|srcset)=\"([^\"]+)\"", text)
        for link in (link or picture for link, picture in links):
            path = (document.parent / link).resolve()
            if not re.match(r"\w+:", link) and path.relative_to(ROOT.resolve()).parts[0] not in included:
                missing.add(f"{document.name}: {link}")
    assert not missing
