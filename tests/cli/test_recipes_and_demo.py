"""`nmt recipes` and `nmt demo`."""

from __future__ import annotations

from pathlib import Path

from support.checks import assert_user_error

ROOT = Path(__file__).parents[2]


def test_recipes_are_listed_and_printed(nmt):
    listed = nmt("recipes").text
    for path in (ROOT / "recipes").glob("*.toml"):
        assert path.stem in listed
    assert nmt("recipes", "demo").text == (ROOT / "recipes/demo.toml").read_text(encoding="utf-8")
    keys = nmt("recipes", "--keys").text
    assert "train.warmup" in keys and "4000" in keys


def test_demo_writes_its_files_and_overwrites_nothing(nmt, tmp_path):
    result = nmt("demo", "here")
    assert result.code == 0, result.err
    files = {path.name: path.read_text(encoding="utf-8").splitlines() for path in (tmp_path / "here").iterdir()}
    assert {name: len(lines) for name, lines in files.items()} == {
        **{"train.en": 20_000, "train.fr": 20_000, "dev.en": 500, "dev.fr": 500, "test.en": 500, "test.fr": 500}
    }
    assert nmt("demo", "here").code == 0  # the same content again
    (tmp_path / "here/dev.en").write_text("mine\n")
    assert_user_error(nmt("demo", "here"), "dev.en exists with other content", "--force")
    assert (tmp_path / "here/dev.en").read_text() == "mine\n"
    assert nmt("demo", "here", "--force").code == 0
    assert (tmp_path / "here/dev.en").read_text() != "mine\n"
