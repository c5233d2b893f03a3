"""`nmt score`, against the sacrebleu command and by hand: numbers, warnings, mistakes, and what is drawn."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from support.checks import assert_user_error

from nmt_cli.errors import NmtError
from nmt_cli.scoring.draw import closest, differences, draw_report
from nmt_cli.scoring.metrics import (
    TOKENIZERS,
    ScoreOptions,
    check_options,
    choose_tokenizer,
    corpus_scores,
    score,
    standard_tokenizer,
    tokenizer_for,
)
from nmt_cli.scoring.texts import Texts, read_texts, suspicions
from nmt_cli.text.languages import language_of
from nmt_cli.text.words import count_words

WORDS = "der die das Hund Katze läuft schläft über Straße, grüne Wiese »nach« Hause heute nicht sehr".split()  # noqa: SIM905


def sentences(seed: int, count: int = 60) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, 14))) + "." for _ in range(count)]


def worsened(lines: list[str], seed: int, share: float) -> list[str]:
    chance = random.Random(seed)
    return [
        " ".join(word if chance.random() > share else chance.choice(WORDS) for word in line.split()) for line in lines
    ]


REFERENCE = sentences(1)
FILES = {
    "ref.de": REFERENCE,
    "ref2.de": worsened(REFERENCE, 2, 0.4),
    "src.en": sentences(3),
    "a.de": worsened(REFERENCE, 4, 0.3),
    "b.de": worsened(REFERENCE, 5, 0.45),
}


@pytest.fixture
def files(write):
    for name, lines in FILES.items():
        write(name, "\n".join(lines) + "\n")


def sacrebleu(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "sacrebleu", *arguments, "--quiet", "--width", "8"]
    env = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=env).stdout


def tsv(result) -> list[dict[str, str]]:
    assert result.code == 0, result.err
    return list(csv.DictReader(io.StringIO(result.text), delimiter="\t", quoting=csv.QUOTE_NONE))


def quiet(stage: str, done: int, total: int) -> None:
    pass


def texts(systems: dict[str, list[str]], *references: list[str], source: list[str] | None = None) -> Texts:
    return Texts(systems, {f"ref{n}": lines for n, lines in enumerate(references)}, source)


# ---------------------------------------------------------------------------------------------------------------------
# The numbers are sacrebleu's


@pytest.mark.parametrize("references", [["ref.de"], ["ref.de", "ref2.de"]])
def test_the_sacrebleu_command_says_the_same(nmt, files, tmp_path, references):
    """Scores, means, intervals and signatures, with one reference and with two."""
    theirs = json.loads(sacrebleu(tmp_path, *references, "-i", "a.de", "-m", "bleu", "chrf", "ter", "--confidence"))
    plus = json.loads(sacrebleu(tmp_path, *references, "-i", "a.de", "-m", "chrf", "--chrf-word-order", "2", "-ci"))
    named = [word for name in references for word in ("--ref", name)]
    result = nmt("score", "a.de", *named, "--metrics", "bleu,chrf,chrf++,ter", "--confidence", "--format", "json")
    assert result.code == 0, result.err
    ours = {found["metric"]: found for found in json.loads(result.text)["scores"]}
    assert list(ours) == ["BLEU", "chrF2", "chrF2++", "TER"]
    for expected in [*theirs, plus]:
        found = ours[expected["name"]]
        assert found["score"] == pytest.approx(expected["score"], abs=1e-8)
        assert found["mean"] == pytest.approx(expected["confidence_mean"], abs=1e-8)
        assert found["interval"] == pytest.approx(expected["confidence_var"], abs=1e-8)
        assert found["signature"] == expected["signature"]
    parts = ours["BLEU"]["parts"]
    verbose = next(found["verbose_score"] for found in theirs if found["name"] == "BLEU")
    assert verbose.startswith("/".join(f"{precision:.1f}" for precision in parts["precisions"]))
    assert f"hyp_len = {parts['hypothesis_length']} ref_len = {parts['reference_length']})" in verbose


@pytest.mark.parametrize(("ours", "theirs"), [("bleu", ["bleu"]), ("chrf", ["chrf"]), ("ter", ["ter"])])
def test_sentences_as_the_sacrebleu_command_scores_them(nmt, files, tmp_path, ours, theirs):
    expected = sacrebleu(tmp_path, "ref.de", "-i", "a.de", "-m", *theirs, "--sentence-level").splitlines()
    rows = tsv(nmt("score", "a.de", "--ref", "ref.de", "-m", ours, "--sentences", "--format", "tsv"))
    assert [row["line"] for row in rows] == [str(number) for number in range(1, 61)]
    for row, line in zip(rows, expected, strict=True):
        name, number = re.match(r"(\S+) = ([\d.]+)", line).groups()
        assert float(row[name]) == pytest.approx(float(number), abs=1e-4)  # the column is named as sacrebleu names it


@pytest.mark.parametrize("test", ["bs", "ar"])
def test_paired_tests_as_the_sacrebleu_command_does_them(nmt, files, tmp_path, test):
    options = ["-i", "a.de", "b.de", "ref2.de", "-m", "bleu", "ter", f"--paired-{test}", f"--paired-{test}-n", "200"]
    theirs = sacrebleu(tmp_path, "ref.de", *options, "--format", "text")
    result = nmt(
        *("score", "a.de", "b.de", "ref2.de", "--ref", "ref.de", "-m", "bleu,ter"),
        *("--paired", test, "--samples", "200", "--format", "json"),
    )
    assert result.code == 0, result.err
    # stable: by system first, as in sacrebleu's table
    found = sorted(json.loads(result.text)["scores"], key=lambda one: one["system"])
    assert [one.get("p") for one in found[:2]] == [None, None]
    p_values = re.findall(r"\(p = ([\d.]+)\)", theirs)
    assert p_values == [f"{one['p']:.4f}" for one in found[2:]] and len(set(p_values)) > 1
    if test == "bs":
        numbers = re.findall(r"([\d.]+) \(([\d.]+) ± ([\d.]+)\)", theirs)
        ours = [tuple(f"{one[key]:.8f}" for key in ("score", "mean", "interval")) for one in found]
        assert ours == numbers
    assert all(one["signature"] in theirs for one in found)


@pytest.mark.parametrize(
    ("options", "seed"), [(["--seed", "7"], "7"), ([], "12345"), (["--seed", "7", "--paired", "bs"], "7")]
)
def test_the_seed_is_in_the_signature_and_decides(nmt, files, tmp_path, monkeypatch, options, seed):
    rows = tsv(nmt("score", "a.de", "b.de", "--ref", "ref.de", "--confidence", "-m", "bleu", "-f", "tsv", *options))
    assert f"|seed:{seed}|" in rows[0]["signature"]
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    (theirs,) = [json.loads(sacrebleu(tmp_path, "ref.de", "-i", "a.de", "--confidence"))]
    assert float(rows[0]["mean"]) == pytest.approx(theirs["confidence_mean"], abs=1e-4)


@pytest.mark.parametrize("tokenizer", ["13a", "intl", "zh", "char", "none"])
def test_every_tokenizer_that_is_always_there(tmp_path, tokenizer):
    from sacrebleu.metrics import BLEU

    chosen = texts({"a": FILES["a.de"]}, REFERENCE)
    (found,) = score(chosen, ScoreOptions(metrics=("bleu",), tokenizer=tokenizer), quiet).scores
    assert found.score == BLEU(tokenize=tokenizer).corpus_score(FILES["a.de"], [REFERENCE]).score
    assert f"|tok:{tokenizer}|" in found.signature


def test_scores_by_length_are_scores_of_the_lines_of_that_length(nmt, files):
    from sacrebleu.metrics import BLEU

    result = nmt("score", "a.de", "--ref", "ref.de", "--source", "src.en", "--by-length", "--format", "json")
    found = json.loads(result.text)["by_length"]
    assert found["measured"] == "source" and sum(part["lines"] for part in found["bins"]) == 60
    for part in found["bins"]:
        rows = [n for n, line in enumerate(FILES["src.en"]) if part["low"] <= count_words(line) <= part["high"]]
        expected = BLEU(effective_order=True).corpus_score(
            [FILES["a.de"][n] for n in rows], [[REFERENCE[n] for n in rows]]
        )
        assert len(rows) == part["lines"] and part["scores"]["a.de"] == expected.score


def test_validation_during_training_is_as_before():
    found = corpus_scores(FILES["a.de"], REFERENCE, "de")
    report = score(texts({"a": FILES["a.de"]}, REFERENCE), ScoreOptions(), quiet)
    assert [found.bleu, found.chrf] == [number.score for number in report.scores]
    assert found.signature == report.scores[0].signature


# ---------------------------------------------------------------------------------------------------------------------
# The tokeniser is chosen by the language, and always shown


@pytest.mark.parametrize(
    ("language", "always_there", "standard"),
    [
        *[(code, "13a", "13a") for code in ("de", "en", "fr", "", "pt-BR")],
        *[(code, "zh", "zh") for code in ("zh", "zh-TW", "zh_Hans", "ZH")],
        ("ja", "char", "ja-mecab"),
        ("ko", "char", "ko-mecab"),
        ("th", "char", "char"),
    ],
)
def test_tokenizers_by_language(language, always_there, standard):
    assert (tokenizer_for(language), standard_tokenizer(language)) == (always_there, standard)


@pytest.mark.parametrize(
    ("tokenize", "language", "references", "chosen"),
    [
        (None, None, ["x/ref.zh"], "zh"),
        (None, None, ["ref.zh-CN.gz"], "zh"),
        (None, None, ["ref.txt", "ref.ja"], "ja-mecab"),
        (None, None, ["ref.txt", "-"], "13a"),
        (None, "ko", ["ref.zh"], "ko-mecab"),
        ("char", "ko", ["ref.zh"], "char"),
    ],
)
def test_what_decides_the_tokenizer(tokenize, language, references, chosen):
    assert choose_tokenizer(tokenize, language, [Path(name) for name in references])[0] == chosen


def test_the_language_of_a_file():
    assert language_of(Path("a.de.gz")) == "de" and language_of(Path("a.v2.txt")) is None


def test_the_tokenizer_is_shown(nmt, write):
    write("ref.zh", "我喜欢公园。\n")
    write("out.zh", "我爱公园。\n")
    shown = nmt("score", "out.zh", "--ref", "ref.zh")
    assert "BLEU's tokeniser: zh, for zh, the ending of ref.zh" in shown.text and "|tok:zh|" in shown.text
    assert shown.err == ""
    asked = nmt("score", "out.zh", "--ref", "ref.zh", "--tokenize", "13a", "-m", "bleu,ter")
    assert "BLEU's tokeniser: 13a, as asked" in asked.text and "|tok:13a|" in asked.text
    assert "warning: ref.zh looks Chinese" in asked.err and "--lang zh" in asked.err
    assert "warning: TER counts words between spaces" in asked.err


@pytest.mark.parametrize("tokenizer", ["ja-mecab", "ko-mecab", "flores200"])
def test_a_tokenizer_that_is_not_there_is_never_replaced(nmt, files, tmp_path, tokenizer):
    env = {
        "SACREBLEU": str(tmp_path / "cache"),
        "https_proxy": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }
    result = nmt("score", "a.de", "--ref", "ref.de", "--tokenize", tokenizer, env=env)
    if result.code == 0:  # the packages are here
        assert f"|tok:{tokenizer}" in result.text
    else:
        assert_user_error(result, f"the tokeniser {tokenizer}", "--tokenize")


# ---------------------------------------------------------------------------------------------------------------------
# Warnings


@pytest.mark.parametrize(
    ("lines", "warning"),
    [
        (["ein Haus", "ein Hund."], None),
        (["ein Ha@@ us", "ein Hund."], "a, line 1: not joined from pieces"),
        (["ein Haus", "ein Hu@@"], "a, line 2: not joined from pieces"),
        (["▁ein ▁Haus", "▁ein Hund ."], "a, line 1 and 1 more: not joined from pieces"),
        (["me@@here", "ein Hund."], None),
        (["ein Haus", "\u200b "], "a, line 2: blank"),
        (["ein Haus .", "ein Hund ."], "a looks tokenised: 2 of 2 lines"),
        (["das Haus", "der Hund."], "a is the same text as ref0"),
        (["the house", "ein Hund."], "a, line 1: the source itself, not translated"),
    ],
)
def test_warnings(lines, warning):
    found = suspicions(
        texts({"a": lines}, ["das Haus", "der Hund."], source=["the house", "the dog."]), ("bleu",), "13a"
    )
    assert [message.startswith(warning or "?") for message in found] == ([True] if warning else [])


@pytest.mark.parametrize(
    ("reference", "tokenizer", "count"),
    [
        ("我喜欢公园。", "13a", 1),
        ("私は公園が好きです。", "13a", 1),
        ("나는 공원을 좋아합니다.", "13a", 1),
        ("ฉันชอบสวนสาธารณะ", "intl", 1),
        ("我喜欢公园。", "zh", 0),
        ("私は公園が好きです。", "char", 0),
        ("Ich mag 公园.", "13a", 0),
    ],
)
def test_13a_is_not_for_every_script(reference, tokenizer, count):
    assert len(suspicions(texts({"a": ["x"]}, [reference]), ("bleu",), tokenizer)) == count
    assert not suspicions(texts({"a": ["x"]}, [reference]), ("chrf",), tokenizer)


def test_two_systems_with_the_same_text_and_a_blank_reference():
    found = suspicions(texts({"a": ["x", "y"], "b": ["x", "y"]}, ["z", ""]), ("bleu",), "13a")
    assert found == ["ref0, line 2: blank: are these all the references?", "b is the same text as a"]


def test_bom_crlf_and_strange_line_ends(nmt, write):
    """A BOM took BLEU from 100 to 89; CR, NEL and U+2028 inside a line do not end it."""
    write("ref.de", "Ein Haus am grünen\u2028See.\nEin\u0085Hund läuft nach Hause.")
    write("a.de", b"\xef\xbb\xbf" + "Ein Haus am grünen\u2028See.\r\nEin\u0085Hund läuft nach Hause.\r\n".encode())
    result = nmt("score", "a.de", "--ref", "ref.de", "--format", "tsv", env={"LC_ALL": "C"})
    assert [float(row["score"]) for row in tsv(result)] == [100, 100]
    assert "warning: a.de: a byte order mark at its beginning was removed" in result.err


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["short.de", "--ref", "ref.de"], ["short.de has 2 lines, but ref.de has 60 lines"]),
        (["a.de", "short.de", "--ref", "ref.de", "-s", "one.de"], ["one.de has 1 line, short.de has 2 lines"]),
        (["a.de", "--ref", "ref.de", "--ref", "short.de"], ["short.de has 2 lines, but ref.de has 60"]),
        (["empty", "--ref", "empty2"], ["empty2 is empty: there is nothing to score"]),
        (["-", "--ref", "-"], ["standard input (-) is named twice"]),
        (["-", "--ref", "ref.de", "--source", "-"], ["standard input (-) is named twice"]),
        (["a.de", "a.de", "--ref", "ref.de"], ["a.de is given twice"]),
        (["latin.de", "--ref", "ref.de"], ["latin.de, line 2, byte 4: not UTF-8 (0xe9)"]),
        (["none.de", "--ref", "ref.de"], ["there is no file none.de"]),
        (["a.de"], ["--ref"]),
        (["--ref", "ref.de"], ["HYP"]),
        (["a.de", "--ref", "ref.de", "-m", "bleu,blue"], ["there is no metric 'blue'", "chrf++"]),
        (["a.de", "--ref", "ref.de", "-m", ""], ["there is no metric ''"]),
        (["a.de", "--ref", "ref.de", "--lang", "chinese"], ["'chinese' is not a language code"]),
        (["a.de", "--ref", "ref.de", "--tokenize", "14a"], ["there is no tokeniser '14a'", "13a"]),
        (["a.de", "--ref", "ref.de", "--format", "xml"], ["--format", "xml"]),
        (["a.de", "--ref", "ref.de", "--paired", "bs"], ["--paired compares systems, but only one is given"]),
        (["a.de", "--ref", "ref.de", "--samples", "9"], ["--samples", "add --confidence"]),
        (["a.de", "--ref", "ref.de", "--seed", "x"], ["--seed"]),
        (["a.de", "--ref", "ref.de", "-f", "tsv", "--worst", "1", "--by-length"], ["a TSV holds one table"]),
        (["a.de", "--ref", "ref.de", "-m", "comet"], ["COMET compares with the source", "--source"]),
    ],
)
def test_mistakes(nmt, files, write, arguments, parts):
    write("short.de", "ein Haus\nein Hund\n")
    write("one.de", "a house\n")
    write("empty", "")
    write("empty2", "")
    write("latin.de", b"ok\ncaf\xe9\n")
    assert_user_error(nmt("score", *arguments), *parts)


def test_a_file_without_a_last_newline_counts_like_one_with(tmp_path, write):
    found = read_texts([write("a", "x\ny")], [write("b", "x\ny\n")], None)
    assert found.lines == 2
    with pytest.raises(NmtError, match="c has 3 lines"):
        read_texts([write("c", "x\ny\n\n")], [write("b", "x\ny\n")], None)


# ---------------------------------------------------------------------------------------------------------------------
# COMET, if it is there


def test_comet_is_one_sentence_away(nmt, files):
    if subprocess.run([sys.executable, "-c", "import comet"], capture_output=True, check=False).returncode == 0:
        pytest.skip("COMET is installed")
    result = nmt("score", "a.de", "--ref", "ref.de", "-m", "bleu,comet", "--source", "src.en")
    assert_user_error(result, "COMET is not installed", "pip install unbabel-comet")


FAKE_COMET = """
from types import SimpleNamespace

