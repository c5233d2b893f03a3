"""`nmt recipes` and `nmt demo`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checks import assert_user_error, on_terminal

ROOT = Path(__file__).parents[2]


def test_recipes_are_listed_and_printed(nmt):
    listed = nmt("recipes").text
    for path in (ROOT / "recipes").glob("*.toml"):
        assert path.stem in listed
    assert nmt("recipes", "demo").text == (ROOT / "recipes/demo.toml").read_text(encoding="utf-8")
    keys = nmt("recipes", "--keys").text
    assert "train.warmup" in keys and "4000" in keys
    assert_user_error(nmt("recipes", "demo", "--keys"), "--keys lists the keys of every recipe")


def test_recipe_that_is_not_utf8_is_not_printed(nmt, write):
    write("latin1.toml", b"# one\n# caf\xe9\n")
    assert_user_error(nmt("recipes", "latin1.toml"), "latin1.toml, line 2, byte 6: not UTF-8", "iconv -f LATIN1")


@pytest.mark.parametrize("columns", [60, 200])
def test_list_of_recipes_shows_whole_sentences(forked, tmp_path, columns):
    lines = on_terminal(forked, "stdout", columns, "recipes", cwd=tmp_path)
    assert max(map(len, lines)) <= columns
    shown = " ".join(" ".join(line[22:] for line in lines).split())  # the names take 20 columns
    for path in (ROOT / "recipes").glob("*.toml"):
        paragraph = path.read_text(encoding="utf-8").split("\n#\n")[0].replace("\n#", "").removeprefix("# ")
        assert paragraph.endswith(".") and paragraph in shown


@pytest.mark.parametrize(
    ("recipe", "missing", "hint"),
    [
        ("demo", "demo/train.en", "nmt demo writes"),
        ("demo-conv", "demo/train.en", "nmt demo writes"),
        ("multi30k-en-de-quick", "multi30k/train.en.gz", "https://github.com/multi30k/dataset"),
        ("multi30k-en-fr", "multi30k/train.en.gz", "test_2016_flickr.fr.gz"),
        ("tatoeba-en-de", "tatoeba-en-de/train.en.gz", "https://tatoeba.org"),
        ("transformer-big", "wmt14-en-de/train.en", "https://www.statmt.org/wmt14/"),
    ],
)
def test_missing_corpus_is_an_error_that_says_where_to_get_it(nmt, recipe, missing, hint):
    assert_user_error(nmt("prepare", recipe), f"there is no file {missing}", hint)


def test_every_recipe_names_the_files_of_its_corpus():
    from nmt_cli.recipe.help import corpus_note
    from nmt_cli.recipe.load import load_recipe, shipped_recipes

    for name, path in shipped_recipes().items():
        data = load_recipe(path).data
        files = {file.name for corpora in data.corpora().values() for corpus in corpora for file in corpus.paths}
        note = corpus_note(name)
        assert str(data.folder) in note, name
        if not name.startswith(("demo", "transformer")):
            assert all(file in note for file in files), name


def test_demo_writes_its_files_and_overwrites_nothing(nmt, tmp_path):
    result = nmt("demo", "here")
    assert result.code == 0, result.err
    files = {path.name: path.read_text(encoding="utf-8").splitlines() for path in (tmp_path / "here").iterdir()}
    assert {name: len(lines) for name, lines in files.items()} == {
        **{"train.en": 20_000, "train.fr": 20_000, "dev.en": 500, "dev.fr": 500, "test.en": 500, "test.fr": 500},
        "test.align": 500,
    }
    assert nmt("demo", "here").code == 0  # the same content again
    (tmp_path / "here/dev.en").write_text("mine\n")
    assert_user_error(nmt("demo", "here"), "dev.en exists with other content", "--force")
    assert (tmp_path / "here/dev.en").read_text() == "mine\n"
    assert nmt("demo", "here", "--force").code == 0
    assert (tmp_path / "here/dev.en").read_text() != "mine\n"
