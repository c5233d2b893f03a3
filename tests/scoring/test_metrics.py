"""The numbers of `nmt score` and nmt_cli.scoring.metrics.score equal those of sacrebleu."""

from __future__ import annotations

import json
import re

import pytest
from support.score_texts import FILES, REFERENCE, tsv_rows

from nmt_cli.errors import NmtError
from nmt_cli.scoring.metrics import corpus_scores, score
from nmt_cli.text.languages import count_words


@pytest.mark.parametrize("references", [["ref.de"], ["ref.de", "ref2.de"]])
def test_scores_intervals_and_signatures_equal_those_of_the_sacrebleu_command(nmt, files, sacrebleu, references):
    """Scores, means, intervals and signatures, with one reference and with two."""
    theirs = json.loads(sacrebleu(*references, "-i", "a.de", "-m", "bleu", "chrf", "ter", "--confidence"))
    chrf_plus_plus = json.loads(sacrebleu(*references, "-i", "a.de", "-m", "chrf", "--chrf-word-order", "2", "-ci"))
    named = [word for name in references for word in ("--ref", name)]
    result = nmt("score", "a.de", *named, "--metrics", "bleu,chrf,chrf++,ter", "--confidence", "--format", "json")
    assert result.code == 0, result.err
    ours = {number["metric"]: number for number in json.loads(result.text)["scores"]}
    assert list(ours) == ["BLEU", "chrF2", "chrF2++", "TER"]
    for expected in [*theirs, chrf_plus_plus]:
        number = ours[expected["name"]]
        assert number["score"] == pytest.approx(expected["score"], abs=1e-8)
        assert number["mean"] == pytest.approx(expected["confidence_mean"], abs=1e-8)
        assert number["interval"] == pytest.approx(expected["confidence_var"], abs=1e-8)
        assert number["signature"] == expected["signature"]
    parts = ours["BLEU"]["parts"]
    verbose = next(number["verbose_score"] for number in theirs if number["name"] == "BLEU")
    assert verbose.startswith("/".join(f"{precision:.1f}" for precision in parts["precisions"]))
    assert f"hyp_len = {parts['hypothesis_length']} ref_len = {parts['reference_length']})" in verbose


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter"])
def test_sentence_scores_equal_those_of_the_sacrebleu_command(nmt, files, sacrebleu, metric):
    expected = sacrebleu("ref.de", "-i", "a.de", "-m", metric, "--sentence-level").splitlines()
    rows = tsv_rows(nmt("score", "a.de", "--ref", "ref.de", "-m", metric, "--sentences", "--format", "tsv"))
    assert [row["line"] for row in rows] == [str(number) for number in range(1, 61)]
    for row, line in zip(rows, expected, strict=True):
        name, number = re.match(r"(\S+) = ([\d.]+)", line).groups()
        assert float(row[name]) == pytest.approx(float(number), abs=1e-4)  # the column is named as sacrebleu names it


@pytest.mark.parametrize("test", ["bs", "ar"])
def test_paired_tests_equal_those_of_the_sacrebleu_command(nmt, files, sacrebleu, test):
    options = ["-i", "a.de", "b.de", "ref2.de", "-m", "bleu", "ter", f"--paired-{test}", f"--paired-{test}-n", "200"]
    theirs = sacrebleu("ref.de", *options, "--format", "text")
    result = nmt(
        *("score", "a.de", "b.de", "ref2.de", "--ref", "ref.de", "-m", "bleu,ter"),
        *("--paired", test, "--samples", "200", "--format", "json"),
    )
    assert result.code == 0, result.err
    scores = sorted(json.loads(result.text)["scores"], key=lambda score: score["system"])  # as sacrebleu sorts
    assert [score.get("p") for score in scores[:2]] == [None, None]
    p_values = re.findall(r"\(p = ([\d.]+)\)", theirs)
    assert p_values == [f"{score['p']:.4f}" for score in scores[2:]] and len(set(p_values)) > 1
    if test == "bs":
        numbers = re.findall(r"([\d.]+) \(([\d.]+) ± ([\d.]+)\)", theirs)
        ours = [tuple(f"{score[key]:.8f}" for key in ("score", "mean", "interval")) for score in scores]
        assert ours == numbers
    assert all(score["signature"] in theirs for score in scores)