def download_model(model, saving_directory=None, local_files_only=False):
    assert local_files_only
    if model != "Unbabel/wmt22-comet-da":
        raise KeyError(f"Model '{model}' not supported by COMET.")
    return "model.ckpt"

def load_from_checkpoint(path, local_files_only=False):
    print("noise on stdout")
    return SimpleNamespace(predict=predict)

def predict(samples, batch_size, gpus, accelerator, progress_bar):
    assert set(samples[0]) == {"src", "mt", "ref"}
    return SimpleNamespace(scores=[float(sample["mt"] == sample["ref"]) for sample in samples])
"""


def test_comet_when_it_is_there(nmt, files, write, tmp_path):
    """Against a stand-in with COMET's interface: real weights are gigabytes."""
    write("fake/comet/__init__.py", FAKE_COMET)
    write("fake/unbabel_comet-2.2.6.dist-info/METADATA", "Metadata-Version: 2.1\nName: unbabel-comet\nVersion: 2.2.6\n")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "fake"), *sys.path])}
    command = ("score", "a.de", "--ref", "ref.de", "-m", "comet", "--source", "src.en")
    result = nmt(*command, "--sentences", "--worst", "1", "--format", "json", env=env)
    found = json.loads(result.text)
    equal = [float(ours == theirs) for ours, theirs in zip(FILES["a.de"], REFERENCE, strict=True)]
    assert found["scores"][0]["score"] == pytest.approx(sum(equal) / 60)
    assert found["scores"][0]["signature"] == "nrefs:1|model:Unbabel/wmt22-comet-da|version:2.2.6"
    assert found["sentences"][0]["scores"]["a.de"] == equal and found["worst"]["metric"] == "BLEU"
    wrong = nmt(*command, "--comet-model", "none/such", env=env)
    assert_user_error(wrong, "the weights of COMET, none/such, cannot be loaded", "comet-score")


