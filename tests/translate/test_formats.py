"""jsonl and tsv, alignments, scores of given translations."""

from __future__ import annotations

import json

import pytest
from support.checks import assert_user_error
from support.small_language import ENGINES, SENTENCES, text_of

FORMATS = ("tsv", "jsonl")


@pytest.mark.parametrize("engine", ENGINES)
def test_jsonl_has_all_fields(nmt, model, engine, trained):
    options = ("--format", "jsonl", "--n-best", 3, "--align", "--tokens", "--engine", engine)
    result = nmt("translate", model, *options, stdin=text_of(["", *SENTENCES[:9]]))
    assert result.code == 0, result.err
    blank, *entries = map(json.loads, result.text.splitlines())
    assert [entry["line"] for entry in entries] == list(range(2, 11))
    assert blank == {"line": 1, "source": "", "translation": "", "confidence": None, "n_best": [], "flags": []}
    entries = [entry for entry in entries if not entry["flags"]]
    assert len(entries) > 3
    for entry in entries:
        assert entry["translation"] == entry["n_best"][0]["text"] and len(entry["n_best"]) == 3
        scores = [best["score"] for best in entry["n_best"]]
        assert scores == sorted(scores, reverse=True)
        for best in entry["n_best"]:
            assert trained.vocab.target.decode(best["tokens"]) == best["text"]
            if not best["token_logprobs"]:
                continue  # the repeats of this output were cut; flags describe only the first output
            assert len(best["token_logprobs"]) == len(best["tokens"]) + 1
            assert sum(best["token_logprobs"]) == pytest.approx(best["logprob"], abs=1e-3)
            assert best["logprob"] / len(best["token_logprobs"]) == pytest.approx(best["score"], abs=1e-4)
            pairs = [tuple(map(int, pair.split("-"))) for pair in best["alignment"].split()]
            assert sorted(t for _, t in pairs) == list(range(len(best["text"].split())))
            assert all(0 <= s < len(entry["source"].split()) for s, _ in pairs)


def test_tsv_has_one_row_per_rank(nmt, model):
    result = nmt("translate", model, "--format", "tsv", "--n-best", 2, stdin=text_of([SENTENCES[0], ""]))
    rows = [line.split("\t") for line in result.text.splitlines()]
    assert [(row[0], row[1]) for row in rows] == [("1", "1"), ("1", "2"), ("2", "1")]
    assert float(rows[0][2]) >= float(rows[1][2]) and rows[2][3] == ""
    assert rows[0][3] == nmt("translate", model, stdin=text_of([SENTENCES[0]])).text.rstrip("\n")


def test_alignments_are_the_same_in_tsv_and_jsonl(nmt, model):
    tsv, jsonl = (nmt("translate", model, "--align", "--format", f, stdin=text_of(SENTENCES[:5])) for f in FORMATS)
    assert tsv.code == jsonl.code == 0, (tsv.err, jsonl.err)
    entries = [json.loads(line)["n_best"][0] for line in jsonl.text.splitlines()]
    columns = [[e["text"], f"{e['confidence']:.4f}", e["alignment"]] for e in entries]
    assert [line.split("\t")[3:] for line in tsv.text.splitlines()] == columns
    assert sum(bool(entry["alignment"]) for entry in entries) > 3


@pytest.mark.parametrize("engine", ENGINES)
def test_score_only_gives_the_scores_of_the_search(nmt, model, write, engine):
    """The search and forced decoding give a translation the same score."""
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
        rounding = 5e-5 * (1 + length / length**0.6)  # each number has four decimal places
        assert only["score"] == pytest.approx(sum(only["token_logprobs"]) / length**0.6, abs=rounding)


@pytest.mark.parametrize("engine", ENGINES)
def test_given_translations_are_aligned_as_found_translations_are(nmt, model, write, engine):
    """A line of two sentences is scored sentence by sentence, and its words are counted through the line."""
    lines = [*SENTENCES[:8], f"{SENTENCES[0]} {SENTENCES[1]}"]
    options = ("--align", "--format", "jsonl", "--no-protect", "--engine", engine)
    found = nmt("translate", model, *options, stdin=text_of(lines))
    entries = [json.loads(line) for line in found.text.splitlines()]
    target = write("found.fr", text_of([entry["translation"] for entry in entries]))
    given = nmt("translate", model, "--score-only", "--target", target, *options, stdin=text_of(lines))
    aligned = [json.loads(line)["n_best"][0]["alignment"] for line in given.text.splitlines()]
    whole = [n for n, entry in enumerate(entries) if entry["flags"] in ([], ["split"])]
    assert len(whole) > 4 and len(lines) - 1 in whole
    assert [aligned[n] for n in whole] == [entries[n]["n_best"][0]["alignment"] for n in whole]


def test_score_only_errors(nmt, model, write):
    short = write("short.fr", "un\n")
    two = text_of(["a", "b"])
    assert_user_error(
        nmt("translate", model, "--score-only", "--target", short, stdin=two), "short.fr has only 1 lines"
    )
    source = write("two.en", two)
    result = nmt("translate", model, source, "--score-only", "--target", "-", stdin=b"un\n")
    assert_user_error(result, "standard input has only 1 lines")
    assert_user_error(nmt("translate", model, "--score-only", stdin=two), "line 1: 1 column, but a TSV")
    assert_user_error(nmt("translate", model, "--target", short), "--score-only")


def test_pair_longer_than_the_positions_is_not_scored(nmt, model):
    pairs = ("the cat.\tle chat.\nthe cat.\t" + "le chat " * 1500 + "\n").encode()
    fast = nmt("translate", model, "--score-only", stdin=pairs)
    assert fast.code == 0 and "warning: line 2 has more pieces than the model has positions: no score" in fast.err
    one, two = fast.text.split()
    assert float(one) < 0 and two == "nan"
    _, line = nmt("translate", model, "--score-only", "--format", "jsonl", stdin=pairs).text.splitlines()
    entry = json.loads(line)
    assert entry["n_best"][0]["score"] is None and entry["flags"] == ["unscored"]
    _, two = nmt("translate", model, "--score-only", "--engine", "torch", stdin=pairs).text.split()
    assert float(two) < 0