@pytest.mark.parametrize("test", ["bs", "ar"])
def test_system_with_the_score_of_the_first_is_not_significantly_different(nmt, files, write, test):
    """sacrebleu gives p = 1 / (resamples + 1) here, because no resample has a larger difference than 0."""
    write("copy.de", "\n".join(FILES["a.de"]) + "\n")
    shown = nmt("score", "a.de", "copy.de", "b.de", "--ref", "ref.de", "--paired", test, "--samples", "50")
    rows = [line.split() for line in shown.text.splitlines() if " copy.de " in line or " b.de " in line][:4]
    assert [row[-1] for row in rows if "copy.de" in row] == ["1.0000", "1.0000"], shown.text
    assert {row[-1] for row in rows if "b.de" in row} == {"*"}, shown.text


@pytest.mark.parametrize(
    ("options", "seed"), [(["--seed", "7"], "7"), ([], "12345"), (["--seed", "7", "--paired", "bs"], "7")]
)
def test_seed_is_in_the_signature_and_changes_the_resamples(nmt, files, sacrebleu, options, seed):
    rows = tsv_rows(
        nmt("score", "a.de", "b.de", "--ref", "ref.de", "--confidence", "-m", "bleu", "-f", "tsv", *options)
    )
    assert f"|seed:{seed}|" in rows[0]["signature"]
    theirs = json.loads(sacrebleu("ref.de", "-i", "a.de", "--confidence", seed=seed))
    assert float(rows[0]["mean"]) == pytest.approx(theirs["confidence_mean"], abs=1e-4)


@pytest.mark.parametrize("tokenizer", ["13a", "intl", "zh", "char", "none"])
def test_bleu_uses_the_named_tokenizer(tokenizer):
    from sacrebleu.metrics import BLEU

    (bleu,) = score(FILES["a.de"], REFERENCE, metrics="bleu", tokenize=tokenizer).scores
    assert bleu.score == BLEU(tokenize=tokenizer).corpus_score(FILES["a.de"], [REFERENCE]).score
    assert f"|tok:{tokenizer}|" in bleu.signature


def test_scores_by_length_equal_corpus_scores_of_those_lines(nmt, files):
    from sacrebleu.metrics import BLEU

    result = nmt("score", "a.de", "--ref", "ref.de", "--source", "src.en", "--by-length", "--format", "json")
    by_length = json.loads(result.text)["by_length"]
    assert by_length["measured"] == "source" and sum(part["lines"] for part in by_length["bins"]) == 60
    for part in by_length["bins"]:
        rows = [n for n, line in enumerate(FILES["src.en"]) if part["low"] <= count_words(line) <= part["high"]]
        expected = BLEU(effective_order=True).corpus_score(
            [FILES["a.de"][n] for n in rows], [[REFERENCE[n] for n in rows]]
        )
        assert len(rows) == part["lines"] and part["scores"]["a.de"] == expected.score


def test_validation_scores_equal_those_of_nmt_score():
    validation = corpus_scores(FILES["a.de"], REFERENCE, "de")
    report = score(FILES["a.de"], REFERENCE)
    assert [validation.bleu, validation.chrf] == [number.score for number in report.scores]
    assert validation.signature == report.scores[0].signature


# ---------------------------------------------------------------------------------------------------------------------
# The function for Python