# ---------------------------------------------------------------------------------------------------------------------
# What is printed


def test_a_pipe_and_a_table(nmt, files, tmp_path):
    result = nmt("score", "-", "--ref", "ref.de", stdin=(tmp_path / "a.de").read_bytes())
    assert result.code == 0 and result.err == "" and "\x1b" not in result.text
    from sacrebleu.metrics import BLEU

    expected = BLEU().corpus_score(FILES["a.de"], [REFERENCE]).score
    assert f"BLEU    standard input  {expected:.2f}" in result.text
    assert "BLEU   nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in result.text
    assert not [line for line in result.text.splitlines() if line != line.rstrip()]


def test_everything_at_once(nmt, files):
    result = nmt(
        *("score", "a.de", "b.de", "--ref", "ref.de", "--ref", "ref2.de", "--source", "src.en", "-m", "chrf,bleu"),
        *("--paired", "bs", "--samples", "20", "--sentences", "--by-length", "--worst", "2"),
    )
    assert result.code == 0 and result.err == "", result.err
    for part in ("p: paired bootstrap against a.de", "chrF2 by length of the source", "The worst lines by chrF2", "{+"):
        assert part in result.text
    assert result.text.count("\nline ") == 2 and "  line  system" in result.text


def test_tsv_of_the_worst(nmt, write):
    write("ref.de", "ein Haus am See\nein Hund\tim Haus\n")
    write("a.de", "ein Haus am See\nkeine Katze\n")
    (row,) = tsv(nmt("score", "a.de", "--ref", "ref.de", "-m", "ter", "--worst", "1", "--format", "tsv"))
    assert (row["line"], row["reference ref.de"], row["translation"]) == ("2", "ein Hund im Haus", "keine Katze")


