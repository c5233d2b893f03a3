"""`nmt prepare` with unusual files and wrong options."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.checks import Result, assert_user_error
from support.prepared import meta
from support.toy_corpus import corpus

# Two files, and the outcome: a number of pairs, or an error.
NASTY = [
    (b"Work.\r Plan it.\r\nb\r\n", b"x\ny\n", 2),
    (b"a\nb", b"x\ny\n", 2),
    (b"a\nb\n\n", b"x\ny\n", "a has 3 lines, but b has 2"),
    (b"a\x0bb\x0cc\nd\xc2\x85e\xe2\x80\xa8f\n", b"x\ny\n", 2),
    (b"caf\xe9\nb\n", b"x\ny\n", "a, line 1, byte 4: not UTF-8 (0xe9)"),
    (b"a\n\xed\xa0\x80\n", b"x\ny\n", "a, line 2, byte 1: not UTF-8 (0xed)"),
    ("a\nb\n".encode("utf-16"), b"x\ny\n", "UTF-16"),
    (b"a\nb\0\n", b"x\ny\n", "a, line 2, byte 2: a NUL byte"),
    (b"", b"", "the train corpus is empty"),
    (b"", b"x\n", "a has 0 lines, but b has 1"),
    (b"\n\n", b"\n \n", "all 2 training pairs were dropped: empty 2"),
    (b"same\n", b"same \n", "dropped: identical 1"),
    (b"same\n", b"same", "a and b have the same content"),
]


@pytest.mark.parametrize(("source", "target", "outcome"), NASTY)
def test_unusual_files(nmt, write, tmp_path, source, target, outcome):
    write("a", source)
    write("b", target)
    files = ("--source", "a", "--target", "b", "--source-lang", "en", "--target-lang", "de", "--out", "out")
    result = nmt("prepare", *files, "--vocab-size", "8")
    if isinstance(outcome, int) and result.code:  # only the size of the vocabulary may be wrong
        size = next(word for word in result.err.split() if word.isdigit() and int(word) != 8)
        result = nmt("prepare", *files, "--vocab-size", int(size) + 1)
    if isinstance(outcome, int):
        assert result.code == 0, result.err
        assert meta(tmp_path / "out")["report"]["read"] == outcome
    else:
        assert_user_error(result, outcome)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


# All files in one process, which costs far less than a process for each file.
IN_C_LOCALE = """
import json, sys
from pathlib import Path
from nmt_cli.data.prepare import prepare
from nmt_cli.errors import NmtError
from nmt_cli.recipe.load import load_recipe

def outcome(number):
    files = [f"{number}/a", f"{number}/b"]
    for size in range(8, 30):
        recipe = load_recipe(None, {"data.train": files, "data.prepared": f"{number}/out", "vocab.size": size})
        try:
            return prepare(recipe).read
        except NmtError as error:
            if "pieces are too few" not in error.message:
                return error.message + error.hint

