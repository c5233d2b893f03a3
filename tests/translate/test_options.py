"""Options of the search, prefixes, and options that are refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from support.checks import assert_user_error
from support.small_language import ENGINES, SENTENCES, TEST, text_of
from support.small_models import briefly_trained

from nmt_cli.store.checkpoint import save_model


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
    assert result.code == 1 and "has more lines than the input, which has 3" in result.err


@pytest.mark.parametrize("engine", ENGINES)
def test_a_prefix_may_repeat_itself(nmt, model, write, engine):
    prefix = write("p.fr", "la la la la la la\n")
    result = nmt("translate", model, "--prefix-file", prefix, "--engine", engine, stdin=b"The dog sleeps.\n")
    assert result.text.startswith("la la la la la la"), result.text


def test_a_prefix_that_cannot_be_written(nmt, model, write):
    prefixes = write("p.fr", "\n犬 est\n")
    assert_user_error(nmt("translate", model, "--prefix-file", prefixes, stdin=b"a\nb\n"), "the prefix of line 2")


MISTAKES = [
    (["--n-best", 2], "does not fit on one line"),
    (["--align"], "does not fit on one line"),
    (["--tokens", "--format", "tsv"], "--tokens needs --format jsonl"),
    (["--beam", 2, "--n-best", 3, "--format", "tsv"], "n_best must be at most beam"),
    (["--beam", 0], "--beam"),
    (["--shard", "1/2"], "--shard needs a file"),
    (["--shard", "3/2"], "not of the form"),
    (["none.en"], "there is no file none.en"),
    (["-", "-"], "named twice"),
    (["--prefix-file", "none.fr"], "there is no file none.fr"),
    (["--engine", "ctranslate2", "--sample"], "the ctranslate2 engine does not support --sample"),
    (["--engine", "torch", "--type", "int8"], "the torch engine does not support --type int8"),
    (["--engine", "ctranslate2", "--no-repeat-ngram", 3], "does not support --no-repeat-ngram"),
    (["--sample", "--type", "int8"], "omit --type int8"),
    (["--top-k", 5], "add --sample"),
    (["--temperature", 0.5], "add --sample"),
    (["--type", "int9"], "int9 is not one of"),
    (["--device", "cuda", "--engine", "torch"], "this machine has no device cuda"),
    (["--device", "cuda", "--engine", "ctranslate2"], "CTranslate2 finds no CUDA device"),
    (["--device", "cuda:0"], "cuda:0"),
    (["--forbid", "猫"], "the model has no piece for it"),
    (["--engine", "ctranslate2", "--repetition-penalty", 1.2], "--repetition-penalty"),
    (["--score-only", "--n-best", 2, "--format", "tsv"], "--score-only cannot be combined with"),
    (["--score-only", "--forbid", "the"], "--score-only cannot be combined with"),
    (["--score-only", "--sample"], "--score-only cannot be combined with"),
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


def test_the_minimum_length_gives_way_to_the_maximum(nmt, model):
    assert nmt("translate", model, "--min-length", 50, "--max-ratio", 1, stdin=b"the cat sees a dog.\n").code == 0


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
