"""`nmt translate` and `nmt export`: through the real command, on a small trained model, and engine against engine."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch
from support.checks import assert_children_die, assert_user_error
from support.small_language import sentences

from nmt_cli.data.batches import make_batch
from nmt_cli.demo.corpus import demo_corpus
from nmt_cli.export.formats import to_ctranslate2, to_hf
from nmt_cli.model.build import build_model
from nmt_cli.recipe import schema as recipe
from nmt_cli.recipe.schema import Rnn, Train, Transformer
from nmt_cli.search.contract import Hypothesis, Request, SearchOptions
from nmt_cli.search.ct2_engine import CTranslate2Engine
from nmt_cli.search.torch_engine import TorchEngine
from nmt_cli.search.workers import Workers
from nmt_cli.store.checkpoint import Trained, load_model, save_model
from nmt_cli.text.vocab import BOS, EOS, PAD, UNK, Vocab, learn, load_vocab, write_vocab
from nmt_cli.training.loss import TrainingLoss
from nmt_cli.translate.glossary import Term, load_glossary
from nmt_cli.translate.protect import lost, protected, put_back, take_out, without_overlaps
from nmt_cli.translate.split import cut_loop, split_long
from nmt_cli.translate.stream import overlapped, windows
from nmt_cli.translate.translator import Row, Settings, Translator

pytest.importorskip("ctranslate2")

ENGINES = ["ctranslate2", "torch"]
FORMATS = ("tsv", "jsonl")


@pytest.fixture(scope="session")
def model(nmt_in, tmp_path_factory) -> Path:
    """A run that masters a small language, and has met the characters of a larger one; exported, as every run is.

    The processes of pytest-xdist share it: the first trains, the others wait.
    """
    fcntl = pytest.importorskip("fcntl")
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "small-language"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "run/model/ctranslate2/model.bin").exists():
            train_small_language(nmt_in, folder)
    assert (folder / "run/model/ctranslate2/model.bin").exists()
    return folder / "run"


def train_small_language(nmt_in, folder: Path) -> None:
    pairs = [*sentences(4000, seed=1), *demo_corpus()["train"][:200]]
    for side, language in enumerate(("en", "fr")):
        (folder / f"a.{language}").write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    sets = ["model.dim=64", "model.heads=2", "model.ff=128", "model.encoder_layers=1", "model.decoder_layers=2"]
    sets += ["model.dropout=0.0", "train.batch_tokens=512", "train.warmup=30", "train.lr=2e-2", "train.steps=400"]
    sets += ["train.optimizer=muon", "train.schedule=linear", "train.precision=fp32"]
    sets += ["train.valid_every=400", "train.valid_lines=20"]
    options = [part for one in sets for part in ("--set", one)]
    files = ("--source", "a.en", "--target", "a.fr", "--vocab-size", "600", "--out", "data")
    for args in (("prepare", *files), ("train", "data", "--out", "run", *options)):
        result = nmt_in(folder, *args)
        assert result.code == 0, result.err


@pytest.fixture(scope="module")
def trained(model) -> Trained:
    return load_model(model)


TEST = sentences(500, seed=2)
SENTENCES = [pair[0] for pair in TEST[:60]]


def text_of(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


# ---------------------------------------------------------------------------------------------------------------------
# Lines


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
def test_lines_in_lines_out(nmt, model, engine):
    """All nasty inputs in one; and each alone in the fast engine below."""
    whole = b"".join(
        data.removeprefix(b"\xef\xbb\xbf") + (b"" if data.endswith(b"\n") or not data else b"\n") for data, _ in NASTY
    )
    result = nmt("translate", model, "--engine", engine, stdin=whole, env={"LC_ALL": "C"})
    assert result.code == 0, result.err
    lines = result.text.split("\n")
    assert lines.pop() == ""
    assert [bool(line) for line in lines] == [bool(flag) for _, flags in NASTY for flag in flags]
    assert not any(c in result.text for c in "\r\0\u2028\u2029\u0085\x0b\x0c\x1b")


@pytest.mark.parametrize(("data", "expected"), NASTY)
def test_nasty_input(nmt, model, data, expected):
    result = nmt("translate", model, stdin=data)
    assert result.code == 0, result.err
    assert [bool(line) for line in result.text.split("\n")[:-1]] == [bool(flag) for flag in expected]
    assert result.text == "" or result.text.endswith("\n")


def test_marks_of_the_vocabulary_are_text_like_any_other(nmt, model):
    marks = ["</s>", "<pad>", "<unk>", "<0x0A>", "⁇"]
    result = nmt("translate", model, stdin=text_of([f"the cat sees {mark} and the dog." for mark in marks]))
    for mark, line in zip(marks, result.text.splitlines(), strict=True):
        assert mark in line


def test_a_byte_order_mark_is_no_text(nmt, model):
    with_mark, without = (nmt("translate", model, stdin=mark + b"the cat.\n") for mark in (b"\xef\xbb\xbf", b""))
    assert with_mark.text == without.text != ""


def test_bad_utf8_is_named(nmt, model, write):
    assert_user_error(nmt("translate", model, stdin=b"ok\n\xff\xfe\nok\n"), "standard input, line 2, byte 1: not UTF-8")
    path = write("x.en", b"ok\nok\ncaf\xe9\n")
    assert_user_error(nmt("translate", model, path), "x.en, line 3, byte 4")


def test_the_same_text_whatever_the_batch_and_the_order(nmt, model):
    """Promise 5, for both engines, also where something is put back; with one rule to stop, one engine's text is the
    other's."""
    lines = [sentence.replace(".", " {x}.") if n % 9 == 0 else sentence for n, sentence in enumerate(SENTENCES)]
    order = list(range(len(lines)))
    random.Random(1).shuffle(order)
    expected = nmt("translate", model, "--patience", 1, stdin=text_of(lines)).text.splitlines()
    assert len(set(expected)) > 30
    for engine in ENGINES:
        for options in (["--batch-tokens", 1, "--workers", 1], ["--batch-tokens", 100], ["--batch-tokens", 4000]):
            if engine == "torch" and options[1] == 1:
                continue  # the slowest of all; tests/test_search.py has batches of one
            result = nmt(
                "translate",
                model,
                "--patience",
                1,
                "--engine",
                engine,
                *options,
                stdin=text_of([lines[n] for n in order]),
            )
            assert result.code == 0, result.err
            assert result.text.splitlines() == [expected[n] for n in order], (engine, options)


def test_it_translates(nmt, model, write):
    source = write("test.en", text_of([pair[0] for pair in TEST]))
    references = [pair[1] for pair in TEST]
    bleu = {}
    for kind in ("float32", "int8"):
        found = nmt("translate", model, source, "--type", kind)
        assert found.code == 0, found.err
        bleu[kind] = sacrebleu.corpus_bleu(found.text.splitlines(), [references]).score
    assert bleu["float32"] > 95
    assert abs(bleu["float32"] - bleu["int8"]) < 0.5, bleu


# ---------------------------------------------------------------------------------------------------------------------
# Streams


def read_line(process: subprocess.Popen, seconds: float) -> bytes:
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    assert ready, "no answer"
    return process.stdout.readline()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_line_is_answered_before_the_end_of_input(model, engine):
    command = [sys.executable, "-m", "nmt_cli", "translate", str(model), "--engine", engine]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for sentence in SENTENCES[:3]:
        process.stdin.write(sentence.encode() + b"\n")
        process.stdin.flush()
        assert read_line(process, 60).endswith(b"\n")
    process.stdin.close()
    assert process.wait(30) == 0
    assert process.stdout.read() == b"" and b"Traceback" not in process.stderr.read()