def test_a_reader_that_has_seen_enough(files, tmp_path):
    script = f"{sys.executable} -m nmt_cli score a.de --ref ref.de --sentences | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stderr == "" and done.stdout.strip() in ("0", "141")


def test_torch_is_never_imported(files, tmp_path):
    script = (
        "import sys; from nmt_cli.cli import main\ntry: main()\nfinally: print('torch' in sys.modules, file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, "score", "a.de", "--ref", "ref.de", "--worst", "1", "--by-length"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0 and done.stderr == "False\n"


def drawn(width: int, coloured: bool, systems: dict[str, list[str]], *references: list[str]) -> str:
    chosen = texts(systems, *references, source=["It is quiet there."] * len(references[0]))
    options = ScoreOptions(metrics=("bleu",), tokenizer="char", worst=1, by_length=True)
    check_options(options, chosen)
    console = Console(
        file=io.StringIO(), width=width, force_terminal=coloured, color_system="standard" if coloured else None
    )
    for part in draw_report(score(chosen, options, quiet), chosen, options, "as asked", width, coloured):
        console.print(part)
    return console.file.getvalue()


CHINESE = ["我喜欢在周末去公园散步，因为那里很安静。" * 3]
OTHER = ["我爱在周末去公园走路，因为那儿非常安静。" * 3]


@pytest.mark.parametrize("width", [60, 100, 200])
def test_wide_characters_stay_in_their_columns(width):
    from rich.cells import cell_len

    plain = drawn(width, False, {"out.zh": OTHER}, CHINESE)
    assert max(cell_len(line) for line in plain.splitlines()) <= width
    for line in CHINESE + OTHER:  # nothing is lost between the brackets and the line ends
        assert set(line) <= set(plain)
    assert "[-喜欢-]" in plain and "{+爱+}" in plain and "\x1b" not in plain


def test_colours_instead_of_brackets_on_a_terminal():
    coloured = drawn(100, True, {"out.zh": OTHER}, CHINESE)
    assert "\x1b[1;32m喜欢\x1b[0m" in coloured and "\x1b[1;31m爱\x1b[0m" in coloured and "{+" not in coloured


def test_control_codes_and_markup_in_the_text_are_harmless():
    plain = drawn(100, False, {"[red]a": ["\x1b[31mein [bold]Haus[/bold] \t am See"]}, ["ein Haus am See"])
    assert "\x1b" not in plain and "[bold]" in plain and "[red]a" in plain


def test_long_names_on_a_narrow_terminal():
    name = "runs/multi30k-en-de-warmup-8000/best/test.2016.flickr.de"
    plain = drawn(60, False, {name: ["ein Haus am See"], "b": ["ein See"]}, ["ein Haus am See"])
    assert plain.count("runs/m…ickr.de") == 3 and max(map(len, plain.splitlines()[:-3])) <= 60
    twins = drawn(60, False, {f"runs/long/{name}/{'x' * 30}.de": ["ein See"] for name in "ab"}, ["ein Haus am See"])
    assert "…" not in twins


@pytest.mark.parametrize(
    ("reference", "translation", "missed", "wrong"),
    [
        ("ein Haus am See.", "ein Haus am See.", "", ""),
        ("ein Haus am See.", "ein Boot am See!", "Haus .", "Boot !"),
        ("ein Haus", "", "ein Haus", ""),
        ("我喜欢公园。", "我爱公园", "喜 欢 。", "爱"),
        ("don't go", "do not go", "don ' t", "do not"),
    ],
)
def test_differences(reference, translation, missed, wrong):
    from nmt_cli.text.words import words_and_marks

    there, here = differences(reference, translation)
    for text, flags, expected in ((reference, there, missed), (translation, here, wrong)):
        pieces = [word for word, _ in words_and_marks(text)]
        assert " ".join(word for word, flag in zip(pieces, flags, strict=True) if flag) == expected


def test_the_closest_reference():
    assert closest(["ein Boot", "ein Haus am See"], ["das Haus am See"]) == "ein Haus am See"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("Ein Haus, am See!", 4),
        ("我喜欢。", 3),
        ("나는 공원을", 2),
        ("हिन्दी भाषा", 2),
        ("don't", 2),
        ("¿Qué?", 1),
    ],
)
def test_words_are_counted(text, count):
    assert count_words(text) == count


def test_a_very_long_line_ends(nmt, write):
    write("ref.de", "Haus " * 50_000 + "\nein Hund\n")
    write("a.de", "See " * 50_000 + "\nein Hund\n")
    result = nmt("score", "a.de", "--ref", "ref.de", "-m", "bleu", "--worst", "1", "--by-length")
    assert result.code == 0 and "…" in result.text and "Haus" in result.text


def test_the_named_tokenizers_are_sacrebleus():
    from sacrebleu.metrics import BLEU

    assert set(TOKENIZERS) <= set(BLEU.TOKENIZERS)