print(json.dumps([outcome(number) for number in range(int(sys.argv[1]))]))
"""


def test_unusual_files_in_the_c_locale(write, tmp_path):
    for number, (source, target, _) in enumerate(NASTY):
        write(f"{number}/a", source)
        write(f"{number}/b", target)
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", IN_C_LOCALE, str(len(NASTY))]
    outcomes = json.loads(subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, check=True).stdout)
    for number, (outcome, (_, _, expected)) in enumerate(zip(outcomes, NASTY, strict=True)):
        if isinstance(expected, int):
            assert outcome == expected
        else:
            assert expected in outcome.replace(f"{number}/", "")


def test_error_about_the_vocabulary_size_names_the_largest_possible(nmt, write, tmp_path):
    write("a.en", "hello world\nnice to see you\n")
    write("b.de", "hallo Welt\nschön dich zu sehen\n")
    result = nmt("prepare", "--source", "a.en", "--target", "b.de", "--out", "out", "--vocab-size", "8000")
    assert_user_error(result, "too small for 8000 pieces: at most ", "vocab.size (--vocab-size)")
    most = int(result.err.split("at most ")[1].split()[0])
    assert nmt("prepare", "--source", "a.en", "--target", "b.de", "--out", "out", "--vocab-size", most).code == 0
    assert_user_error(
        nmt("prepare", "--source", "a.en", "--target", "b.de", "--out", "x", "--vocab-size", most + 1), f"{most} can"
    )
    assert_user_error(
        nmt("prepare", "--source", "a.en", "--target", "b.de", "--out", "x", "--vocab-size", 8), "too few"
    )
    assert not (tmp_path / "x").exists()


MISTAKES = [
    ((), "neither a recipe nor training files are named"),
    (("none-such",), "there is no recipe none-such"),
    (("demi",), "did you mean the shipped recipe demo?"),
    (("folder",), "folder is a folder without a recipe.toml"),
    (("--source", "a.en", "--target", "a.de"), "--out must name the folder"),
    (("--source", "a.en", "--out", "x"), "--source is given 1 times, but --target 0 times"),
    (("--source", "none.en", "--target", "a.de", "--out", "x"), "there is no file"),
    (("--source", "-", "--target", "-", "--out", "x"), "standard input (-) is named twice"),
    (("--source", "a.en", "--target", "a.de", "--out", "a.en"), "a.en is a file"),
    (
        ("--source", "a.en", "--target", "a.de", "--out", "folder"),
        "nmt did not write: precious.txt",
    ),
    (
        ("--source", "a.en", "--target", "a.de", "--out", "folder", "--force"),
        "nmt did not write: precious.txt",
    ),
    (("--source", "cut.gz", "--target", "a.de", "--out", "x"), "cut.gz is cut off"),
    (("--tsv", "a.en", "--out", "x"), "a.en, line 1: 1 column"),
    (("--source", "folder", "--target", "a.de", "--out", "x"), "cannot read"),
    (("--source", "a.en", "--target", "a.de", "--out", "x", "--set", "vocab.siez=5"), "did you mean vocab.size?"),
    (("--source", "a.en", "--target", "a.de", "--out", "x", "--vocab-size", "many"), "--vocab-size"),
    (("--nonsense",), "--nonsense"),
    (("broken.toml",), "not valid TOML"),
    (("a.en",), "prepare it first: nmt prepare --source a.en --target"),
    (("my corp/a b.en",), "nmt prepare --source 'my corp/a b.en' --target"),
    (("my corp/a.tsv",), "nmt prepare --tsv 'my corp/a.tsv' --out"),
    (("data/nothere",), "there is no recipe data/nothere, and no folder of this name"),
    (("nothere/x",), "hint: nmt recipes lists the shipped recipes"),
    (("data/demo",), "--out data/demo makes such a folder; did you mean the shipped recipe demo?"),
    (("a.tsv.xz",), "prepare it first: nmt prepare --tsv a.tsv.xz --out"),
    (("large.en",), "prepare it first: nmt prepare --source large.en --target"),
    (("empty.en",), "prepare it first: nmt prepare --source empty.en --target"),
    (("a.en", "a.de"), "text files are named with options: nmt prepare --source FILE --target FILE"),
    (("demo", "--add-to", "folder"), "--add-to needs training text"),
    (("demo", "--source", "none.en", "--target", "a.de", "--out", "x"), "hint: paths are relative"),
    (("cut.gz",), "prepare it first: nmt prepare --source cut.gz --target"),
    *(
        (("--source", "a.en", "--target", "a.de", "--out", "x", *options), f"{option} and --set {key} are both given")
        for option, key, options in (
            ("--out", "data.prepared", ("--set", "data.prepared=y")),
            ("--vocab-size", "vocab.size", ("--vocab-size", 60, "--set", "vocab.size=60")),
            ("--source-lang", "data.source_lang", ("--source-lang", "cs", "--set", "data.source_lang=en")),
            ("--target-lang", "data.target_lang", ("--target-lang", "cs", "--set", "data.target_lang=en")),
            ("--source", "data.train", ("--set", 'data.train=[["b.en", "b.de"]]')),
            ("--valid-tsv", "data.valid", ("--valid-tsv", "v.tsv", "--set", "data.valid=w.tsv")),
            (
                "--test-source",
                "data.test",
                ("--test-source", "a.en", "--test-target", "a.de", "--set", "data.test=w.tsv"),
            ),
            ("--add-to", "vocab.reuse", ("--add-to", "old", "--set", "vocab.reuse=other")),
        )
    ),
    (("--tsv", "a.tsv", "--set", "data.prepared=y", "--set", "data.train=b.tsv"), "--tsv and --set data.train are"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_wrong_options_and_files_are_user_errors(nmt, write, small, tmp_path, options, message):
    write("folder/precious.txt", "keep me")
    write("cut.gz", gzip.compress(corpus(400)[0].encode())[:-20])
    write("broken.toml", "[data\n")
    write("a.tsv.xz", b"\xff")
    write("large.en", "a line of text\n" * 100_000)
    write("empty.en", "# a comment\n")
    write("my corp/a b.en", "A line.\n")
    write("my corp/a.tsv", "A line.\tEine Zeile.\n")
    before = sorted(path for path in tmp_path.rglob("*"))
    assert_user_error(nmt("prepare", *options), message)
    assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("option", ["--source", "--out"])
def test_a_path_that_is_not_utf8_is_refused_before_any_work(small, tmp_path, option):
    """recipe.toml and meta.json are UTF-8."""
    name = os.fsdecode(b"caf\xe9.en")
    words = [*small[:2], name, *small[3:]] if option == "--source" else [*small, option, name]
    if option == "--source":
        (tmp_path / "a.en").rename(tmp_path / name)
    before = sorted(tmp_path.iterdir())
    command = [sys.executable, "-m", "nmt_cli", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert_user_error(
        Result(done.returncode, done.stdout, done.stderr.decode()), "the name /", "caf\\udce9.en is not UTF-8"
    )
    assert sorted(tmp_path.iterdir()) == before


def test_damaged_meta_json_is_a_user_error(nmt, small, tmp_path):
    nmt(*small)
    (tmp_path / "out/meta.json").write_text("{")
    assert_user_error(nmt(*small), "meta.json cannot be read")


@pytest.mark.parametrize("folder", ["[bold]", "[/x]"])
def test_square_brackets_in_paths_are_printed_as_they_are(nmt, write, tmp_path, folder):
    """rich takes [bold] for markup, and fails on [/x]."""
    for name, text in zip(("a.en", "a.de"), corpus(300, 1000), strict=True):
        write(f"{folder}/{name}", text)
    files = ("--source", f"{folder}/a.en", "--target", f"{folder}/a.de", "--vocab-size", 60)
    result = nmt("prepare", *files, "--out", f"{folder}/out")
    assert result.code == 0 and f"written to {folder}/out; next: nmt train '{folder}/out'\n" in result.err, result.err
    assert f"{folder}/out is up to date" in nmt("prepare", *files, "--out", f"{folder}/out").err
    assert_user_error(nmt("prepare", *files, "--vocab-size", 61, "--out", f"{folder}/out"), f"{folder}/out exists")
    assert_user_error(nmt("prepare", f"{folder}/none.toml"), f"there is no recipe {folder}/none.toml\n")
    assert_user_error(nmt("prepare", "--tsv", f"{folder}/none", "--out", "x"), f"there is no file {folder}/none")
    assert f"train  {folder}/a.en + {folder}/a.de" in nmt("prepare", *files, "--out", "x", "--dry-run").text
    assert f"{folder}/demo/dev.en  500 lines" in nmt("demo", f"{folder}/demo").text
    assert_user_error(nmt("recipes", f"{folder}"), f"{folder} is a folder without a recipe.toml")


def test_dropped_pairs_are_shown_with_their_square_brackets(nmt, write):
    english, german = corpus(300, 1000)
    write("a.en", english + "[/b] [bold]same[/bold] :smile:\n")
    write("a.de", german + "[/b] [bold]same[/bold] :smile:\n")
    result = nmt("prepare", "--source", "a.en", "--target", "a.de", "--vocab-size", 60, "--out", "out")
    assert result.code == 0 and "[/b] [bold]same[/bold] :smile:" in result.text, result.err


def test_a_full_disk_is_an_error(small, tmp_path):
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "nmt_cli", *small]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert b"No space left" in done.stderr and b"Traceback" not in done.stderr