def resident_mb(process: subprocess.Popen) -> float:
    (line,) = (line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmRSS" in line)
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(("engine", "some", "many"), [("ctranslate2", 5000, 15_000), ("torch", 1000, 2000)])
def test_memory_is_bounded_on_endless_input(model, engine, some, many):
    """`yes` is a thousand times faster than we are, and then nobody reads: neither side may pile up."""
    with subprocess.Popen(["yes", "the cat sees the dog."], stdout=subprocess.PIPE) as endless:
        command = [sys.executable, "-m", "nmt_cli", "translate", str(model), "--beam", "1", "--engine", engine]
        process = subprocess.Popen(command, stdin=endless.stdout, stdout=subprocess.PIPE)
        for _ in range(some):
            assert read_line(process, 60)
        after_some = resident_mb(process)
        time.sleep(3)  # in which `yes` would write gigabytes
        after_a_rest = resident_mb(process)
        for _ in range(many):
            assert read_line(process, 60)
        after_many = resident_mb(process)
        process.kill()
        endless.kill()
    assert max(after_a_rest, after_many) < after_some + 60


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_command(model, number):
    """Or whoever reads the output would wait for its end for ever."""
    command = [sys.executable, "-m", "nmt_cli", "translate", str(model), "--engine", "torch", "--workers", "2"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(b"the cat.\n")
    process.stdin.flush()
    assert read_line(process, 60)
    assert_children_die(process, 0, number)
    assert process.stdout.read() == b""


def test_a_reader_that_leaves_is_no_error(model):
    nmt = f"{sys.executable} -m nmt_cli translate {model} --beam 1"
    script = f"yes 'the cat.' | {nmt} | head -3000 | sort -u | wc -l; echo ${{PIPESTATUS[@]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert done.stderr == "" and done.stdout.split()[0] == "1"
    assert done.stdout.split()[2] in ("0", "141")


def test_windows_grow_and_lose_nothing():
    rows = list(range(20_000))
    blocks = [rows[n : n + 3000] for n in range(0, len(rows), 3000)]
    cut = list(windows(blocks, lambda row: 1))
    assert [row for window in cut for row in window] == rows
    assert len(cut[0]) <= 64 and max(map(len, cut)) <= 4096 and len(cut) < 20


def test_windows_of_whole_documents_are_short():
    """Bounded memory: by characters, whatever the number of rows; one row is a window, however long."""
    random_ = random.Random(1)
    rows = [random_.choice((10, 50_000, 300_000, 2_000_000)) for _ in range(500)]
    cut = list(windows([rows[:300], rows[300:]], lambda row: row))
    assert [row for window in cut for row in window] == rows
    assert all(len(window) == 1 or sum(window) <= 1 << 19 for window in cut) and max(map(len, cut)) > 1


def test_windows_do_not_wait_and_pass_errors_on():
    def slow():
        for n in range(3):
            yield [n]
            time.sleep(0.2)
        raise ValueError("broken")

    seen = []
    with pytest.raises(ValueError, match="broken"):
        for window in windows(slow(), lambda row: 1):
            seen.append(window)
    assert seen == [[0], [1], [2]]


def test_a_line_waits_for_company_after_a_rest():
    """From when it came, not from when the last one left; and windows grow only while they are full."""

    def bursts():
        for burst in range(3):
            time.sleep(0.3)
            for n in range(3):
                yield [(burst, n)]

    assert [len(window) for window in windows(bursts(), lambda row: 1)] == [3, 3, 3]


def test_windows_overlap_and_keep_their_order():
    running, most = [], []

    def job(window):
        running.append(window)
        most.append(len(running))
        time.sleep(0.02 * (window[0] % 3))
        running.remove(window)
        return [2 * row for row in window]

    assert list(overlapped(job, iter([[n] for n in range(12)]))) == [[2 * n] for n in range(12)]
    assert 2 <= max(most) <= 3


def test_what_fails_in_a_window_is_raised():
    with pytest.raises(ZeroDivisionError):
        list(overlapped(lambda window: 1 / window[0], iter([[1], [0]])))


def test_a_full_disk_is_an_error(model):
    script = f"echo 'the cat.' | {sys.executable} -m nmt_cli translate {model} > /dev/full"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "the disk is full" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_is_quiet(model, engine):
    command = [sys.executable, "-m", "nmt_cli", "translate", str(model), "--engine", engine]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(text_of(SENTENCES))
    process.stdin.flush()
    assert read_line(process, 60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and err == b""


def test_the_fast_engine_starts_without_torch(model, tmp_path):
    script = (
        "import sys; sys.argv = ['nmt', 'translate', sys.argv[1]]\n"
        "from nmt_cli.cli import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, 'ctranslate2' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, model], input=b"the cat.\n", capture_output=True)
    assert done.returncode == 0 and done.stderr.strip() == b"False True", done.stderr


def test_a_pipeline_into_score(model, write):
    source, target = write("t.en", text_of(SENTENCES)), write("t.fr", text_of([pair[1] for pair in TEST[:60]]))
    nmt = f"{sys.executable} -m nmt_cli"
    script = f"set -o pipefail; {nmt} translate {model} {source} | {nmt} score - --ref {target} --format json"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


# ---------------------------------------------------------------------------------------------------------------------
# Long lines and loops


def test_a_long_line_is_split_and_named(nmt, model):
    long = " ".join(SENTENCES[:40])
    result = nmt("translate", model, stdin=text_of(["the cat.", long]))
    assert result.code == 0 and "warning: line 2 is too long for the model: translated in " in result.err
    lines = result.text.splitlines()
    assert len(lines) == 2 and len(lines[1].split()) > 60  # all of its parts


def test_alignments_of_a_long_line_in_which_something_was_put_back(nmt, model):
    """Words that were put back count too."""
    long = "The cat sees {x} and {y} {z}. " + " ".join(SENTENCES[:30])
    (line,) = nmt("translate", model, "--align", "--format", "jsonl", stdin=text_of([long])).text.splitlines()
    entry = json.loads(line)
    assert {"split", "restored"} <= set(entry["flags"])
    assert entry["n_best"][0]["alignment"] == ""  # all or none: words that were put back are not aligned
    (line,) = nmt("translate", model, "--align", "--format", "jsonl", stdin=text_of([long[30:]])).text.splitlines()
    entry = json.loads(line)
    assert set(entry["flags"]) == {"split"}
    pairs = [tuple(map(int, pair.split("-"))) for pair in entry["n_best"][0]["alignment"].split()]
    assert max(source for source, _ in pairs) < len(entry["source"].split())
    assert sorted(target for _, target in pairs) == list(range(len(entry["translation"].split())))


def test_a_word_that_is_cut_is_not_aligned(nmt, model):
    options = ("--align", "--format", "jsonl", "--no-protect")
    entry = json.loads(nmt("translate", model, *options, stdin=b"a" * 3000).text)
    assert "split" in entry["flags"] and entry["n_best"][0]["alignment"] == ""


def test_the_n_best_of_a_line_in_parts(nmt, model):
    """Sorted, as many as asked for although one part is copied, and without log p that nobody could tell apart."""
    line = " ".join([*SENTENCES[:20], "https://example.org/" + "a" * 600 + ".", *SENTENCES[20:30]])
    options = ("--format", "jsonl", "--tokens", "--n-best", 4)
    entry = json.loads(nmt("translate", model, *options, stdin=text_of([line])).text)
    scores = [best["score"] for best in entry["n_best"]]
    assert {"split", "copied"} <= set(entry["flags"]) and len(scores) == 4 and scores == sorted(scores, reverse=True)
    assert all(not best["token_logprobs"] for best in entry["n_best"])


@pytest.mark.parametrize("engine", ENGINES)
def test_something_is_lost_inside_a_word(nmt, model, trained, engine):
    """Half a word can have more pieces than the whole one, and the gap lies behind them."""
    encode = trained.vocab.source.encode
    words = sorted({word for line in SENTENCES for word in line.strip(".?").split() if word.isalpha()})
    cuts = [
        (word, at) for word in words for at in range(1, len(word)) if len(encode(word[:at])) > len(encode(word)) + 1
    ]
    assert cuts
    lines = [f"{word[:at]}&shy;{word[at:]}" for word, at in cuts[:20]]
    result = nmt("translate", model, "--engine", engine, stdin=text_of(lines))
    assert result.code == 0, result.err
    assert all("&shy;" in line for line in result.text.splitlines())


def test_the_parts_of_a_long_line_are_joined(trained):
    """An engine that echoes gives the line back, however it was cut."""
    settings = Settings(SearchOptions(), 4000, longest_source=30, align=True)
    translator = Translator(Workers(Echo(), 1, False), trained.vocab, settings)
    line = " ".join(SENTENCES[:10])
    (found,) = translator.translate([Row(1, line)])
    assert found.text == line and found.parts > 4 and found.flags == {"split"}
    assert list(found.outputs[0].alignment) == [(n, n) for n in range(len(line.split()))]


@pytest.mark.parametrize(
    "line", [b"x" * 100_000, b"the cat sees the dog, and " * 40_000], ids=["word", "million letters"]
)
def test_a_line_without_end(nmt, model, line):
    result = nmt("translate", model, "--beam", 1, "--max-ratio", 0.1, stdin=line + b"\nthe cat.\n")
    assert result.code == 0 and len(result.text.splitlines()) == 2 and "line 1" in result.err


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a b c", ["a b c"]),
        ("a b c. d e f.", ["a b c.", "d e f."]),
        ("a b. c d. e f.", ["a b. c d.", "e f."]),
        ("a b c, d e f", ["a b c,", "d e f"]),
        ("a b c d e f", ["a b c d", "e f"]),
        ('"a b c!" d e? f', ['"a b c!"', "d e? f"]),
    ],
)
def test_split_long(text, parts):
    assert split_long(text, 4, words) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a b <a b c d e> f g", ["a b", "<a b c d e>", "f g"]),
        ("<aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa>", ["<aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa>"]),
        ("bbbbbb<aaaaaaaaaaaaa>bbbbbb", ["bbbbbb", "<aaaaaaaaaaaaa>", "bbbbbb"]),
        ("<aaaaaaaaaaaaaaaaaa>bbbbbbbbb", ["<aaaaaaaaaaaaaaaaaa>", "bbbbbbbbb"]),
    ],
)
def test_what_must_not_be_cut(text, parts):
    def whole(part: str) -> list[tuple[int, int]]:
        return [(match.start(), match.end()) for match in re.finditer("<[^>]*>", part)]

    assert split_long(text, 9, len, whole) == parts


def test_marks_alone_are_copied(nmt, model):
    """The model would make up a sentence."""
    lines = ["...", "!", "-", "?!", '"']
    result = nmt("translate", model, "--format", "jsonl", stdin=text_of(lines))
    entries = [json.loads(line) for line in result.text.splitlines()]
    assert [entry["translation"] for entry in entries] == lines
    assert all(entry["flags"] == ["copied"] for entry in entries)


def test_an_address_longer_than_the_model_is_copied(nmt, model):
    address = "https://example.org/" + "/".join(f"seite{n}" for n in range(400))
    result = nmt("translate", model, stdin=text_of([f"the cat sees {address} and the dog.", address]))
    assert result.code == 0, result.err
    assert address in result.text.split("\n")[0] and result.text.split("\n")[1] == address


def test_split_long_without_any_place_to_cut():
    parts = split_long("x" * 1001, 10, len)
    assert "".join(parts) == "x" * 1001 and max(map(len, parts)) <= 10
    assert split_long("。".join(["一二三"] * 9), 8, len)[0] == "一二三。一二三。"


