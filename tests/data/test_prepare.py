"""The results of `nmt prepare`: the data, the report, the vocabulary."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from support.checks import assert_user_error
from support.prepared import meta, shards
from support.toy_corpus import corpus

from nmt_cli.data.prepare import prepare
from nmt_cli.files import sha256_of
from nmt_cli.recipe.load import load_recipe, open_recipe
from nmt_cli.text.vocab import load_vocab
from nmt_cli.training.resume import as_prepared


def test_the_ids_are_those_of_sentencepiece(nmt, small, tmp_path):
    result = nmt(*small)
    assert result.code == 0, result.err
    out = tmp_path / "out"
    vocab = load_vocab(out / "vocab")
    assert vocab.joint and vocab.sizes == (60, 60)
    assert (vocab.source_lang, vocab.target_lang) == ("en", "de")  # from the endings of the file names
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


def test_meta_json_lists_the_hash_of_every_file(nmt, small, tmp_path):
    nmt(*small)
    out = tmp_path / "out"
    listed = meta(out)["files"]
    on_disk = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} - {"meta.json"}
    assert set(listed) == on_disk
    assert all(sha256_of(out / name) == digest for name, digest in listed.items())
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_the_same_input_gives_the_same_bytes(nmt, small, tmp_path, kind):
    options = (
        "--set",
        f"vocab.type={kind}",
        "--set",
        "vocab.joint=false",
        "--set",
        "model.tie=none",
        "--vocab-size",
        "20" if kind == "word" else "30",
    )
    assert nmt(*small, *options).code == 0
    assert nmt(*small, *options, "--out", "again").code == 0
    names = sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert len(names) > 10
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


# Pairs, and the rule that must drop each pair. The report must have exactly these counts.
PAIRS = [
    ("One two three.", "Eins zwei drei.", "kept"),
    ("One two three.", "Eins zwei drei.", "duplicates"),
    ("One  two three. ", "Eins\tzwei drei.", "duplicates"),  # the same after normalization
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
    # The examples name the right lines.
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


def test_without_a_validation_corpus_some_pairs_are_held_out(nmt, write, tmp_path):
    english, german = corpus(400, 1000)
    write("a.tsv", "".join(f"{a}\t{b}\n" for a, b in zip(english.splitlines(), german.splitlines(), strict=True)))
    result = nmt("prepare", "--tsv", "a.tsv", "--out", "out", "--vocab-size", "60")
    assert result.code == 0, result.err
    train, valid = set(map(str, shards(tmp_path / "out"))), set(map(str, shards(tmp_path / "out", "valid")))
    assert (len(train), len(valid), len(train & valid)) == (360, 40, 0)
    assert meta(tmp_path / "out")["report"]["held_out"] == 40
    assert set((tmp_path / "out/valid.source.txt").read_text().splitlines()) < set(english.splitlines())


def test_held_out_pairs_are_pairs_that_the_rules_keep(nmt, write, tmp_path):
    english, german = (text.splitlines() for text in corpus(400, 1000))
    german[::2] = english[::2]  # every second pair is the same on both sides
    german[9] = " "
    files = ("--source", write("a.en", "\n".join(english)), "--target", write("a.de", "\n".join(german)))
    test = [write(f"t.{side}", "\n".join(text[1::4])) for side, text in (("en", english), ("de", german))]
    test_files = ("--test-source", test[0], "--test-target", test[1])
    assert nmt("prepare", *files, *test_files, "--out", "out", "--vocab-size", "60").code == 0
    source, target = ((tmp_path / f"out/valid.{side}.txt").read_text().splitlines() for side in ("source", "target"))
    pairs = list(zip(source, target, strict=True))
    assert len(pairs) == 40 and all(target.strip() and source != target for source, target in pairs)
    assert not set(source) & set(english[1::4])
    report = meta(tmp_path / "out")["report"]
    assert report["held_out"] == 40
    # One of the 100 pairs of the test text has a blank side.
    assert [report["dropped"][rule] for rule in ("identical", "empty", "overlap")] == [200, 1, 99]


def test_several_corpora_compressed_and_from_standard_input(nmt, write, tmp_path):
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


def test_pipes_are_read_as_files_are(nmt, write, small, tmp_path):
    """Such as --source <(zcat a.en.gz). Preparation reads the training text several times, a pipe gives it once.

    The pipes have the same name, in different folders. They give compressed text, as their name says.
    """
    assert nmt(*small).code == 0
    names = ("a.en", "a.de", "v.en", "v.de")
    pipes = {name: tmp_path / f"pipe-{name}/pipe.gz" for name in names}
    for pipe in pipes.values():
        pipe.parent.mkdir()
        os.mkfifo(pipe)
    writers = [
        threading.Thread(target=pipe.write_bytes, args=(gzip.compress((tmp_path / name).read_bytes()),), daemon=True)
        for name, pipe in pipes.items()
    ]
    for writer in writers:
        writer.start()
    options = ("--source", "--target", "--valid-source", "--valid-target")
    given = [part for option, pipe in zip(options, pipes.values(), strict=True) for part in (option, pipe)]
    languages = ("--source-lang", "en", "--target-lang", "de")
    result = nmt("prepare", *given, *languages, "--out", "piped", "--vocab-size", 60)
    assert result.code == 0, result.err
    assert meta(tmp_path / "piped")["files"] == {
        **meta(tmp_path / "out")["files"],
        "recipe.toml": meta(tmp_path / "piped")["files"]["recipe.toml"],  # it names the corpora
    }


def test_two_tsv_files_of_any_name_are_two_corpora(nmt, write, tmp_path):
    texts = [corpus(200, first) for first in (1000, 3000)]
    for name, sides in zip(("a.txt", "b.txt"), texts, strict=True):
        write(name, "".join(f"{x}\t{y}\n" for x, y in zip(*map(str.splitlines, sides), strict=True)))
    options = ("--source-lang", "en", "--target-lang", "de", "--vocab-size", 60, "--set", "data.hold_out=0")
    result = nmt("prepare", "--tsv", "a.txt", "--tsv", "b.txt", *options, "--out", "out")
    assert result.code == 0, result.err
    vocab = load_vocab(tmp_path / "out/vocab")
    expected = [line for sides in texts for line in sides[1].splitlines()]
    assert vocab.decode_target([target for _, target in shards(tmp_path / "out")]) == expected
    again = nmt("prepare", "out/recipe.toml", "--out", "again")
    assert again.code == 0, again.err
    assert shards(tmp_path / "again") == shards(tmp_path / "out")


def test_the_recipe_of_a_text_too_small_for_its_vocabulary_can_be_prepared_again(nmt, write, tmp_path):
    for name, text in zip(("a.en", "a.de"), corpus(100, 1000), strict=True):
        write(name, text)
    result = nmt("prepare", "--source", "a.en", "--target", "a.de", "--out", "out")
    assert result.code == 0, result.err
    sizes = load_vocab(tmp_path / "out/vocab").sizes
    assert load_recipe(tmp_path / "out/recipe.toml").vocab.size == sizes[0] < 500
    again = nmt("prepare", "out", "--out", "again")
    assert again.code == 0, again.err
    assert load_vocab(tmp_path / "again/vocab").sizes == sizes


NEXT = [
    (("--out", "out"), "nmt train out"),
    (("--set", "data.prepared=data/set"), "nmt train data/set"),
    (("--vocab-size", "55"), "nmt train data/my"),
    ((), "nmt train my.toml"),
]


@pytest.mark.parametrize(("options", "command"), NEXT)
def test_the_next_command_trains_on_these_data(nmt, write, small, tmp_path, monkeypatch, options, command):
    write("my.toml", '[data]\ntrain = ["a.en", "a.de"]\n[vocab]\nsize = 60\n')
    result = nmt("prepare", "my.toml", *options)
    assert result.code == 0 and result.err.endswith(f"next: {command}\n"), result.err
    monkeypatch.chdir(tmp_path)
    recipe = open_recipe(command.split()[2])
    assert as_prepared(recipe).vocab.size == int(dict([options] if options else ()).get("--vocab-size", 60))


def test_the_first_example_of_the_recipe_page_prepares_its_own_files(nmt, write, tmp_path):
    page = (Path(__file__).parents[2] / "docs/recipe.md").read_text(encoding="utf-8")
    write("exp/my.toml", page.split("```toml\n")[1].split("```")[0])
    for name, text in zip(("corpus.en", "corpus.de"), corpus(300, 1000), strict=True):
        write(f"exp/{name}", text)
    write("exp/dev.tsv", "five zero.\tfünf null.\n")
    result = nmt("prepare", "exp/my.toml", "--set", "vocab.size=60")
    assert result.code == 0, result.err
    inputs = meta(tmp_path / "exp/data/my")["inputs"]
    assert {split: [given["lines"] for given in corpora] for split, corpora in inputs.items()} == {
        "train": [300],
        "valid": [1],
        "test": [],
    }


def test_a_reused_vocabulary_states_the_kind_of_its_pieces(nmt, small, tmp_path):
    assert nmt(*small, "--set", "vocab.type=char", "--vocab-size", 30).code == 0
    reuse = ("--set", "vocab.reuse=out", "--out", "more")
    result = nmt(*small[:-4], *reuse)
    assert result.code == 0, result.err
    assert "joint char pieces" in result.text and "joint char pieces" in (tmp_path / "more/report.txt").read_text()
    assert meta(tmp_path / "more")["report"]["vocab_type"] == "char"
    assert load_recipe(tmp_path / "more/recipe.toml").vocab.type == "char"
    refused = nmt(*small[:-4], *reuse, "--set", "train.subword_sampling=0.1", "--force")
    assert_user_error(refused, "train.subword_sampling does not fit the vocabulary of out")
    refused = nmt("train", "more", "--set", "train.subword_sampling=0.1")
    assert_user_error(refused, 'vocab.type = "char" has none')


def test_examples_of_several_corpora_name_their_files(nmt, write, tmp_path):
    for name, first in (("a", 1000), ("b", 2000)):
        for side, text in zip(("en", "de"), corpus(200, first), strict=True):
            write(f"{name}.{side}", text + ("Berlin\n" if name == "b" else ""))
    files = [part for name in "ab" for part in ("--source", f"{name}.en", "--target", f"{name}.de")]
    result = nmt("prepare", *files, "--vocab-size", 60, "--out", "out")
    assert result.code == 0, result.err
    assert "b.en:201" in result.text and "b.en:201" in (tmp_path / "out/report.txt").read_text()
    alone = nmt("prepare", *files[4:], "--vocab-size", 60, "--out", "alone")
    assert "b.en" not in alone.text and "201" in alone.text


def test_a_recipe_file_has_its_data_folder_beside_it(nmt, write, small, tmp_path):
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
    # Special pieces in the input are plain text.
    assert not {0, 2, 3} & set(vocab.source.encode("</s> <pad> <s>"))


def test_help_prepare_and_recipes_do_not_import_torch(small, tmp_path):
    commands = [("--help",), ("prepare", "--help"), ("recipes", "--keys"), small]  # prepare last: it imports most
    script = (
        "import json, sys; from nmt_cli.cli import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    sys.argv = ['nmt', *words]\n"
        "    try: main()\n"
        "    except SystemExit as leaving: code = leaving.code or 0\n"
        "    else: code = 0\n"
        "    print(code, 'torch' in sys.modules, 'sentencepiece' in sys.modules, file=sys.stderr)"
    )
    words = json.dumps([list(map(str, command)) for command in commands])
    command = [sys.executable, "-c", script, words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    states = [line for line in done.stderr.splitlines() if line.endswith(("True", "False"))]
    assert states == ["0 False False"] * 3 + ["0 False True"], done.stderr


def test_dry_run_prints_a_recipe_and_writes_nothing(nmt, small, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    result = nmt(*small, "--dry-run", "--set", "train.auto=false")
    assert result.code == 0, result.err
    assert sorted(tmp_path.rglob("*")) == before
    assert "parameters" in result.text and "learning rate" in result.text
    (tmp_path / "again.toml").write_bytes(result.out)
    again = nmt("prepare", "again.toml", "--dry-run")
    assert again.text[again.text.index("[data]") :] == result.text[result.text.index("[data]") :]


@pytest.mark.parametrize("hold_out", [0, 30])
def test_every_progress_bar_ends_full(write, tmp_path, monkeypatch, hold_out):
    """Held-out pairs are neither cleaned nor encoded."""
    for name, text in zip(("a.en", "a.de"), corpus(300, 1000), strict=True):
        write(name, text)
    monkeypatch.chdir(tmp_path)
    last: dict[str, tuple[int, int]] = {}
    options = {"vocab_size": 60, "set": {"data": {"hold_out": hold_out, "prepared": "out"}}}
    prepare(source="a.en", target="a.de", show=lambda stage, *figures: last.update({stage: figures}), **options)
    assert last["cleaning"] == (300 - hold_out, 300 - hold_out)
    assert all(total in (0, done) for done, total in last.values()), last  # 0: the total is not known


def test_lines_of_several_sentences_are_counted(nmt, write, tmp_path):
    """Only kept pairs count, by their source."""
    sentences = [f"The cat number {n} sleeps." for n in range(41)]
    lines = [" ".join(sentences[n : n + 1 + n % 2]) for n in range(40)]
    write("a.en", "".join(line + "\n" for line in [*lines, lines[1]]))
    write("a.de", "".join(f"Satz {line}\n" for line in [*lines, lines[1]]))
    options = ("--vocab-size", 60, "--set", "data.hold_out=0", "--out", "out")
    result = nmt("prepare", "--source", "a.en", "--target", "a.de", *options)
    assert result.code == 0, result.err
    report = json.loads((tmp_path / "out/meta.json").read_text())["report"]
    assert report["several_sentences"] == 20 and report["splits"]["train"]["sentences"] == 40
    (row,) = [line for line in result.text.splitlines() if "several sentences in a line" in line]
    assert row.split()[:3] == ["paragraphs", "20", "50.0%:"]


def test_words_of_the_source_are_counted(nmt, small, write, tmp_path):
    """The words of the old text are counted with those of more text for the same vocabulary, if they are known."""

    def counts(folder: str) -> dict[str, int]:
        rows = [row.split("\t") for row in (tmp_path / folder / "vocab/words.tsv").read_text().splitlines()]
        return {word: int(count) for word, count in rows if count != "0"}

    def counted(*names: str) -> Counter[str]:
        return Counter(word for name in names for word in (tmp_path / name).read_text().replace(".", "").split())

    assert nmt(*small).code == 0
    assert counts("out") == counted("a.en")
    for name, text in zip(("b.en", "b.de"), corpus(100, 70_000), strict=True):
        write(name, text)
    files = ("prepare", "--source", "b.en", "--target", "b.de", "--set", "data.hold_out=0", "--set", "vocab.reuse=out")
    assert nmt(*files, "--out", "more").code == 0
    assert counts("more") == counted("a.en", "b.en")
    (tmp_path / "out/vocab/words.tsv").unlink()
    assert nmt(*files, "--out", "other").code == 0
    assert not (tmp_path / "other/vocab/words.tsv").exists()
