"""Lines in, lines out: `nmt translate` through the real command."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import sacrebleu
from support.checks import assert_user_error
from support.small_language import ENGINES, SENTENCES, TEST, text_of

from nmt_cli.translate.rows import Row, read_rows

NASTY = [
    (b"a\n\n \n\t\n\xe2\x80\x8b\nb", [1, 0, 0, 0, 0, 1]),
    (b"", []),
    (b"\n", [0]),
    (b"the cat.\r\nthe dog.\r\n", [1, 1]),
    (b"\xef\xbb\xbfthe cat.\n", [1]),
    ("a\u2028b\nc\u0085d\ne\x0bf\x0cg\rh\n".encode(), [1, 1, 1]),
    ("</s> <pad> <unk> <0x0A> ⁇\n".encode(), [1]),
    ("😀\n%1$s\n".encode(), [1, 1]),
]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_input_line_gives_one_output_line(nmt, model, engine):
    """All nasty inputs in one text. The next test has each input alone."""
    whole = b"".join(
        data.removeprefix(b"\xef\xbb\xbf") + (b"" if data.endswith(b"\n") or not data else b"\n") for data, _ in NASTY
    )
    locale = (
        {"LC_ALL": "C"} if engine == "ctranslate2" else None
    )  # it starts a Python that would import torch for seconds
    result = nmt("translate", model, "--engine", engine, stdin=whole, env=locale)
    assert result.code == 0, result.err
    lines = result.text.split("\n")
    assert lines.pop() == ""
    assert [bool(line) for line in lines] == [bool(flag) for _, flags in NASTY for flag in flags]
    assert not any(c in result.text for c in "\r\0\u2028\u2029\u0085\x0b\x0c\x1b")


@pytest.mark.parametrize(("data", "expected"), NASTY)
def test_nasty_input_gives_the_expected_number_of_lines(nmt, model, data, expected):
    result = nmt("translate", model, stdin=data)
    assert result.code == 0, result.err
    assert [bool(line) for line in result.text.split("\n")[:-1]] == [bool(flag) for flag in expected]
    assert result.text == "" or result.text.endswith("\n")


def test_special_pieces_in_the_input_are_ordinary_text(nmt, model):
    marks = ["</s>", "<pad>", "<unk>", "<0x0A>", "⁇"]
    result = nmt("translate", model, stdin=text_of([f"the cat sees {mark} and the dog." for mark in marks]))
    for mark, line in zip(marks, result.text.splitlines(), strict=True):
        assert mark in line


def test_byte_order_mark_is_removed(nmt, model):
    with_mark, without = (nmt("translate", model, stdin=mark + b"the cat.\n") for mark in (b"\xef\xbb\xbf", b""))
    assert with_mark.text == without.text != ""


def test_bad_utf8_error_names_file_line_and_byte(nmt, model, write):
    assert_user_error(nmt("translate", model, stdin=b"ok\n\xff\xfe\nok\n"), "standard input, line 2, byte 1: not UTF-8")
    path = write("x.en", b"ok\nok\ncaf\xe9\n")
    assert_user_error(nmt("translate", model, path), "x.en, line 3, byte 4")


def test_text_does_not_depend_on_batch_and_order(translators):
    """This holds for both engines, and where text is put back. With the same patience, both give the same text."""
    lines = [sentence.replace(".", " {x}.") if n % 9 == 0 else sentence for n, sentence in enumerate(SENTENCES)]
    order = list(range(len(lines)))
    random.Random(1).shuffle(order)
    expected = [one.text for one in translators["ctranslate2"].translate(lines, patience=1)]
    assert len(set(expected)) > 30
    for engine, sizes in {"ctranslate2": (1, 100, 4000), "torch": (100, 4000)}.items():
        for size in sizes:
            shuffled = translators[engine].translate([lines[n] for n in order], patience=1, batch_tokens=size)
            assert [one.text for one in shuffled] == [expected[n] for n in order], (engine, size)


def test_translations_match_the_references(nmt, model, write):
    source = write("test.en", text_of([pair[0] for pair in TEST]))
    references = [pair[1] for pair in TEST]
    bleu = {}
    for kind in ("float32", "int8"):
        found = nmt("translate", model, source, "--type", kind)
        assert found.code == 0, found.err
        bleu[kind] = sacrebleu.corpus_bleu(found.text.splitlines(), [references]).score
    assert bleu["float32"] > 95
    assert abs(bleu["float32"] - bleu["int8"]) < 0.5, bleu


def test_output_can_be_piped_into_nmt_score(model, write):
    source, target = write("t.en", text_of(SENTENCES)), write("t.fr", text_of([pair[1] for pair in TEST[:60]]))
    nmt = f"{sys.executable} -m nmt_cli"
    script = f"set -o pipefail; {nmt} translate {model} {source} | {nmt} score - --ref {target} --format json"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


@pytest.mark.parametrize("name", ["a.en.gz", "a.en.xz"])
def test_compressed_input_is_read(nmt, model, write, name):
    pack = {".gz": gzip.compress, ".xz": lzma.compress}[Path(name).suffix]
    packed = nmt("translate", model, write(name, pack(text_of(SENTENCES[:5]))))
    assert packed.code == 0, packed.err
    assert packed.text == nmt("translate", model, stdin=text_of(SENTENCES[:5])).text


@pytest.mark.parametrize("engine", ENGINES)
def test_number_of_workers_does_not_change_the_output(nmt, model, engine):
    options = ("--engine", engine, "--batch-tokens", 100)
    one, three = (nmt("translate", model, *options, "--workers", n, stdin=text_of(SENTENCES)) for n in (1, 3))
    assert one.code == three.code == 0 and one.text == three.text


def test_shards_together_are_the_whole(nmt, model, write):
    path, prefixes = write("x.en", text_of(SENTENCES[:20])), write("p.fr", text_of([f"le {n}" for n in range(20)]))

    def rows(given: Path | None, shard: str | None) -> list[Row]:
        return [row for block in read_rows([path], given, False, shard) for row in block]

    for given in (None, prefixes):
        assert [row for n in (1, 2, 3) for row in rows(given, f"{n}/3")] == rows(given, None)
    assert rows(prefixes, "2/4")[0] == Row(6, SENTENCES[5], "le 5")
    more = nmt("translate", model, path, "--prefix-file", write("q.fr", "le\n" * 21), "--shard", "3/3")
    assert more.code == 1 and "q.fr has more lines" in more.err
    numbered = nmt("translate", model, path, "--shard", "2/4", "--format", "tsv").text.splitlines()
    assert [line.split("\t")[0] for line in numbered] == ["6", "7", "8", "9", "10"]


def test_shard_of_standard_input_is_refused_even_if_a_file_has_its_name(nmt, model, write):
    write("-", "the cat.\n")
    result = nmt("translate", model, "-", "--shard", "1/2", stdin=b"the cat.\n")
    assert_user_error(result, "--shard needs a file")


def test_several_files_are_one_input(nmt, model, write):
    one, two = write("1.en", text_of(SENTENCES[:3])), write("2.en", text_of(SENTENCES[3:5]))
    found = nmt("translate", model, one, two)
    assert found.text == nmt("translate", model, "-", stdin=text_of(SENTENCES[:5])).text


def test_out_file_is_complete_or_missing(nmt, model, write, tmp_path):
    good, bad = write("a.en", text_of(SENTENCES[:2])), write("b.en", b"ok\n\xff\n")
    assert nmt("translate", model, bad, "--out", "x.fr").code == 1
    assert not list(tmp_path.glob("*x.fr*"))
    result = nmt("translate", model, good, "--out", "x.fr")
    assert result.code == 0 and result.out == b""
    before = (tmp_path / "x.fr").read_bytes()
    assert before == nmt("translate", model, good).out
    assert_user_error(nmt("translate", model, bad, "--out", "x.fr"), "x.fr exists", "--force")
    assert_user_error(nmt("translate", model, bad, "--out", "no/x.fr"), "there is no folder no")
    assert (tmp_path / "x.fr").read_bytes() == before


def test_jsonl_contains_no_control_character(nmt, model):
    result = nmt("translate", model, "--format", "jsonl", stdin="the\u2028cat\x85 sees\x7f.\n".encode())
    assert json.loads(result.text)["source"] == "the\u2028cat\x85 sees\x7f."
    assert all(
        character == "\n" or unicodedata.category(character)[0] not in "CZ" or character == " "
        for character in result.text
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.json", b"[]"),
        ("vocab.json", b'{"joint": true}'),
        ("vocab.json", b'{"joint": true, "normalization": "nfx"}'),
        ("joint.model", b""),
        ("joint.model", b"x"),
    ],
)
def test_damaged_vocabulary_is_an_error(nmt, model, tmp_path, name, content):
    shutil.copytree(model / "model", tmp_path / "copy")
    (tmp_path / "copy/vocab" / name).write_bytes(content)
    assert_user_error(nmt("translate", "copy", stdin=b"a\n"), f"copy/vocab/{name} is damaged")
    assert_user_error(nmt("translate", "copy", "--no-verify", stdin=b"a\n"), "the vocabulary", "damaged")


@pytest.mark.parametrize(("name", "message"), [("none", "there is no model none"), (".", "is not a model")])
def test_missing_model_is_an_error(nmt, name, message):
    assert_user_error(nmt("translate", name), message)