@pytest.mark.parametrize(
    ("ids", "source", "expected"),
    [
        ("abcabcabcabc", "x", "abc"),
        ("xabababababy", "x", "xaby"),
        ("xabcabcabcabcady", "x", "xabcady"),  # n'elle n'elle n'elle n'elle n'a: what has begun again goes on
        ("xabcabcabcabca", "x", "xabc"),  # ... or does not
        ("abcabcabcabcabc", "xyzxyzxyz", "abcabcabc"),  # as often as the source
        ("aaaa", "x", "a"),
        ("aaab", "x", None),
        ("ha ha ha ha ha", "he he he he he", None),  # the source does it too
        ("aaaabbbb", "x", "ab"),
        ("", "x", None),
        ("10000000", "ten million", None),  # as pieces, where digits are split
        ("wait.....", "wait...", None),
        ("." * 30, "x", "."),
        ("price abababababab", "price 100000", "price ababababab"),  # no more often than the source has anything
        ("x" + 5 * "abcdefghijkl", "y", "xabcdefghijkl"),
        ("ha ha ha ha ha ha ha ha ", "he he he he ", "ha ha ha ha "),
    ],
)
def test_loops(ids, source, expected):
    found = cut_loop(ids, source, str.isalpha)
    assert found == (None if expected is None else tuple(expected))


def test_a_loop_is_cut_and_flagged(nmt, model, trained, tmp_path):
    """A model without a single thought writes one piece for ever."""
    blank = {name: torch.zeros_like(tensor) for name, tensor in trained.model.state_dict().items()}
    save_model(tmp_path / "blank", blank, trained.recipe, model / "model/vocab", {})
    result = nmt("translate", tmp_path / "blank", "--min-length", 15, "--format", "jsonl", stdin=b"a cat.\n")
    found = json.loads(result.text)
    assert result.code == 0 and "loop" in found["flags"], found
    assert "warning: line 1: the model repeated itself; the repeats are cut" in result.err
    assert len(found["translation"]) < 20


def test_warnings_are_named_up_to_a_number_and_then_counted(nmt, model):
    result = nmt(
        "translate", model, "--beam", 1, "--max-ratio", 0.1, stdin=b"x " * 400 + b"\n" + (b"y " * 400 + b"\n") * 24
    )
    assert result.code == 0 and len(result.text.splitlines()) == 25
    assert result.err.count("is too long for the model") == 20
    assert "warning: 5 more lines were flagged 'split'" in result.err


# ---------------------------------------------------------------------------------------------------------------------
# What must survive

SURVIVORS = [
    "{name}",
    "%1$s",
    "%(x)d",
    "<b>",
    "</b>",
    "https://a.b/c?d=e&f",
    "me@x.org",
    "😀👍🏽",
    "北京",
    "Zoë-Ŵ",
    "12,345.67",
    "⁇",
]


@pytest.mark.parametrize("engine", ENGINES)
def test_everything_survives(nmt, model, engine):
    lines = [f"the {thing} sees the dog near {thing} today." for thing in SURVIVORS]
    lines += [" ".join(SURVIVORS), "see <a href='x y'>the cat</a>, {0} and {1}!"]
    result = nmt("translate", model, "--engine", engine, stdin=text_of(lines))
    assert result.code == 0, result.err
    for thing, line in zip(SURVIVORS, result.text.splitlines(), strict=False):
        assert line.count(thing) >= 2, (thing, line)
    assert all(thing in result.text.splitlines()[-2] for thing in SURVIVORS)
    assert all(thing in result.text.splitlines()[-1] for thing in ("<a href='x y'>", "</a>", "{0}", "{1}"))


def test_without_protection_the_model_is_alone(nmt, model):
    result = nmt("translate", model, "--no-protect", stdin="the {name} sees 北京.\n".encode())
    assert result.code == 0 and "北京" not in result.text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Hello {name}!", ["{name}"]),
        ("100 % sure, 50% off, %d of %5.2f", ["100 %", "50%", "%d", "%5.2f"]),
        ("Go to https://x.org/a_(b)?c=1.", ["https://x.org/a_(b)?c=1"]),
        ("mail a.b+c@d-e.org, now", ["a.b+c@d-e.org"]),
        ("a < b and b > c", []),
        ("x &amp; y &#39; & z", ["&amp;", "&#39;"]),
        ("in 1999 at 10:30 there were 3 cats, B2B", ["1999", "10:30"]),
        ("in the 1990s at -5 °C, 7% of 3 cats", ["1990s", "-5 °C", "7%"]),
        ("a 50mm lens of 1920x1080, (10km)", ["50mm", "1920x1080", "10km"]),
        ("请访问https://example.com/a，联系joe@x.org获取帮助", ["https://example.com/a", "joe@x.org"]),
        ("会议于2024年12月25日举行，版本1.2.3", ["2024", "12", "25", "1.2.3"]),
        ("reads “https://a.b/c” (or https://a.b/d)…", ["https://a.b/c", "https://a.b/d"]),
        ("%" + "0" * 20_000, ["0" * 20_000]),  # not in quadratic time
        ("Zoë saw 北京 today", ["Zoë", "北京"]),
        ("${HOME} {{x}} {}", ["${HOME}", "{{x}}", "{}"]),
        ("@user likes #nmt", ["@user", "#nmt"]),
        ("no trouble here.", []),
        ("%lu of %lld or %zu and %{name}", ["%lu", "%lld", "%zu", "%{name}"]),
        ("ftp://a.b/c, file:///x mailto:a@b.de", ["ftp://a.b/c", "file:///x", "mailto:a@b.de"]),
        ("press 1\ufe0f\u20e3 now", ["1\ufe0f\u20e3"]),
    ],
)
def test_what_is_protected(text, wanted):
    assert [span.wanted for span in protected(text, lambda character: character not in "ë北京")] == wanted


def test_a_number_may_be_written_otherwise():
    (span,) = protected("1,234.50 euros", lambda _: True)
    assert span.count_in("1.234,50 Euro") == 1 and span.count_in("1 234,50") == 1
    assert span.count_in("1.234") == 0 and span.count_in("91.234,50") == 0
    for text in ("call 030 1234 5678 now", "In 1999 12 cats came", "10km, 12th, 250 ml"):
        spans = protected(text, lambda _: True)
        assert len(spans) > 1 and all(span.count_in(text) == 1 for span in spans)


@pytest.mark.parametrize(
    ("term", "text", "times"),
    [
        ("chat", "le chat et le chaton", 1),
        ("chien", "Chien et chien", 2),
        ("猫", "黒猫だ", 1),
        ("Chat", "le chat", 0),
        ("c++", "en c++.", 1),
        ("राम", "रामी राम", 1),  # a vowel sign is part of its word
    ],
)
def test_terms_in_a_translation(term, text, times):
    assert Term(0, 0, term).count_in(text) == times


@pytest.mark.parametrize(
    ("source", "target", "attention", "expected"),
    [
        # the translation word for word, so attention is the identity
        ("see {x} now .", "voir maintenant .", "identity", "voir {x} maintenant ."),
        ("{x} see now", "voir maintenant", "identity", "{x} voir maintenant"),
        ("see now {x}", "voir maintenant", "identity", "voir maintenant {x}"),
        ("see <b>now</b> .", "voir maintenant .", "identity", "voir <b>maintenant</b> ."),
        # the mark at the end attends to anything, as it does in real models, and still comes last
        ("see now {x} .", "voir maintenant .", "first", "voir maintenant {x} ."),
        # ... the other way round
        ("see now {x} .", "maintenant voir .", "swapped", "maintenant voir {x} ."),
        # a mark beside it in the source, and a word here, or the same mark ("+": part of the word before)
        ('see "{x}" now', "voir alors maintenant", "identity", "voir alors {x} maintenant"),
        ('see " {x}" now', "voir « maintenant", "identity", "voir « {x} maintenant"),
        ("see now {x}.", "voir maintenant +.", "identity", "voir maintenant {x}."),
        ("see ({x}) now", "voir ( +) maintenant", "identity", "voir ({x}) maintenant"),
        ("see {x} or {y} now.", "voir maintenant ou +.", "late", "voir maintenant ou {x} {y}."),
        ("see un{x} now", "voir in maintenant", "identity", "voir in{x} maintenant"),
    ],
)
def test_where_things_are_put_back(source, target, attention, expected):
    rest, gaps = take_out(source, protected(source, lambda _: True))
    pieces = ["▁" + word if word[0] != "+" else word[1:] for word in target.split()]
    weights = np.eye(len(pieces), len(rest.split()) + 1)
    if attention == "swapped":
        weights[[0, 1]] = weights[[1, 0]]
    if attention == "late":
        weights[:-1] = np.eye(1, weights.shape[1])
    if attention == "first":
        weights[-1] = weights[0]
    boundaries = [len(rest[: gap.at].split()) for gap in gaps]
    assert put_back(pieces, weights, gaps, boundaries, lambda word: word.text) == expected


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("see https://x.org and https://x.org/a", "voir https://x.org/a", ["https://x.org"]),
        ("see https://x.org and https://x.org/a", "voir https://x.org/a https://x.org", []),
        ("<b>cat</b> {x}", "chat</b> {x}", ["<b>", "</b>"]),  # all tags, to keep their order
        ("{x} and {x}", "{x}", ["{x}", "{x}"]),
        ("1,000 and 12", "1 000 et 12", []),
        ("at -12 and -3.5", "à 12 et -3,5", ["-12"]),
        ("at -12", "à \u221212", []),
        ("from 10-12", "de 10 à 12", []),
        ("in v1.2.3", "en v1 2.3", ["v1.2.3"]),
        ("1.5 at 12:30", "15 à 1230", ["1.5", "12:30"]),
        ("1.5 at 12:30", "1,5 à 12.30", []),
        ("15 men", "15,5 hommes", ["15"]),
        ("in the 1990s, -5 °C", "aux années 1990, 5 °C", ["-5 °C"]),
        ("3 %", "3 pour cent", []),
    ],
)
def test_what_is_lost(source, translation, expected):
    assert [span.wanted for span in lost(protected(source, lambda _: True), translation)] == expected


def test_terms_within_terms_are_counted_apart():
    terms = [Term(0, 3, "chat"), Term(8, 17, "chat noir")]
    assert lost(terms, "un chat noir") == terms[:1]
    assert not lost(terms, "un chat noir, un Chat")


