"""Options of the search, prefixes, and options that are refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.checks import assert_user_error
from support.records import write_again
from support.small_language import ENGINES, SENTENCES, TEST, text_of
from support.small_models import briefly_trained

from nmt_cli.cli import app
from nmt_cli.store.checkpoint import save_model
from nmt_cli.translate.translator import load


@pytest.mark.parametrize("engine", ENGINES)
def test_translation_begins_with_the_forced_prefix(nmt, model, write, engine):
    prefixes = write("p.fr", "Le chat\n\nDemain\n")
    result = nmt("translate", model, "--prefix-file", prefixes, "--engine", engine, stdin=text_of(SENTENCES[:3]))
    assert result.code == 0, result.err
    lines = result.text.splitlines()
    assert lines[0].startswith("Le chat") and lines[2].startswith("Demain")
    assert lines[1] == nmt("translate", model, stdin=text_of(SENTENCES[1:2])).text.rstrip("\n")
    more = write("q.fr", "Le\n" * 4)
    result = nmt("translate", model, "--prefix-file", more, stdin=text_of(SENTENCES[:3]))
    assert result.code == 1 and "has more lines than the input, which has 3" in result.err


def test_prefix_longer_than_the_positions_names_its_line(nmt, model, write):
    prefixes = write("p.fr", "\n" + "le chat " * 1500 + "\n")
    result = nmt("translate", model, "--prefix-file", prefixes, stdin=text_of(SENTENCES[:2]))
    assert_user_error(result, "the prefix of line 2 has 3000 pieces; the model writes fewer than ")


@pytest.mark.parametrize("engine", ENGINES)
def test_repeats_in_a_forced_prefix_are_not_cut(nmt, model, write, engine):
    prefix = write("p.fr", "la la la la la la\n")
    result = nmt("translate", model, "--prefix-file", prefix, "--engine", engine, stdin=b"The dog sleeps.\n")
    assert result.text.startswith("la la la la la la"), result.text


def test_prefix_with_unknown_characters_is_an_error(nmt, model, write):
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
    (["none*.en"], "there is no file none*.en"),
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
    (["--forbid", "caf\udce9"], "a text of --forbid is not UTF-8"),  # caf\xe9, as Python reads it
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
def test_wrong_options_are_refused(nmt, model, options, message):
    assert_user_error(nmt("translate", model, *options, stdin=b"a\n"), message)


def test_maximum_length_limits_the_minimum_length(nmt, model):
    assert nmt("translate", model, "--min-length", 50, "--max-ratio", 1, stdin=b"the cat sees a dog.\n").code == 0


def test_search_options_change_the_output(translators, trained):
    def pieces(lines: list[str] = SENTENCES[:4], **options: object) -> list[tuple[str, ...]]:
        return [translation.n_best[0].tokens for translation in translators["torch"].translate(lines, **options)]

    plain = pieces()
    forbidden = trained.vocab.target.decode(list(plain[0][:1]))
    without = pieces(forbid=[forbidden])
    assert all(plain[0][0] not in found for found in without) and without != plain
    longer = translators["torch"].translate(SENTENCES[:4], min_length=14)
    assert min(one.best.length for one in longer) > 14  # with the end mark, and before repeats are cut
    long = " and ".join(SENTENCES[:3])
    assert len(pieces([long], max_ratio=0.1)[0]) <= 0.1 * len(trained.vocab.source.encode(long)) + 10
    assert len(pieces([long])[0]) > 0.1 * len(trained.vocab.source.encode(long)) + 10
    assert [len(found) for found in pieces(alpha=10)] > [len(found) for found in pieces(alpha=0)]
    for found in pieces(no_repeat_ngram=1, min_length=14):
        assert len(set(found)) == len(found)
    assert pieces(repetition_penalty=5, min_length=14) != pieces(min_length=14)


def test_sampling_depends_on_the_seed_only(translators):
    def drawn(**options: object) -> list[str]:
        return [one.text for one in translators["torch"].translate(SENTENCES[:3], sample=True, **options)]

    assert drawn(seed=3) == drawn(seed=3) != drawn(seed=4)
    greedy = [one.text for one in translators["torch"].translate(SENTENCES[:3], beam=1)]
    assert drawn(top_k=1) == drawn(top_p=0.001) == drawn(temperature=0.01) == greedy


def test_command_passes_every_option_to_the_translator(model, monkeypatch):
    """Each option gets a value of its own, so that no two can be confused."""
    passed = {}

    class Recorder:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def run(self, blocks, options, score_only):
            passed.update(options, score_only=score_only)
            return iter(())

    def record(path, **options):
        passed.update(options, model=path)
        return Recorder()

    monkeypatch.setattr("nmt_cli.translate.translator.load", record)
    search = {"beam": 7, "alpha": 0.7, "n_best": 2, "patience": 2.5, "max_ratio": 1.5, "min_length": 4, "seed": 9}
    search |= {"no_repeat_ngram": 3, "repetition_penalty": 1.25, "temperature": 0.5, "top_k": 6, "top_p": 0.75}
    search |= {"at_least": 0.25, "below": "copy"}
    search |= {"length_penalty": "gnmt", "coverage_penalty": 0.3, "max_extra": 20}
    engine = {"engine": "torch", "type": "float32", "device": "cpu", "workers": 8, "batch_tokens": 11}
    words = [word for name, value in {**search, **engine}.items() for word in (f"--{name.replace('_', '-')}", value)]
    flags = ["--sample", "--align", "--tokens", "--no-protect", "--no-split", "--no-respell", "--no-verify"]
    texts = ["--format", "jsonl", "--forbid", "a", "--forbid", "b", "--glossary", "g.tsv", "--ensemble", "m"]
    app(["translate", str(model), os.devnull, *map(str, words), *flags, *texts], standalone_mode=False)
    assert passed == {
        **{"model": model, "sample": True, "align": True, "tokens": True, "protect": False, "forbid": ["a", "b"]},
        **{"glossary": Path("g.tsv"), "ensemble": [Path("m")], "score_only": False, "split": False, "verify": False},
        **{"confidence": True, "generate": False, "respell": False},
        **search,
        **engine,
    }


def test_ensemble_averages_probabilities(nmt, model, trained, translators, tmp_path):
    both = nmt("translate", model, "--ensemble", model, stdin=text_of(SENTENCES[:4]))
    assert both.code == 0, both.err
    assert both.text.splitlines() == [one.text for one in translators["torch"].translate(SENTENCES[:4])]
    second = briefly_trained(trained, steps=10, max_positions=300)
    save_model(tmp_path / "second", second.model.state_dict(), second.recipe, model / "model/vocab", {})
    sources, targets = ([pair[side] for pair in TEST[:4]] for side in (0, 1))
    logprobs = []
    for first, others in ((model, []), (tmp_path / "second", []), (model, [tmp_path / "second"])):
        with load(first, engine="torch", workers=1, ensemble=others) as translator:
            logprobs.append([one.n_best[0].token_logprobs for one in translator.score(sources, targets)])
    for one, two, mean in zip(*logprobs, strict=True):
        assert mean == pytest.approx(np.log((np.exp(one) + np.exp(two)) / 2), abs=1e-3)
    other = tmp_path / "other"
    shutil.copytree(model / "model", other)
    proto = bytearray((other / "vocab/joint.model").read_bytes())
    at = proto.index("▁the".encode())
    proto[at : at + 6] = "▁thx".encode()
    (other / "vocab/joint.model").write_bytes(bytes(proto))
    write_again(other / "about.json")
    assert_user_error(nmt("translate", model, "--ensemble", other, stdin=b"a\n"), "another vocabulary")
