"""`nmt prepare` through the real command: what it keeps, what it refuses, and what it leaves behind."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from support.checks import assert_user_error
from support.toy_corpus import corpus

from nmt_cli.data.rules import length_rule
from nmt_cli.data.shards import Shard, ShardWriter
from nmt_cli.files import sha256_of
from nmt_cli.recipe.schema import Clean, Vocab
from nmt_cli.text.languages import in_wrong_script, scripts_of
from nmt_cli.text.vocab import learn, load_vocab


@pytest.fixture
def small(write):
    """a.en and a.de with 400 pairs, v.en and v.de with 20 others; the options that prepare them into out/."""
    for name, lines, first in (("a", 400, 1000), ("v", 20, 5000)):
        english, german = corpus(lines, first)
        write(f"{name}.en", english)
        write(f"{name}.de", german)
    return (
        *("prepare", "--source", "a.en", "--target", "a.de", "--valid-source", "v.en", "--valid-target", "v.de"),
        *("--out", "out", "--vocab-size", "60"),
    )


def meta(folder: Path) -> dict:
    return json.loads((folder / "meta.json").read_text())


def shards(folder: Path, split: str = "train") -> list[tuple[list[int], list[int]]]:
    vocab = load_vocab(folder / "vocab")
    sides = [
        Shard(folder, f"{split}.{side}", size) for side, size in zip(("source", "target"), vocab.sizes, strict=True)
    ]
    return [(a.tolist(), b.tolist()) for a, b in zip(*sides, strict=True)]


def test_force_removes_no_run(nmt, tmp_path):
    """nmt train FOLDER trains in FOLDER/run."""
    for name, text in zip(("a.en", "a.de"), corpus(300, 1000), strict=True):
        (tmp_path / name).write_text(text)
    command = ("prepare", "--source", "a.en", "--target", "a.de", "--out", "data", "--vocab-size")
    assert nmt(*command, 60).code == 0
    assert nmt(*command, 50, "--force").code == 0
    (tmp_path / "data/run").mkdir()
    assert_user_error(nmt(*command, 60, "--force"), "data contains files that nmt did not write: run")
    (tmp_path / "data/meta.json").write_text("{")
    assert_user_error(nmt(*command, 60, "--force"), "data contains files that nmt did not write: run")
    assert (tmp_path / "data/run").exists()
    (tmp_path / "data/run").rmdir()
    assert nmt(*command, 60, "--force").code == 0


def test_the_ids_are_sentencepieces_own(nmt, small, tmp_path):
    result = nmt(*small)
    assert result.code == 0, result.err
    out = tmp_path / "out"
    vocab = load_vocab(out / "vocab")
    assert vocab.joint and vocab.sizes == (60, 60)
    assert (vocab.source_lang, vocab.target_lang) == ("en", "de")  # from the files' endings
    for split, name in (("train", "a"), ("valid", "v")):
        english = (tmp_path / f"{name}.en").read_text().splitlines()
        german = (tmp_path / f"{name}.de").read_text().splitlines()
        expected = list(zip(vocab.source.encode(english), vocab.target.encode(german), strict=True))
        assert shards(out, split) == expected
        assert vocab.decode_target([ids for _, ids in shards(out, split)]) == german
    assert (out / "valid.target.txt").read_text() == (tmp_path / "v.de").read_text()
    assert [vocab.source.id_to_piece(i) for i in range(4)] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert "400" in result.text and "= kept" in result.text
    assert "\x1b" not in result.text


def test_files_and_hashes(nmt, small, tmp_path):
    nmt(*small)
    out = tmp_path / "out"
    listed = meta(out)["files"]
    there = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} - {"meta.json"}
    assert set(listed) == there
    assert all(sha256_of(out / name) == digest for name, digest in listed.items())
    assert not list(tmp_path.glob(".*"))


def test_a_second_run_does_nothing_and_other_content_is_refused(nmt, small, tmp_path, write):
    nmt(*small)
    before = meta(tmp_path / "out")["fingerprint"]
    stamp = (tmp_path / "out/meta.json").stat().st_mtime_ns
    again = nmt(*small)
    assert (again.code, again.out) == (0, b"") and "up to date" in again.err
    assert (tmp_path / "out/meta.json").stat().st_mtime_ns == stamp
    assert_user_error(nmt(*small, "--vocab-size", "61"), "other content or settings", "--force")
    write("a.en", corpus(400, 2000)[0])
    assert_user_error(nmt(*small), "other content or settings", "--force")
    assert (tmp_path / "out/meta.json").stat().st_mtime_ns == stamp
    assert nmt(*small, "--force").code == 0
    assert meta(tmp_path / "out")["fingerprint"] != before
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_same_bytes_again(nmt, small, tmp_path, kind):
    options = (
        "--set",
        f"vocab.type={kind}",
        "--set",
        "vocab.joint=false",
        "--set",
        "model.tie=none",
        "--vocab-size",
        "30",
    )
    assert nmt(*small, *options).code == 0
    assert nmt(*small, *options, "--out", "again").code == 0
    names = sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert len(names) > 10
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


# What a person would call the pair, by hand; the report must count exactly so.
PAIRS = [
    ("One two three.", "Eins zwei drei.", "kept"),
    ("One two three.", "Eins zwei drei.", "duplicates"),
    ("One  two three. ", "Eins\tzwei drei.", "duplicates"),  # the same after normalisation
    ("One two three.", "Eins, zwei, drei.", "kept"),
    ("", "Nichts.", "empty"),
    ("Nothing.", " \u200b ", "empty"),
    ("", "", "empty"),
    ("Berlin", "Berlin", "identical"),
    ("Caf\u00e9", "Cafe\u0301", "identical"),  # composed and decomposed
    ("Привет, как дела?", "Hallo, wie geht's?", "wrong_script"),
    ("Hello there.", "你好世界", "wrong_script"),
    ("The Greek letter α is small.", "Der Buchstabe α ist klein.", "kept"),
    ("five zero zero zero.", "Anders.", "overlap"),  # v.en line 1
    ("Different.", "fünf null null drei.", "overlap"),
    ("Yes.", "null " * 40, "max_ratio"),
    ("one " * 300, "eins " * 300, "max_tokens"),
    ("Short.", "Kurz.", "kept"),
]


def prepare_pairs(nmt, write, small, *options):
    english, german = corpus(300, 1000)
    write("a.en", english + "".join(source + "\n" for source, _, _ in PAIRS))
    write("a.de", german + "".join(target + "\n" for _, target, _ in PAIRS))
    return nmt(*small, *("--vocab-size", "80", "--set", "data.clean.max_ratio=2.5"), *options)


def test_every_line_is_accounted_for(nmt, write, small, tmp_path):
    result = prepare_pairs(nmt, write, small)
    assert result.code == 0, result.err
    report = meta(tmp_path / "out")["report"]
    expected = Counter(rule for _, _, rule in PAIRS)
    kept = expected.pop("kept") + 300
    assert {rule: count for rule, count in report["dropped"].items() if count} == dict(expected)
    assert report["splits"]["train"]["sentences"] == kept
    assert report["read"] == kept + sum(report["dropped"].values()) == 300 + len(PAIRS)
    # the examples say where they stand
    for example in report["examples"]:
        assert PAIRS[example["line"] - 301][2] == example["rule"]
    assert {example["rule"] for example in report["examples"]} == set(expected)
    assert "Berlin" in result.text


@pytest.mark.parametrize("rule", [rule for rule in Counter(rule for _, _, rule in PAIRS) if rule != "kept"])
def test_every_rule_can_be_switched_off(nmt, write, small, tmp_path, rule):
    off = 0 if rule.startswith("max_") else "false"
    result = prepare_pairs(nmt, write, small, "--set", f"data.clean.{rule}={off}")
    assert result.code == 0, result.err
    assert meta(tmp_path / "out")["report"]["dropped"].get(rule, 0) == 0


@pytest.mark.parametrize(
    ("source", "target", "rule"),
    [
        (250, 250, None),
        (251, 10, "max_tokens"),
        (10, 35, None),
        (10, 36, "max_ratio"),
        (36, 10, "max_ratio"),
        (0, 5, None),
    ],
)
def test_length_rules(source, target, rule):
    assert length_rule(source, target, Clean()) == rule


@pytest.mark.parametrize(
    ("language", "text", "wrong"),
    [
        ("en", "plain", False),
        ("en", "naïve Ἄλφα", False),  # half of the letters, not more
        ("fr", "Ελλάδα", True),
        ("ru", "Привет", False),
        ("ru-RU", "Hello", True),
        ("zh_Hans", "你好", False),
        ("ja", "カタカナとひらがな漢字", False),
        ("ko", "안녕하세요", False),
        ("ar", "مرحبا", False),
        ("he", "שלום hi", False),
        ("el", "123 !?", False),  # no letters, no verdict
        ("tlh", "Привет", False),  # an unknown language: no rule
    ],
)
def test_scripts(language, text, wrong):
    assert in_wrong_script(text, scripts_of(language)) is wrong


def test_without_a_validation_corpus_some_pairs_are_held_out(nmt, write, tmp_path):
    english, german = corpus(400, 1000)
    write("a.tsv", "".join(f"{a}\t{b}\n" for a, b in zip(english.splitlines(), german.splitlines(), strict=True)))
    result = nmt("prepare", "--tsv", "a.tsv", "--out", "out", "--vocab-size", "60")
    assert result.code == 0, result.err
    train, valid = set(map(str, shards(tmp_path / "out"))), set(map(str, shards(tmp_path / "out", "valid")))
    assert (len(train), len(valid), len(train & valid)) == (360, 40, 0)
    assert meta(tmp_path / "out")["report"]["held_out"] == 40
    assert set((tmp_path / "out/valid.source.txt").read_text().splitlines()) < set(english.splitlines())


def test_several_corpora_compressed_and_stdin(nmt, write, tmp_path):
    a, b, c = corpus(100, 1000), corpus(100, 2000), corpus(100, 3000)
    write("a.en.gz", gzip.compress(a[0].encode()))
    write("a.de", a[1].replace("\n", "\r\n"))
    write("b.tsv", "".join(f"{x}\t{y}\n" for x, y in zip(b[0].splitlines(), b[1].splitlines(), strict=True)))
    write("c.de", "\ufeff" + c[1])
    options = ("--source", "a.en.gz", "--target", "a.de", "--source", "-", "--target", "c.de", "--tsv", "b.tsv")
    result = nmt(
        "prepare", *options, "--out", "out", "--vocab-size", "60", "--set", "data.hold_out=0", stdin=c[0].encode()
    )
    assert result.code == 0, result.err
    vocab = load_vocab(tmp_path / "out/vocab")
    expected = [line for part in (a, c, b) for line in part[1].splitlines()]
    assert vocab.decode_target([target for _, target in shards(tmp_path / "out")]) == expected


def test_a_recipe_and_its_folder(nmt, write, small, tmp_path):
    write("exp/my.toml", '[data]\ntrain = ["../a.en", "../a.de"]\nvalid = ["../v.en", "../v.de"]\n[vocab]\nsize = 60\n')
    result = nmt("prepare", "exp/my.toml")
    assert result.code == 0, result.err
    assert (tmp_path / "exp/data/my/meta.json").is_file()
    assert "next: nmt train exp/my.toml" in result.err


def test_symbols_and_byte_fallback(nmt, small, tmp_path):
    options = ("--set", 'vocab.symbols=["<2de>"]', "--set", "vocab.byte_fallback=true", "--vocab-size", "330")
    result = nmt(*small, *options)
    assert result.code == 0, result.err
    vocab = load_vocab(tmp_path / "out/vocab")
    assert "<2de>" in vocab.source.encode("<2de> One.", out_type=str)
    assert vocab.source.decode(vocab.source.encode("猫")) == "猫"
    # as literal text, special pieces are text
    assert not {0, 2, 3} & set(vocab.source.encode("</s> <pad> <s>"))


# Two files as USERS.md has them, and what must come of it: a number of pairs, or a complaint.
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
    (b"\n\n", b"\n\n", "all 2 training pairs were dropped: empty 2"),
    (b"same\n", b"same\n", "dropped: identical 1"),
]


@pytest.mark.parametrize(("source", "target", "outcome"), NASTY)
@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_nasty_files(nmt, write, tmp_path, source, target, outcome, locale):
    write("a", source)
    write("b", target)
    env = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = nmt("prepare", "--source", "a", "--target", "b", "--out", "out", "--vocab-size", "8", env=env)
    if isinstance(outcome, int) and result.code:  # only the size of the vocabulary may be wrong
        size = next(word for word in result.err.split() if word.isdigit() and int(word) != 8)
        result = nmt(
            "prepare", "--source", "a", "--target", "b", "--out", "out", "--vocab-size", int(size) + 1, env=env
        )
    if isinstance(outcome, int):
        assert result.code == 0, result.err
        assert meta(tmp_path / "out")["report"]["read"] == outcome
    else:
        assert_user_error(result, outcome)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_vocabulary_too_large_for_the_text(nmt, write, tmp_path):
    write("a", "hello world\nnice to see you\n")
    write("b", "hallo Welt\nschön dich zu sehen\n")
    result = nmt("prepare", "--source", "a", "--target", "b", "--out", "out", "--vocab-size", "8000")
    assert_user_error(result, "too small for 8000 pieces: at most ", "vocab.size (--vocab-size)")
    most = int(result.err.split("at most ")[1].split()[0])
    assert nmt("prepare", "--source", "a", "--target", "b", "--out", "out", "--vocab-size", most).code == 0
    assert_user_error(
        nmt("prepare", "--source", "a", "--target", "b", "--out", "x", "--vocab-size", most + 1), f"{most} can"
    )
    assert_user_error(nmt("prepare", "--source", "a", "--target", "b", "--out", "x", "--vocab-size", 8), "too few")
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
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes(nmt, write, small, tmp_path, options, message):
    write("folder/precious.txt", "keep me")
    write("cut.gz", gzip.compress(corpus(400)[0].encode())[:-20])
    write("broken.toml", "[data\n")
    before = sorted(path for path in tmp_path.rglob("*"))
    assert_user_error(nmt("prepare", *options), message)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_damaged_data_are_named(nmt, small, tmp_path):
    nmt(*small)
    (tmp_path / "out/meta.json").write_text("{")
    assert_user_error(nmt(*small), "meta.json cannot be read")


def test_a_full_disk_is_an_error(small, tmp_path):
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "nmt_cli", *small]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert b"No space left" in done.stderr and b"Traceback" not in done.stderr


def test_an_early_reader_is_no_error(small, tmp_path):
    """`nmt recipes --keys | head -1`: quiet, and nobody is told of a broken pipe."""
    script = f"{sys.executable} -m nmt_cli recipes --keys | head -1; echo ${{PIPESTATUS[0]}} >&2"
    done = subprocess.run(["bash", "-c", script], capture_output=True, cwd=tmp_path, check=False)
    assert done.stdout.count(b"\n") == 1
    assert done.stderr.decode().strip() in ("0", "141")


@pytest.mark.parametrize("delay", [0.3, 0.6, 0.9, 1.2, 1.6])
def test_kill_leaves_nothing_or_the_whole(nmt, write, tmp_path, delay):
    english, german = corpus(40_000, 10_000)
    write("a.en", english)
    write("a.de", german)
    options = ("prepare", "--source", "a.en", "--target", "a.de", "--out", "out", "--vocab-size", "60")
    process = subprocess.Popen(
        [sys.executable, "-m", "nmt_cli", *options],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    if (tmp_path / "out").exists():
        listed = meta(tmp_path / "out")["files"]
        assert all(sha256_of(tmp_path / "out" / name) == digest for name, digest in listed.items())
    result = nmt(*options)
    assert result.code == 0, result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.de", "a.en", "out"]  # the leftovers are gone


def test_replacing_survives_a_kill_between_two_renames(nmt, small, tmp_path):
    nmt(*small)
    (tmp_path / "out").rename(tmp_path / ".out.old")  # the instant after the old one moved away
    assert nmt(*small, "--vocab-size", "61").code == 0
    assert sorted(path.name for path in tmp_path.glob("*out*")) == ["out"]


def test_no_torch_where_none_is_needed(nmt, small):
    for options in (("--help",), ("prepare", "--help"), small, ("recipes", "--keys")):
        result = nmt(*options, env={"PYTHONPROFILEIMPORTTIME": "1"})
        assert result.code == 0
        assert "sentencepiece" in result.err or options != small
        assert "| torch" not in result.err and " torch\n" not in result.err


def test_dry_run_prints_a_recipe_and_does_nothing(nmt, small, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    result = nmt(*small, "--dry-run")
    assert result.code == 0, result.err
    assert sorted(tmp_path.rglob("*")) == before
    assert "parameters" in result.text and "learning rate" in result.text
    (tmp_path / "again.toml").write_bytes(result.out)
    again = nmt("prepare", "again.toml", "--dry-run")
    assert again.text[again.text.index("[data]") :] == result.text[result.text.index("[data]") :]


def test_bpe_from_word_counts_is_bpe_from_lines():
    """Against SentencePiece on the lines themselves."""
    lines = [line for side in corpus(900, 100) for line in side.splitlines()]
    settings = Vocab(size=70, symbols=("<2de>",))
    ours = SentencePieceProcessor(model_proto=learn(iter(lines), settings, "test"))
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=70,
        character_coverage=1.0,
        user_defined_symbols=["<2de>"],
        split_digits=True,
        normalization_rule_name="identity",
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        minloglevel=2,
    )
    theirs = SentencePieceProcessor(model_proto=model.getvalue())
    assert [ours.id_to_piece(i) for i in range(70)] == [theirs.id_to_piece(i) for i in range(70)]


def test_vocabularies_beyond_16_bits(tmp_path):
    writer = ShardWriter(tmp_path, "x", 70_000)
    writer.write(np.array([69_999, 5, 65_536]), np.array([2, 0, 1]))
    writer.close()
    assert [part.tolist() for part in Shard(tmp_path, "x", 70_000)] == [[69_999, 5], [], [65_536]]