def test_a_forced_prefix_stays_in_front():
    source = "😀 the cat"
    _, gaps = take_out(source, protected(source, lambda _: True))
    pieces = ["▁le", "▁chat"]
    for prefix, expected in enumerate(["😀 le chat", "le 😀 chat", "le chat 😀"]):
        assert put_back(pieces, np.eye(2, 3), gaps, [0], lambda word: word.text, prefix) == expected


def test_tags_stay_in_their_order():
    """Whatever the model attends to."""
    random = np.random.default_rng(1)
    rest, gaps = take_out("see <b>the cat</b> now", protected("see <b>the cat</b> now", lambda _: True))
    boundaries = [len(rest[: gap.at].split()) for gap in gaps]
    for _ in range(50):
        weights = random.dirichlet([0.3] * 5, 4)
        text = put_back(["▁a", "▁b", "▁c", "▁d"], weights, gaps, boundaries, lambda word: word.text)
        assert text.index("<b>") < text.index("</b>")


# ---------------------------------------------------------------------------------------------------------------------
# Formats, prefixes, scores, glossary


@pytest.mark.parametrize("engine", ENGINES)
def test_jsonl(nmt, model, engine, trained):
    options = ("--format", "jsonl", "--n-best", 3, "--align", "--tokens", "--engine", engine)
    result = nmt("translate", model, *options, stdin=text_of(["", *SENTENCES[:9]]))
    assert result.code == 0, result.err
    blank, *entries = map(json.loads, result.text.splitlines())
    assert [entry["line"] for entry in entries] == list(range(2, 11))
    assert blank == {"line": 1, "source": "", "translation": "", "n_best": [], "flags": []}
    entries = [entry for entry in entries if not entry["flags"]]
    assert len(entries) > 3
    for entry in entries:
        assert entry["translation"] == entry["n_best"][0]["text"] and len(entry["n_best"]) == 3
        scores = [best["score"] for best in entry["n_best"]]
        assert scores == sorted(scores, reverse=True)
        for best in entry["n_best"]:
            assert trained.vocab.target.decode(best["tokens"]) == best["text"]
            if not best["token_logprobs"]:
                continue  # its repeats were cut, which only the first is flagged for
            assert len(best["token_logprobs"]) == len(best["tokens"]) + 1
            assert sum(best["token_logprobs"]) == pytest.approx(best["logprob"], abs=1e-3)
            assert best["logprob"] / len(best["token_logprobs"]) == pytest.approx(best["score"], abs=1e-4)
            pairs = [tuple(map(int, pair.split("-"))) for pair in best["alignment"].split()]
            assert sorted(t for _, t in pairs) == list(range(len(best["text"].split())))
            assert all(0 <= s < len(entry["source"].split()) for s, _ in pairs)


def test_tsv(nmt, model):
    result = nmt("translate", model, "--format", "tsv", "--n-best", 2, stdin=text_of([SENTENCES[0], ""]))
    rows = [line.split("\t") for line in result.text.splitlines()]
    assert [(row[0], row[1]) for row in rows] == [("1", "1"), ("1", "2"), ("2", "1")]
    assert float(rows[0][2]) >= float(rows[1][2]) and rows[2][3] == ""
    assert rows[0][3] == nmt("translate", model, stdin=text_of([SENTENCES[0]])).text.rstrip("\n")


def test_alignments_are_the_same_in_both_formats(nmt, model):
    tsv, jsonl = (nmt("translate", model, "--align", "--format", f, stdin=text_of(SENTENCES[:5])) for f in FORMATS)
    assert tsv.code == jsonl.code == 0, (tsv.err, jsonl.err)
    entries = [json.loads(line)["n_best"][0] for line in jsonl.text.splitlines()]
    assert [line.split("\t")[3:] for line in tsv.text.splitlines()] == [[e["text"], e["alignment"]] for e in entries]
    assert sum(bool(entry["alignment"]) for entry in entries) > 3


@pytest.mark.parametrize("name", ["a.en.gz", "a.en.xz"])
def test_compressed_input(nmt, model, write, name):
    pack = {".gz": gzip.compress, ".xz": lzma.compress}[Path(name).suffix]
    packed = nmt("translate", model, write(name, pack(text_of(SENTENCES[:5]))))
    assert packed.code == 0, packed.err
    assert packed.text == nmt("translate", model, stdin=text_of(SENTENCES[:5])).text


@pytest.mark.parametrize("engine", ENGINES)
def test_given_translations_are_scored(nmt, model, write, engine):
    """What the search says of its own translation is what force decoding says of it."""
    found = nmt("translate", model, "--format", "jsonl", "--alpha", 0.6, "--no-protect", stdin=text_of(SENTENCES[:8]))
    entries = [json.loads(line) for line in found.text.splitlines()]
    source, target = write("s.en", text_of(SENTENCES[:8])), write("t.fr", text_of([e["translation"] for e in entries]))
    options = ("--score-only", "--alpha", 0.6, "--engine", engine)
    beside = nmt("translate", model, source, "--target", target, *options)
    assert beside.code == 0, beside.err
    assert [float(line) for line in beside.text.split()] == pytest.approx(
        [e["n_best"][0]["score"] for e in entries], abs=1e-3
    )
    tsv = text_of([f"{e['source']}\t{e['translation']}" for e in entries])
    assert nmt("translate", model, *options, stdin=tsv).text == beside.text
    scored = nmt("translate", model, *options, "--format", "jsonl", "--tokens", stdin=tsv)
    for line, score, entry in zip(scored.text.splitlines(), beside.text.split(), entries, strict=True):
        scored_entry = json.loads(line)
        assert scored_entry["translation"] == entry["translation"]
        (only,) = scored_entry["n_best"]
        assert only["score"] == pytest.approx(float(score), abs=1e-5)
        length = len(only["token_logprobs"])
        assert only["score"] == pytest.approx(sum(only["token_logprobs"]) / length**0.6, abs=1e-4)


def test_score_only_mistakes(nmt, model, write):
    short = write("short.fr", "un\n")
    two = text_of(["a", "b"])
    assert_user_error(
        nmt("translate", model, "--score-only", "--target", short, stdin=two), "short.fr has only 1 lines"
    )
    assert_user_error(nmt("translate", model, "--score-only", stdin=two), "line 1: 1 column, but a TSV")
    assert_user_error(nmt("translate", model, "--target", short), "--score-only")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_forced_prefix(nmt, model, write, engine):
    prefixes = write("p.fr", "Le chat\n\nDemain\n")
    result = nmt("translate", model, "--prefix-file", prefixes, "--engine", engine, stdin=text_of(SENTENCES[:3]))
    assert result.code == 0, result.err
    lines = result.text.splitlines()
    assert lines[0].startswith("Le chat") and lines[2].startswith("Demain")
    assert lines[1] == nmt("translate", model, stdin=text_of(SENTENCES[1:2])).text.rstrip("\n")
    more = write("q.fr", "Le\n" * 4)
    result = nmt("translate", model, "--prefix-file", more, stdin=text_of(SENTENCES[:3]))
    assert result.code == 1 and "has more lines than the input's 3" in result.err


@pytest.mark.parametrize("engine", ENGINES)
def test_a_glossary(nmt, model, write, engine):
    terms = {"dog": "clebs", "garden": "jardinet", "cat": "matou"}
    glossary = write("g.tsv", "".join(f"{s}\t{t}\n" for s, t in terms.items()))
    lines = ["The dog sees the cat.", "The cat is in the garden.", "The Dog.", "Nothing of that."]
    result = nmt("translate", model, "--glossary", glossary, "--engine", engine, stdin=text_of(lines))
    assert result.code == 0, result.err
    for source, found in zip(lines, result.text.splitlines(), strict=True):
        for term, target in terms.items():
            assert (target in found.lower()) == (term in source.lower()), (source, found)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_term_that_occurs_twice_comes_twice(nmt, model, write, engine):
    glossary = write("g.tsv", "dog\tmédor\n")
    result = nmt("translate", model, "--glossary", glossary, "--engine", engine, stdin=b"the dog sees the dog.\n")
    assert result.text.count("médor") == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_a_term_ends_where_a_word_ends(nmt, model, write, engine):
    """With these the model would rather write on: its own words begin so."""
    terms = {"because": "par", "found": "tro", "box": "boî", "small": "pet", "happy": "heu", "old": "vie"}
    glossary = write("g.tsv", "".join(f"{s}\t{t}\n" for s, t in terms.items()))
    lines = [line for line in SENTENCES if any(re.search(rf"\b{term}\b", line.lower()) for term in terms)]
    assert len(lines) > 10
    result = nmt("translate", model, "--glossary", glossary, "--engine", engine, stdin=text_of(lines))
    assert result.code == 0, result.err
    for line, found in zip(lines, result.text.splitlines(), strict=True):
        for term, target in terms.items():
            wanted = re.findall(rf"\b{term}\b", line.lower())
            assert len(re.findall(rf"\b{target}\b", found.lower())) == len(wanted), (line, found)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_line_of_nothing_but_terms(nmt, model, write, engine):
    """Which the model cannot write."""
    glossary = write("g.tsv", "dog\tжук\ncat\t犬\n")
    lines = ["Dog", "dog", "Cat", "cat 😀", "Cat dog", "Dog!", "Dog (cat)."]
    result = nmt("translate", model, "--glossary", glossary, "--engine", engine, stdin=text_of(lines))
    assert result.text.splitlines() == ["Жук", "жук", "犬", "犬 😀", "犬 жук", "Жук!", "Жук (犬)."]
    prefixes = write("p.fr", "Voilà\n" * 2)
    text = text_of(["Dog!", "https://example.org/a!"])
    options = ("--glossary", glossary, "--engine", engine, "--prefix-file", prefixes)
    result = nmt("translate", model, *options, stdin=text)
    assert result.text.splitlines() == ["Voilà жук!", "Voilà https://example.org/a!"]