def test_python_function_gives_the_numbers_of_the_command(nmt, files):
    systems = {name: FILES[name] for name in ("a.de", "b.de")}
    report = score(
        systems,
        {"ref.de": REFERENCE},
        source=FILES["src.en"],
        metrics=["bleu", "chrf"],
        paired="bs",
        samples=50,
        seed=7,
        sentences=True,
        by_length=True,
        worst=2,
    )
    result = nmt(
        *("score", "a.de", "b.de", "--ref", "ref.de", "--source", "src.en", "--paired", "bs", "--samples", 50),
        *("--seed", 7, "--sentences", "--by-length", "--worst", 2, "--format", "json"),
    )
    printed = json.loads(result.text)
    assert [score.score for score in report.scores] == [score["score"] for score in printed["scores"]]
    assert [score.signature for score in report.scores] == [score["signature"] for score in printed["scores"]]
    assert [score.p for score in report.scores] == [score.get("p") for score in printed["scores"]]
    assert [part.scores for part in report.sentences] == [part["scores"] for part in printed["sentences"]]
    assert [part.lines for part in report.by_length.bins] == [part["lines"] for part in printed["by_length"]["bins"]]
    assert [line.line for line in report.worst.lines] == [line["line"] for line in printed["worst"]["lines"]]
    assert report.tokenizer == printed["tokenizer"] == "13a" and report.warnings == printed["warnings"] == []


@pytest.mark.parametrize(
    ("references", "names"),
    [
        (REFERENCE, ["reference"]),
        (tuple(REFERENCE), ["reference"]),
        (iter(REFERENCE), ["reference"]),
        ([REFERENCE, FILES["ref2.de"]], ["reference 1", "reference 2"]),
        ({"one": REFERENCE, "two": FILES["ref2.de"]}, ["one", "two"]),
    ],
)
def test_python_function_takes_one_or_several_references(references, names):
    report = score(FILES["a.de"], references, metrics="bleu")
    assert report.references == names and report.lines == 60
    assert report.scores[0].system == "system" and f"nrefs:{len(names)}|" in report.scores[0].signature


def test_python_function_chooses_the_tokenizer_as_the_command_does():
    assert score(["我爱公园。"], ["我喜欢公园。"], lang="zh").tokenizer == "zh"
    assert score(["我爱公园。"], {"ref.zh": ["我喜欢公园。"]}).tokenizer == "zh"
    assert score(["我爱公园。"], ["我喜欢公园。"], metrics="chrf").tokenizer is None


def test_python_function_calls_on_warning_and_keeps_the_warnings():
    seen = []
    report = score(["我爱公园。"], ["我喜欢公园。"], on_warning=seen.append)
    assert report.warnings == seen and len(seen) == 1 and seen[0].startswith("reference looks Chinese")


def test_python_function_restores_seed_and_garbage_collector(monkeypatch):
    import gc
    import os

    for before in ("99", None):
        monkeypatch.setenv("SACREBLEU_SEED", before) if before else monkeypatch.delenv("SACREBLEU_SEED")
        report = score(FILES["a.de"], REFERENCE, metrics="bleu", confidence=True, samples=20, seed=7)
        assert "|seed:7|" in report.scores[0].signature
        assert os.environ.get("SACREBLEU_SEED") == before and gc.isenabled()


@pytest.mark.parametrize(
    ("hypotheses", "references", "options", "message"),
    [
        ("one line", ["one line"], {}, "hypotheses must be a list of strings, not 'one line'"),
        (["one line"], "one line", {}, "references must be a list of strings, not 'one line'"),
        (["a"], ["a", "b"], {}, "system has 1 line, but reference has 2 lines"),
        ({"x": ["a"]}, {"x": ["a", "b"]}, {}, "x has 1 line, but x has 2 lines"),
        (["a"], ["a"], {"source": ["a", "b"]}, "source has 2 lines, but reference has 1 line"),
        ([], [], {}, "reference is empty"),
        ({}, ["a"], {}, "hypotheses is empty"),
        (["a"], ["a"], {"metrics": "blue"}, "there is no metric 'blue'"),
        (["a"], ["a"], {"confidence": True, "samples": 1}, "--samples must be at least 2"),
        (["a"], ["a"], {"worst": -1}, "--worst at least 0"),
        (["a"], ["a"], {"paired": "xx"}, "there is no paired test 'xx'"),
    ],
)
def test_python_function_raises_nmt_error(hypotheses, references, options, message):
    with pytest.raises(NmtError, match=message):
        score(hypotheses, references, **options)


def test_last_range_of_lengths_reaches_to_the_longest_line():
    lines = ["one two three", "four five", "six " * 900]
    (*_, last) = score(lines, lines, by_length=True).by_length.bins
    assert (last.high, last.lines) == (900, 1)