def test_both_engines_agree_on_a_glossary(nmt, model, write):
    """The cost of what was forced is told, and decides nothing."""
    glossary = write("g.tsv", "because\tcar\nfound\tretrouvé\nbox\tcaisse\nsmall\tminuscule\nthe\tce\n")
    options = ("--glossary", glossary, "--patience", 1, "--format", "jsonl")
    one, two = (
        [
            json.loads(line)
            for line in nmt("translate", model, *options, "--engine", e, stdin=text_of(SENTENCES)).text.splitlines()
        ]
        for e in ENGINES
    )
    assert sum("glossary" in line["flags"] for line in one) > 20
    assert [line["translation"] for line in one] == [line["translation"] for line in two]
    for a, b in zip(one, two, strict=True):
        assert a["n_best"][0]["score"] == pytest.approx(b["n_best"][0]["score"], abs=2e-3)


def test_neighbouring_terms_where_the_source_needs_no_space(write):
    glossary = load_glossary(write("g.tsv", "猫\tcat\n狗\tdog\n"), "nfc")
    text = "猫狗都在睡。"
    assert [gap.wanted for gap in take_out(text, glossary.find(text))[1]] == ["cat dog"]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_score_of_a_forced_term_is_the_models(nmt, model, write, engine):
    """What it was made to write costs what it costs; only what the user gave is free."""
    options = ("--engine", engine, "--format", "jsonl")
    glossary = write("g.tsv", "cat\tmatou\n")
    (line,) = nmt("translate", model, "--glossary", glossary, *options, stdin=b"the dog sees the cat.\n").text.split(
        "\n"
    )[:-1]
    found = json.loads(line)
    assert "matou" in found["translation"] and "glossary" in found["flags"]
    pair = f"the dog sees the cat.\t{found['translation']}\n".encode()
    given = json.loads(nmt("translate", model, "--score-only", *options, stdin=pair).text)
    assert found["n_best"][0]["score"] == pytest.approx(given["n_best"][0]["score"], abs=2e-3)


def test_the_terms_of_a_line_against_a_pattern_for_each(write):
    """Random terms in random lines, of letters, marks and characters that need no space."""
    random_ = random.Random(3)

    def text(length: int) -> str:
        return "".join(random_.choice("aAb é猫-+ ") for _ in range(length)).strip() or "a"

    for _ in range(200):
        terms = {" ".join(text(random_.randint(1, 4)).lower().split()): f"t{n}" for n in range(5)}
        glossary = load_glossary(write("g.tsv", "".join(f"{s}\t{t}\n" for s, t in terms.items())), "nfc")
        line, expected = text(20), []
        for source, target in terms.items():
            first, last = (re.match(r"[^\W猫]", source[at]) for at in (0, -1))
            pattern = (r"(?<!\w)" if first else "") + re.escape(source) + (r"(?!\w)" if last else "")
            matches = (re.compile(pattern).match(line.lower(), at) for at in range(len(line)))
            expected += [Term(match.start(), match.end(), target) for match in matches if match]
        assert glossary.find(line) == without_overlaps(expected)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_term_inside_of_something_else_is_none(nmt, model, write, engine):
    glossary = write("g.tsv", "cat\tmatou\npress {x}\tappuyer sur {x}\n")
    kept = ["{cat}", "https://x.org/cat/1", "cat@example.com", "%(cat)s", '<cat id="1">', "#cat"]
    lines = [f"the dog sees {thing} today." for thing in kept]
    result = nmt("translate", model, "--glossary", glossary, "--engine", engine, stdin=text_of(lines))
    for thing, line in zip(kept, result.text.splitlines(), strict=True):
        assert thing in line and "matou" not in line
    result = nmt("translate", model, "--glossary", glossary, "--engine", engine, stdin=b"press {x} now.\n")
    assert "appuyer sur {x}" in result.text.lower()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_prefix_may_repeat_itself(nmt, model, write, engine):
    prefix = write("p.fr", "la la la la la la\n")
    result = nmt("translate", model, "--prefix-file", prefix, "--engine", engine, stdin=b"The dog sleeps.\n")
    assert result.text.startswith("la la la la la la"), result.text


@pytest.mark.parametrize("engine", ENGINES)
def test_a_term_that_begins_the_sentence_has_a_capital(nmt, model, write, engine):
    glossary = write("g.tsv", "the\tce\n")
    result = nmt("translate", model, "--glossary", glossary, "--engine", engine, stdin=b"The dog sees a cat.\n")
    assert result.text.startswith("Ce "), result.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("dog\n", "line 1: 1 column"),
        ("dog\tchien\ndog\tclebs\n", 'line 2: "dog" has two translations'),
        ("dog\t \n", "line 1: a side of the entry is blank"),
        ("\n", "is empty"),
    ],
)
def test_bad_glossaries(nmt, model, write, content, message):
    assert_user_error(nmt("translate", model, "--glossary", write("g.tsv", content), stdin=b"a\n"), message)


def test_terms_are_whole_words_and_the_longest_wins(write):
    glossary = load_glossary(write("g.tsv", "cat\tA\nblack cat\tB\n猫\tC\nc++\tD\n"), "nfc")
    found = [(span.start, span.wanted) for span in glossary.find("Black cat, cats, CAT, 黒猫だ c++ concat")]
    assert found == [(0, "B"), (17, "A"), (23, "C"), (26, "D")]


# ---------------------------------------------------------------------------------------------------------------------
# Workers, shards, files


@pytest.mark.parametrize("engine", ENGINES)
def test_the_glossary_goes_before_protection(nmt, model, write, engine):
    """A term that the source vocabulary does not know, and one whose translation the target's does not."""
    terms = write("g.tsv", "北京\tPékin\ndog\t犬\n")
    text = text_of(["the cat sees 北京 today.", "the dog sees the cat."])
    result = nmt("translate", model, "--glossary", terms, "--engine", engine, stdin=text)
    assert result.code == 0, result.err
    first, second = result.text.splitlines()
    assert "Pékin" in first and "北京" not in first
    assert "犬" in second and "⁇" not in second


def test_a_prefix_that_cannot_be_written(nmt, model, write):
    prefixes = write("p.fr", "\n犬 est\n")
    assert_user_error(nmt("translate", model, "--prefix-file", prefixes, stdin=b"a\nb\n"), "the prefix of line 2")


@pytest.mark.parametrize("engine", ENGINES)
def test_workers_keep_the_order(nmt, model, engine):
    options = ("--engine", engine, "--batch-tokens", 100)
    one, three = (nmt("translate", model, *options, "--workers", n, stdin=text_of(SENTENCES)) for n in (1, 3))
    assert one.code == three.code == 0 and one.text == three.text


def test_shards_make_up_the_whole(nmt, model, write):
    path = write("x.en", text_of(SENTENCES[:20]))
    whole = nmt("translate", model, path).out
    assert b"".join(nmt("translate", model, path, "--shard", f"{i}/3").out for i in (1, 2, 3)) == whole
    prefixes = ("--prefix-file", write("p.fr", "le\n" * 20))
    whole = nmt("translate", model, path, *prefixes).out
    assert b"".join(nmt("translate", model, path, *prefixes, "--shard", f"{i}/3").out for i in (1, 2, 3)) == whole
    more = nmt("translate", model, path, "--prefix-file", write("q.fr", "le\n" * 21), "--shard", "3/3")
    assert more.code == 1 and "q.fr has more lines" in more.err
    numbered = nmt("translate", model, path, "--shard", "2/4", "--format", "tsv").text.splitlines()
    assert [line.split("\t")[0] for line in numbered] == ["6", "7", "8", "9", "10"]


def test_several_files_are_one_input(nmt, model, write):
    one, two = write("1.en", text_of(SENTENCES[:3])), write("2.en", text_of(SENTENCES[3:5]))
    found = nmt("translate", model, one, two)
    assert found.text == nmt("translate", model, "-", stdin=text_of(SENTENCES[:5])).text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_signal_leaves_nothing_behind(model, tmp_path, engine, number):
    command = [sys.executable, "-m", "nmt_cli", "translate", str(model), "--engine", engine, "--out", "out.fr"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"the cat.\n")
    process.stdin.flush()
    deadline = time.monotonic() + 60
    while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(1)
    process.send_signal(number)
    assert process.wait(30) == 128 + number and b"Traceback" not in process.stderr.read()
    assert not list(tmp_path.iterdir())


def test_out_is_whole_or_not_there(nmt, model, write, tmp_path):
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


def test_stats_are_on_stderr(nmt, model):
    result = nmt("translate", model, "--stats", stdin=text_of(SENTENCES[:2]))
    assert len(result.text.splitlines()) == 2
    for part in (
        *("2 lines", "lines/s", "tokens/s", "start-up", "first line after"),
        "MB at most in a process",
        "ctranslate2",
    ):
        assert part in result.err


@pytest.mark.parametrize(("files", "total"), [(True, "30/30"), (False, "30/?")])
def test_a_bar_for_those_who_watch(model, write, files, total):
    """On stderr, if that is a terminal and the output goes elsewhere."""
    source = write("x.en", text_of(SENTENCES[:30]))
    command = [sys.executable, "-m", "nmt_cli", "translate", str(model), *([str(source)] if files else [])]
    keyboard, screen = os.openpty()
    with source.open("rb") as lines:
        done = subprocess.run(command, stdin=lines, stdout=subprocess.PIPE, stderr=screen, check=True)
    os.close(screen)
    shown = os.read(keyboard, 1 << 16).decode()
    assert "translating" in shown and total in shown
    assert len(done.stdout.splitlines()) == 30 and b"\x1b" not in done.stdout
    keyboard, screen = os.openpty()
    with source.open("rb") as lines:  # both on the terminal: a bar would be in the way
        subprocess.run(command, stdin=lines, stdout=screen, stderr=screen, check=True)
    os.close(screen)
    assert "translating" not in os.read(keyboard, 1 << 16).decode()
    coloured = {**os.environ, "FORCE_COLOR": "1"}  # is no terminal
    done = subprocess.run([*command, str(source)], capture_output=True, env=coloured, check=True)
    assert done.stderr == b""


MISTAKES = [
    (["--n-best", 2], "does not fit on one line"),
    (["--align"], "does not fit on one line"),
    (["--tokens", "--format", "tsv"], "only in jsonl"),
    (["--beam", 2, "--n-best", 3, "--format", "tsv"], "n_best must be at most beam"),
    (["--beam", 0], "--beam"),
    (["--shard", "1/2"], "--shard needs a file"),
    (["--shard", "3/2"], "not of the form"),
    (["none.en"], "there is no file none.en"),
    (["-", "-"], "named twice"),
    (["--prefix-file", "none.fr"], "there is no file none.fr"),
    (["--engine", "ctranslate2", "--sample"], "ctranslate2 engine cannot be used"),
    (["--engine", "torch", "--type", "int8"], "no --type int8"),
    (["--engine", "ctranslate2", "--no-repeat-ngram", 3], "what stands against it is pieces that are ruled out"),
    (["--sample", "--type", "int8"], "leave --type out"),
    (["--top-k", 5], "add --sample"),
    (["--temperature", 0.5], "add --sample"),
    (["--type", "int9"], "int9 is none of"),
    (["--device", "cuda", "--engine", "torch"], "the device cuda is not there"),
    (["--device", "cuda", "--engine", "ctranslate2"], "the device cuda is not there"),
    (["--device", "cuda:0"], "cuda:0"),
    (["--forbid", "猫"], "the model has no piece for it"),
    (["--engine", "ctranslate2", "--repetition-penalty", 1.2], "--repetition-penalty"),
    (["--score-only", "--n-best", 2, "--format", "tsv"], "--score-only goes without"),
    (["--score-only", "--forbid", "the"], "--score-only goes without"),
    (["--score-only", "--sample"], "--score-only goes without"),
    (["--max-ratio", "inf"], "max_ratio must be"),
    (["--max-ratio", "1e308"], "max_ratio must be"),
    (["--alpha", 1000], "alpha must be"),
    (["--patience", "1e308"], "patience must be"),
    (["--sample", "--temperature", "inf"], "temperature must be"),
    (["--glossary", "-"], "named twice"),
    (["--shard", "²/3"], "not of the form"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes(nmt, model, options, message):
    assert_user_error(nmt("translate", model, *options, stdin=b"a\n"), message)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_named_pipe_is_answered_line_by_line(model, tmp_path, suffix):
    import zstandard

    def packed(text: bytes) -> bytes:
        return {"": lambda t: t, ".gz": gzip.compress, ".zst": zstandard.compress}[suffix](text)

    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "nmt_cli", "translate", str(model), str(pipe)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process, pipe.open("wb", buffering=0) as feed:
        for _ in range(2):
            feed.write(packed(b"the cat.\n"))
            assert select.select([process.stdout], [], [], 60)[0], "no answer before the end of input"
            assert process.stdout.readline().strip()
        feed.close()
        assert process.wait(60) == 0


def test_a_pipe_may_be_named_like_a_file(nmt, model):
    lines = "".join(line + "\n" for line in SENTENCES[:3])
    expected = nmt("translate", model, stdin=lines.encode()).text
    script = f"{sys.executable} -m nmt_cli translate {model} <(printf '%s' \"$1\")"
    done = subprocess.run(["bash", "-c", script, "bash", lines], capture_output=True, text=True, check=False)
    assert done.stdout == expected and expected.count("\n") == 3
    script += " --shard 1/2"
    done = subprocess.run(["bash", "-c", script, "bash", lines], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "--shard needs a file" in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_closed_descriptors(model, closed):
    script = f"echo 'the cat.' | {sys.executable} -m nmt_cli translate {model} {closed}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr and (done.returncode == 0 or closed != "2>&-")
    if closed == ">&-":
        assert done.returncode == 1 and "standard output is closed" in done.stderr


def test_nobody_needs_to_read_the_warnings(model, write):
    """The output is there whole, wherever stderr goes."""
    long = " ".join(SENTENCES[:30])
    text = write("long.en", f"{long}\n" * 6)
    for where in ("2> >(head -1 > /dev/null)", "2>/dev/full", "2>&-"):
        script = f"{sys.executable} -m nmt_cli translate {model} {text} {where}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and done.stdout.count("\n") == 6, where


def test_the_minimum_length_gives_way_to_the_maximum(nmt, model):
    assert nmt("translate", model, "--min-length", 50, "--max-ratio", 1, stdin=b"the cat sees a dog.\n").code == 0


def test_a_given_translation_longer_than_the_positions(nmt, model):
    pairs = ("the cat.\tle chat.\nthe cat.\t" + "le chat " * 1500 + "\n").encode()
    fast = nmt("translate", model, "--score-only", stdin=pairs)
    assert fast.code == 0 and "warning: line 2 has more pieces than this engine has positions" in fast.err
    one, two = fast.text.split()
    assert float(one) < 0 and two == "nan"
    json_lines = nmt("translate", model, "--score-only", "--format", "jsonl", stdin=pairs).text.splitlines()
    assert json.loads(json_lines[1])["n_best"][0]["score"] is None and json.loads(json_lines[1])["flags"] == [
        "unscored"
    ]
    _, two = nmt("translate", model, "--score-only", "--engine", "torch", stdin=pairs).text.split()
    assert float(two) < 0


@pytest.mark.parametrize(
    ("text", "unknown", "expected"),
    [
        ("see x\u0302 now", "\u0302", ["x\u0302"]),  # an accent and its letter
        ("learn C# now", "#", ["C#"]),
        ("at 15 °C now", "°", ["°C"]),
        ("AT&T, it is", "&", ["AT&T"]),
        ("a “word” here", "“”", ["“", "”"]),  # marks that stand by a word are no part of it
        ("Müller-Lüdenscheidt is", "ü", ["Müller-Lüdenscheidt"]),
        ("the ▁ cat", "▁", ["▁"]),
    ],
)
def test_what_an_unknown_character_belongs_to(text, unknown, expected):
    spans = protected(text, lambda character: character not in unknown)
    assert [span.wanted for span in spans if not span.number] == expected


def test_the_mark_of_the_vocabulary_for_a_space_survives(nmt, model):
    assert "▁" in nmt("translate", model, stdin="the ▁ cat sees the dog.\n".encode()).text


def test_unknown_characters_by_the_thousand_are_one_span():
    assert [span.wanted for span in protected("a " + "北" * 100_000, lambda c: c != "北")] == ["北" * 100_000]


class Says:
    """An engine that always gives the same pieces."""

    name = "says"

    def __init__(self, ids: list[int]) -> None:
        self.ids = tuple(ids)

    def translate(self, requests, options):
        return [[Hypothesis(self.ids, -1.0, -1.0 * (len(self.ids) + 1), (), True, None)] for _ in requests]

    def score(self, pairs, alpha):
        raise NotImplementedError


def test_a_forced_term_touches_what_its_place_touched(trained, write, tmp_path):
    """No space comes behind an opening bracket."""
    source, target, settings = "He sees (cat).", "Il voit (chat).", recipe.Vocab(size=300)
    texts = [source, target, *(side for pair in TEST[:50] for side in pair)]
    write_vocab(tmp_path / "v", {"joint": learn(iter(texts), settings, "toy")}, trained.recipe.data, settings)
    vocab = load_vocab(tmp_path / "v")
    sources, targets = (vocab.source.encode(text, out_type=str) for text in (source, target))
    attention = np.zeros((len(targets) + 1, len(sources) + 1))
    behind = [next(n for n, piece in enumerate(pieces) if "(" in piece) + 1 for pieces in (targets, sources)]
    attention[behind[0], behind[1]] = 1  # what stands behind the bracket looks at what stands behind that one

    class Obeys(Says):
        """Goes on behind what it is made to write."""

        def translate(self, requests, options):
            ends = tuple(vocab.target.piece_to_id([")", "."]))
            found = [(*request.prefix, *ends) if request.prefix else self.ids for request in requests]
            return [[Hypothesis(ids, -1.0, -1.0 * (len(ids) + 1), (), True, attention)] for ids in found]

    glossary = load_glossary(write("g.tsv", "cat\tmatou\n"), "nfc")
    engine = Obeys(vocab.target.piece_to_id(targets))
    translator = Translator(Workers(engine, 1, False), vocab, Settings(SearchOptions(), 4000, 100), glossary)
    (found,) = translator.translate([Row(1, source)])
    assert found.text == "Il voit (matou)." and found.flags == {"glossary"}


def test_a_line_end_spelt_in_bytes_stays_inside_its_line(trained, tmp_path):
    """With byte fallback every byte is a piece, a model can write a newline, and half a character too."""
    settings = recipe.Vocab(size=400, byte_fallback=True)
    texts = [side for pair in TEST[:50] for side in pair]
    write_vocab(tmp_path / "v", {"joint": learn(iter(texts), settings, "toy")}, trained.recipe.data, settings)
    vocab = load_vocab(tmp_path / "v")
    written = [vocab.target.piece_to_id(piece) for piece in ("▁la", "<0x0A>", "<0x0D>", "<0x00>", "<0xE2>", "▁la")]
    assert UNK not in written
    translator = Translator(Workers(Says(written), 1, False), vocab, Settings(SearchOptions(), 4000, 100))
    (found,) = translator.translate([Row(1, "the cat.")])
    assert found.text.startswith("la") and found.text.endswith("la")
    assert not any(unicodedata.category(character).startswith("C") for character in found.text)


def test_no_control_character_leaves_in_jsonl(nmt, model):
    result = nmt("translate", model, "--format", "jsonl", stdin="the\u2028cat\x85 sees\x7f.\n".encode())
    assert json.loads(result.text)["source"] == "the\u2028cat\x85 sees\x7f."
    assert all(
        character == "\n" or unicodedata.category(character)[0] not in "CZ" or character == " "
        for character in result.text
    )


def test_a_model_without_attention(nmt, model, tmp_path):
    """What it loses is put back word by word, and a glossary works so too; alignments it has none."""
    trained = load_model(model)
    config = Rnn(dim=32, attention="none", encoder_layers=1, decoder_layers=1)
    torch.manual_seed(1)
    weights = build_model(config, *trained.vocab.sizes).state_dict()
    save_model(tmp_path / "rnn", weights, replace(trained.recipe, model=config), model / "model/vocab", {})
    (tmp_path / "terms.tsv").write_text("cat\tminou\n")
    result = nmt("translate", tmp_path / "rnn", "--glossary", tmp_path / "terms.tsv", stdin=b"the cat {x} sees 1234.\n")
    assert result.code == 0 and all(part in result.text for part in ("{x}", "1234", "minou"))
    refused = nmt("translate", tmp_path / "rnn", "--align", "--format", "tsv", stdin=b"the cat.\n")
    assert_user_error(refused, "no attention to align words by")


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
def test_a_damaged_vocabulary_is_named(nmt, model, tmp_path, name, content):
    shutil.copytree(model / "model", tmp_path / "copy")
    (tmp_path / "copy/vocab" / name).write_bytes(content)
    assert_user_error(nmt("translate", "copy", stdin=b"a\n"), "the vocabulary in", "damaged")


@pytest.mark.parametrize(("name", "message"), [("none", "there is no model none"), (".", "is not a model")])
def test_no_model(nmt, name, message):
    assert_user_error(nmt("translate", name), message)


# ---------------------------------------------------------------------------------------------------------------------
# Engine against engine


def briefly_trained(trained: Trained, **changes) -> Trained:
    """A tiny model on the toy's vocabulary, trained for seconds: enough to have opinions and to come to an end."""
    settings = {"dim": 32, "heads": 4, "ff": 48, "encoder_layers": 2, "decoder_layers": 2, "max_positions": 64}
    config = Transformer(**{**settings, **changes, "dropout": 0.0})
    torch.manual_seed(1)
    model = build_model(config, *trained.vocab.sizes)
    loss, optimizer = TrainingLoss(model, Train()), torch.optim.Adam(model.parameters(), 3e-3)
    sides = [trained.vocab.encode_source([pair[side] for pair in TEST]) for side in (0, 1)]
    for step in range(100):
        rows = slice(24 * (step % 20), 24 * (step % 20) + 24)
        batch = make_batch(sides[0][rows], sides[1][rows])
        value, _, count = loss(*(torch.from_numpy(array) for array in (batch.src, batch.tgt_in, batch.tgt_out)))
        (value / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    return Trained(model.eval(), trained.vocab, replace(trained.recipe, model=config), {})


VARIANTS = [
    {"norm": "pre", "tie": "all"},
    {"norm": "post", "tie": "all"},
    {"norm": "pre", "tie": "none", "positions": "learned", "activation": "gelu"},
    {"norm": "post", "tie": "target", "positions": "learned", "activation": "swish"},
    {"norm": "post", "tie": "none"},
]


def separate_vocab(trained: Trained, folder: Path) -> Vocab:
    """Pieces of the test's English and of its French."""
    settings = recipe.Vocab(size=300, joint=False)
    texts = {"source": [pair[0] for pair in TEST], "target": [pair[1] for pair in TEST[:300]]}
    sizes = {"source": settings, "target": replace(settings, size=350)}
    models = {side: learn(iter(lines), sizes[side], side) for side, lines in texts.items()}
    write_vocab(folder, models, trained.recipe.data, settings)
    return load_vocab(folder)


def both_engines(trained: Trained, folder: Path) -> tuple[TorchEngine, CTranslate2Engine]:
    to_ctranslate2(trained, folder / "ct2")
    torch_engine = TorchEngine.__new__(TorchEngine)
    torch_engine.models, torch_engine.device = [trained.model], torch.device("cpu")
    return torch_engine, CTranslate2Engine(folder / "ct2", trained.vocab, "float32", "cpu", 1)


@torch.inference_mode()
def end_ranks(engine: TorchEngine, source: list[int], prefix: tuple[int, ...]) -> int:
    """How many pieces are more probable behind the prefix than the end is."""
    logits = engine.models[0](torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *prefix]]))[0, -1]
    return int((logits > logits[EOS]).sum())


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: f"{v['norm']}-{v['tie']}")
def test_both_engines_find_the_same(trained, tmp_path, variant):
    """n-best texts, scores and attention, with and without prefixes, greedy and by beam, with the same rule to stop."""
    reference, fast = both_engines(briefly_trained(trained, **variant), tmp_path)
    sources = sorted(trained.vocab.encode_source(SENTENCES[:12]), key=len)
    wide = {"patience": 1.0}
    for options in (
        SearchOptions(beam=1),
        SearchOptions(beam=4, n_best=3, alpha=0.7, **wide),
        SearchOptions(beam=5, alpha=1.2, **wide),
        SearchOptions(beam=5, alpha=0.0, n_best=3, **wide),
        SearchOptions(beam=5, n_best=3, patience=0.5),
        SearchOptions(beam=5, n_best=2, patience=1.25),
    ):
        second = range(1, 2 * options.beam)
        for prefix in ((), (20, 30)):
            requests = [Request(tuple(source), prefix, attention=True, tokens=True) for source in sources]
            a, b = reference.translate(requests, options), fast.translate(requests, options)
            # At the longest length CTranslate2 has other rules, and for an end right behind a prefix.
            alike = [
                all(h.finished for found in pair for h in found) and end_ranks(reference, source, prefix) not in second
                for source, *pair in zip(sources, a, b, strict=True)
            ]
            assert sum(alike) >= len(sources) / 2
            pairs = [pair for pair, same in zip(zip(a, b, strict=True), alike, strict=True) if same]
            widths = [len(source) + 1 for source, same in zip(sources, alike, strict=True) if same]
            for (ours, theirs), width in zip(pairs, widths, strict=True):
                assert [h.ids for h in ours] == [h.ids for h in theirs]
                assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)
                for one, two in zip(ours, theirs, strict=True):
                    assert one.token_logprobs == pytest.approx(two.token_logprobs, abs=1e-3)
                    assert two.attention.shape == (len(two.ids), width)
                    np.testing.assert_allclose(one.attention[: len(one.ids), :width], two.attention, atol=1e-4)
    pairs = [(source, source[::-1][:9]) for source in sources]
    for one, two in zip(reference.score(pairs, 0.5), fast.score(pairs, 0.5), strict=True):
        assert one.score == pytest.approx(two.score, abs=1e-4)


def test_the_trained_model_in_both_engines(model, trained):
    reference = TorchEngine([model], "cpu")
    fast = CTranslate2Engine(model / "model/ctranslate2", trained.vocab, "float32", "cpu", 1)
    requests = [Request(tuple(ids)) for ids in sorted(trained.vocab.encode_source(SENTENCES), key=len)]
    options = SearchOptions(n_best=3, patience=1.0, forbidden=(UNK,))  # as every command has it
    for ours, theirs in zip(reference.translate(requests, options), fast.translate(requests, options), strict=True):
        assert [h.ids for h in ours] == [h.ids for h in theirs]
        assert not any({PAD, BOS} & set(h.ids) for h in theirs)  # label smoothing would have them on a list of n best
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)
    # By default the reference stops when it is certain, and CTranslate2, which cannot, late: rarely too early.
    options = SearchOptions(forbidden=(UNK,))
    ours, theirs = ([found[0] for found in engine.translate(requests, options)] for engine in (reference, fast))
    assert all(one.score >= two.score - 1e-3 for one, two in zip(ours, theirs, strict=True))
    assert sum(one.ids != two.ids for one, two in zip(ours, theirs, strict=True)) <= 0.1 * len(requests)


def test_sampling_is_the_same_for_the_same_seed(model, trained):
    engine = TorchEngine([model], "cpu")
    requests = [Request(tuple(ids), number=n) for n, ids in enumerate(trained.vocab.encode_source(SENTENCES[:6]))]
    one, two, other = (
        engine.translate(requests, SearchOptions(sample=True, temperature=3, seed=seed)) for seed in (7, 7, 8)
    )
    assert one == two != other
    alone = engine.translate(requests[2:3], SearchOptions(sample=True, temperature=3, seed=7))
    assert alone[0][0].ids == one[2][0].ids


def test_options_of_the_search(nmt, model, trained):
    """Each through the command, and seen in what comes out."""

    def pieces(*options: object, lines: list[str] = SENTENCES[:4]) -> list[list[str]]:
        result = nmt(
            "translate", model, "--engine", "torch", "--format", "jsonl", "--tokens", *options, stdin=text_of(lines)
        )
        assert result.code == 0, result.err
        return [best["tokens"] for line in result.text.splitlines() for best in json.loads(line)["n_best"]]

    plain = pieces()
    banned = trained.vocab.target.decode(plain[0][:1])
    without = pieces("--forbid", banned)
    assert all(plain[0][0] not in found for found in without) and without != plain
    assert min(map(len, pieces("--min-length", 14))) >= 14
    long = " and ".join(SENTENCES[:3])
    assert len(pieces("--max-ratio", 0.1, lines=[long])[0]) <= 0.1 * len(trained.vocab.source.encode(long)) + 10
    assert len(pieces(lines=[long])[0]) > 0.1 * len(trained.vocab.source.encode(long)) + 10
    assert [len(found) for found in pieces("--alpha", 10)] > [len(found) for found in pieces("--alpha", 0)]
    for found in pieces("--no-repeat-ngram", 1, "--min-length", 14):
        assert len(set(found)) == len(found)
    assert pieces("--repetition-penalty", 5, "--min-length", 14) != pieces("--min-length", 14)


def test_sampling_through_the_command(nmt, model):
    def drawn(*options: object) -> str:
        result = nmt("translate", model, "--sample", "--workers", 1, *options, stdin=text_of(SENTENCES[:3]))
        assert result.code == 0, result.err
        return result.text

    assert drawn("--seed", 3) == drawn("--seed", 3) != drawn("--seed", 4)
    greedy = nmt("translate", model, "--beam", 1, "--engine", "torch", stdin=text_of(SENTENCES[:3])).text
    assert drawn("--top-k", 1) == drawn("--top-p", 0.001) == drawn("--temperature", 0.01) == greedy


def test_ensembles(nmt, model, trained, tmp_path):
    both = nmt("translate", model, "--ensemble", model, stdin=text_of(SENTENCES[:4]))
    assert both.code == 0, both.err
    assert both.text == nmt("translate", model, "--engine", "torch", stdin=text_of(SENTENCES[:4])).text
    # Another model: each probability is the mean of the two.
    second = briefly_trained(trained, max_positions=300)
    save_model(tmp_path / "second", second.model.state_dict(), second.recipe, model / "model/vocab", {})
    pairs = text_of([f"{pair[0]}\t{pair[1]}" for pair in TEST[:4]])
    scored = {}
    for name, options in {
        "one": [model],
        "two": [tmp_path / "second"],
        "both": [model, "--ensemble", tmp_path / "second"],
    }.items():
        result = nmt(
            "translate", *options, "--score-only", "--engine", "torch", "--format", "jsonl", "--tokens", stdin=pairs
        )
        assert result.code == 0, result.err
        scored[name] = [json.loads(line)["n_best"][0]["token_logprobs"] for line in result.text.splitlines()]
    for one, two, both in zip(scored["one"], scored["two"], scored["both"], strict=True):
        assert both == pytest.approx(np.log((np.exp(one) + np.exp(two)) / 2), abs=1e-3)
    other = tmp_path / "other"
    shutil.copytree(model / "model", other)
    proto = bytearray((other / "vocab/joint.model").read_bytes())
    at = proto.index("▁the".encode())
    proto[at : at + 6] = "▁thx".encode()
    (other / "vocab/joint.model").write_bytes(bytes(proto))
    assert_user_error(nmt("translate", model, "--ensemble", other, stdin=b"a\n"), "another vocabulary")


# ---------------------------------------------------------------------------------------------------------------------
# The translator, with an engine that is easy to foresee


class Echo:
    """Writes the source, by a joint vocabulary, and attends to what it copies; a sentence of `lose` it drops."""

    name = "echo"

    def __init__(self, lose: int = -1) -> None:
        self.lose, self.seen = lose, []

    def translate(self, requests, options):
        self.seen.append(requests)
        found = []
        for request in requests:
            ids = tuple(index for index in request.source if index not in (UNK, self.lose))
            weights = np.zeros((len(ids) + 1, len(request.source) + 1))
            kept = [n for n, index in enumerate(request.source) if index not in (UNK, self.lose)]
            weights[np.arange(len(kept)), kept] = 1
            found.append([Hypothesis(ids, -1.0, -1.0 * (len(ids) + 1), (), True, weights)])
        return found

    def score(self, pairs, alpha):
        raise NotImplementedError


def test_the_translator_batches_by_length_and_keeps_the_order(trained):
    engine = Echo()
    translator = Translator(Workers(engine, 1, False), trained.vocab, Settings(SearchOptions(), 40, 200))
    lines = ["the cat.", "", *SENTENCES[:9], "x {name} y."]
    found = translator.translate([Row(n, line) for n, line in enumerate(lines, 1)])
    assert [one.row.number for one in found] == list(range(1, len(lines) + 1))
    assert found[1].text == "" and "{name}" in found[-1].text
    assert all(request.source for batch in engine.seen for request in batch)  # nobody is asked about blank lines
    for batch in engine.seen:
        assert len(batch) == 1 or len(batch) * (max(len(request.source) for request in batch) + 1) <= 40


# ---------------------------------------------------------------------------------------------------------------------
# Export


def test_force_replaces_nothing_else(nmt, model, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis.txt").write_text("years")
    refused = nmt("export", model, "--to", "hf", "--out", "precious", "--force")
    assert_user_error(refused, "something else than an exported model")
    assert (tmp_path / "precious/thesis.txt").read_text() == "years"
    (tmp_path / "precious/config.json").write_text("{}")  # many programs have one
    assert_user_error(nmt("export", model, "--to", "hf", "--out", "precious", "--force"), "something else")
    assert_user_error(nmt("translate", model, "--out", "precious", "--force", stdin=b"the cat.\n"), "is a folder")
    (tmp_path / "old.fr").write_text("old")
    (tmp_path / "link.fr").symlink_to("old.fr")
    assert nmt("translate", model, "--out", "link.fr", "--force", stdin=b"the cat.\n").code == 0
    assert (tmp_path / "link.fr").is_symlink() and (tmp_path / "old.fr").read_text() not in ("", "old")
    assert nmt("translate", model, "--out", "/dev/null", stdin=b"the cat.\n").code == 0
    assert not Path("/dev/null").is_file()


def test_export_mistakes_and_force(nmt, model, trained, tmp_path):
    assert_user_error(nmt("export", model, "--to", "ctranslate2"), "exists", "--force")
    assert_user_error(nmt("export", model, "--to", "hf"), "--out must say")
    assert_user_error(nmt("export", model, "--to", "ctranslate2", "--out", "x", "--type", "int9"), "int9 is none of")
    assert_user_error(nmt("export", model, "--to", "hf", "--out", "x", "--type", "int8"), "only for ctranslate2")
    assert_user_error(nmt("export", model, "--to", "onnx"), "onnx")
    assert not (tmp_path / "x").exists()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for _ in range(2):  # what a link points to is replaced, not the link
        assert nmt("export", model, "--to", "ctranslate2", "--out", "link", "--force").code == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real/model.bin").exists()
    size = (model / "model/ctranslate2/model.bin").stat().st_size
    for name, most in (("int8", 0.5), ("int16", 0.7), ("float16", 0.6)):
        assert nmt("export", model, "--to", "ctranslate2", "--out", name, "--type", name).code == 0
        assert (tmp_path / name / "model.bin").stat().st_size < most * size
        assert CTranslate2Engine(tmp_path / name, trained.vocab, "float32", "cpu", 1).translate(
            [Request((5, 6, 7))], SearchOptions()
        )


@pytest.mark.parametrize(
    "variant",
    [
        {"norm": "post", "tie": "all"},
        {"norm": "post", "tie": "none", "activation": "gelu"},
        {"norm": "post", "tie": "target"},
        {"norm": "pre", "tie": "all", "activation": "swish"},
        {"norm": "pre", "tie": "all", "positions": "learned"},
    ],
)
def test_transformers_gives_the_same_logits(trained, tmp_path, variant, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
    ours = briefly_trained(trained, **variant)
    to_hf(ours, tmp_path / "hf")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    src = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]])
    tgt = torch.tensor([[BOS, 5, 6, 9], [BOS, 7, 7, 7]])
    with torch.no_grad():
        logits = theirs(input_ids=src, attention_mask=(src != PAD).long(), decoder_input_ids=tgt).logits
        torch.testing.assert_close(ours.model(src, tgt), logits, atol=1e-5, rtol=1e-5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert tokenizer(SENTENCES[0]).input_ids == [*trained.vocab.encode_source(SENTENCES[:1])[0], EOS]


def test_export_to_hf_by_command(nmt, model, trained, tmp_path, monkeypatch):
    """What nmt translates greedily, transformers generates from the exported folder."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
    exported = nmt("export", model, "--to", "hf", "--out", "hf")
    assert exported.code == 0, exported.err
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    requests = [Request(tuple(ids)) for ids in trained.vocab.encode_source(SENTENCES[:5])]
    options = SearchOptions(beam=1, forbidden=(UNK,))
    found = [TorchEngine([model], "cpu").translate([request], options)[0][0] for request in requests]
    ours = [trained.vocab.target.decode(list(best.ids)) for best in found]
    with torch.no_grad():
        for sentence, expected in zip(SENTENCES[:5], ours, strict=True):
            inputs = tokenizer(sentence, return_tensors="pt")
            (found,) = theirs.generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=60)
            assert tokenizer.decode(found, skip_special_tokens=True) == expected


def test_export_to_hf_with_two_vocabularies(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers is not installed")
    vocab = separate_vocab(trained, tmp_path / "vocab")
    assert vocab.sizes[0] != vocab.sizes[1]
    config = Transformer(dim=32, heads=4, ff=48, encoder_layers=1, decoder_layers=1, norm="post", tie="target")
    ours = Trained(build_model(config, *vocab.sizes).eval(), vocab, replace(trained.recipe, model=config), {})
    to_hf(ours, tmp_path / "hf")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    source, target = TEST[0]
    pairs = (vocab.encode_source([source])[0], vocab.encode_target([target])[0])
    assert [tokenizer(source).input_ids, tokenizer(text_target=target).input_ids] == [[*ids, EOS] for ids in pairs]
    src, tgt = torch.tensor([[*pairs[0], EOS]]), torch.tensor([[BOS, *pairs[1]]])
    with torch.no_grad():
        logits = theirs(input_ids=src, decoder_input_ids=tgt).logits
        torch.testing.assert_close(ours.model(src, tgt), logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", [{"norm": "post", "positions": "learned"}, {"norm": "pre", "tie": "none"}])
def test_transformers_has_nothing_that_fits(trained, tmp_path, variant):
    from nmt_cli.errors import NmtError

    with pytest.raises(NmtError, match="transformers has no"):
        to_hf(briefly_trained(trained, **variant), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
