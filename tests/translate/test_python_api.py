"""nmt_cli.load and Translator: the command's translations, from Python."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from support.checks import PATIENCE
from support.small_language import SENTENCES, TEST, text_of

from nmt_cli.errors import NmtError
from nmt_cli.translate import translator as module
from nmt_cli.translate.results import Translation
from nmt_cli.translate.translator import load

TARGETS = [pair[1] for pair in TEST[:4]]


@pytest.fixture(scope="module")
def translator(model):
    with load(model, workers=1) as translator:
        yield translator


def test_list_gives_list_with_the_texts_of_the_command(translator, nmt, model):
    translations = translator.translate([*SENTENCES[:4], "", "the {x} sleeps."])
    assert isinstance(translations, list) and all(isinstance(one, Translation) for one in translations)
    stdin = text_of([*SENTENCES[:4], "", "the {x} sleeps."])
    assert [one.text for one in translations] == nmt("translate", model, stdin=stdin).text.split("\n")[:-1]
    assert [one.line for one in translations] == [1, 2, 3, 4, 5, 6]
    assert translations[0].source == SENTENCES[0] and translations[0].score < 0
    assert translations[4].text == "" and translations[4].n_best == ()
    with pytest.raises(FrozenInstanceError):
        translations[0].parts = 2


def test_str_gives_one_translation(translator):
    assert translator.translate(SENTENCES[0]) == translator.translate(SENTENCES[:1])[0]


def test_iterable_gives_iterator_that_reads_lazily_and_keeps_the_order(translator):
    translations = translator.translate(itertools.cycle(SENTENCES[:3]))
    assert isinstance(translations, Iterator)
    texts = [one.text for one in itertools.islice(translations, 7)]
    expected = [one.text for one in translator.translate(SENTENCES[:3])]
    assert texts == [expected[n % 3] for n in range(7)]


def test_line_is_answered_before_the_iterable_ends(translator):
    answered = threading.Event()

    def lines():
        yield SENTENCES[0]
        assert answered.wait(300), "the first line was not answered"
        yield SENTENCES[1]

    count = 0
    for _ in translator.translate(lines()):
        answered.set()
        count += 1
    assert count == 2


def test_error_of_the_iterable_comes_after_the_lines_before_it(translator):
    def lines():
        yield SENTENCES[0]
        raise ValueError("broken")

    translations = translator.translate(lines())
    assert next(translations).text
    with pytest.raises(ValueError, match="broken"):
        next(translations)


def test_options_have_the_names_of_the_command_line(translator):
    (one,) = translator.translate(SENTENCES[:1], beam=4, n_best=3, align=True, tokens=True, alpha=0.5)
    assert len(one.n_best) == 3 and one.text == one.n_best[0].text
    best = one.n_best[0]
    assert len(best.token_logprobs) == len(best.tokens) + 1
    assert one.score == pytest.approx(sum(best.token_logprobs) / len(best.token_logprobs) ** 0.5, abs=1e-4)
    assert sorted(target for _, target in best.alignment) == list(range(len(one.text.split())))
    with pytest.raises(TypeError, match="no option beem"):
        translator.translate(SENTENCES[:1], beem=4)
    with pytest.raises(NmtError, match="beam must be from 1 to 10000"):
        translator.translate(SENTENCES[:1], beam=0)


def test_prefix_and_glossary_are_python_objects(translator):
    one, two = translator.translate(["the cat sleeps.", "the dog sleeps."], ["", "Demain"], glossary={"cat": "matou"})
    assert "matou" in one.text.lower() and "glossary" in one.flags
    assert two.text.startswith("Demain")
    assert translator.translate("the dog sleeps.", "Demain").text == two.text
    with pytest.raises(NmtError, match="different lengths: one ends after line 1"):
        translator.translate(["a", "b"], ["Le"])
    with pytest.raises(NmtError, match="a side of the entry is blank"):
        translator.translate("the cat.", glossary={"cat": " "})


WRONG = [
    (("a",), {"at_least": 80}, "^--at-least must be from 0 to 1, not 80"),
    (("a",), {"at_least": math.nan}, "^--at-least must be from 0 to 1, not nan"),
    (("a",), {"at_least": 0.5, "below": "source"}, "^--below must be empty or copy, not source"),
    (("a",), {"below": "copy"}, "--below has an effect only with --at-least"),
    (("a",), {"batch_tokens": -1}, "^--batch-tokens must be 0 or more, not -1"),
    (("a", "Le"), {"generate": True}, "--generate cannot be combined with a prefix"),
    (("a",), {"generate": True, "glossary": {"a": "b"}}, "--generate cannot be combined with"),
    (("a",), {"generate": True, "align": True}, "--generate cannot be combined with"),
    (("a",), {"generate": True, "at_least": 0.5}, "--generate cannot be combined with"),
    (("a",), {"glossary": {"cat": "\ud800"}}, "a term of the glossary is not UTF-8"),
    (("a",), {"forbid": ["the", "caf\udce9"]}, "a text of --forbid is not UTF-8"),
    (("\ud800",), {}, "line 1 is not UTF-8"),
    ((["a", "b"], ["", "\ud800"]), {}, "the prefix of line 2 is not UTF-8"),
    ((["a", None],), {}, "line 2 is None, not a text"),
    ((["a"], [None]), {}, "the prefix of line 1 is None, not a text"),
    ((iter([1.5]),), {}, "line 1 is 1.5, not a text"),
    ((b"a",), {}, "line 1 is 97, not a text"),
    ((3,), {}, "^the line must be a text or a list, not 3"),
    ((None,), {}, "^the line must be a text or a list, not None"),
    ((["a"], 3), {}, "^the prefix must be a text or a list, not 3"),
    (("a",), {"beam": "2"}, "^--beam must be a whole number, not '2'"),
    (("a",), {"beam": 2.0}, "^--beam must be a whole number, not 2.0"),
    (("a",), {"n_best": True}, "^--n-best must be a whole number, not True"),
    (("a",), {"batch_tokens": "many"}, "^--batch-tokens must be a whole number, not 'many'"),
    (("a",), {"at_least": "x"}, "^--at-least must be a number, not 'x'"),
    (("a",), {"alpha": [1]}, "^--alpha must be a number, not \\[1\\]"),
    (("a",), {"length_penalty": 1}, "length_penalty must be power or gnmt, not 1"),
    (("a",), {"align": "no"}, "^--align must be True or False, not 'no'"),
    (("a",), {"forbid": 3}, "^--forbid must be a text or a list, not 3"),
    (("a",), {"glossary": 3}, "^--glossary must be a path or a text or a dict, not 3"),
]


@pytest.mark.parametrize(("arguments", "options", "message"), WRONG)
def test_wrong_values_are_refused_as_by_the_command(translator, arguments, options, message):
    with pytest.raises(NmtError, match=message) as caught:
        list(translator.translate(*arguments, **options))
    assert caught.value.hint


def test_one_text_or_model_is_no_list_of_letters(translator, model, trained):
    line = SENTENCES[0]
    piece = translator.translate(line).best.tokens[0]
    word = trained.vocab.target.decode([piece])
    found = translator.translate(line, forbid=word)
    assert piece not in found.best.tokens and found == translator.translate(line, forbid=[word])
    assert translator.translate(line, prefix=None) == translator.translate(line)
    with load(model, ensemble=str(model), workers=1) as both:
        assert len(both.models) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "^--workers must be 0 or more, not -1"),
        ({"workers": 1.5}, "^--workers must be a whole number, not 1.5"),
        ({"workers": None}, "^--workers must be a whole number, not None"),
        ({"type": "foo"}, "^--type foo is not one of auto, float32, int8"),
        ({"type": 8}, "^--type must be a text, not 8"),
        ({"device": "gpu"}, "^--device gpu is not one of auto, cpu"),
        ({"engine": "fast"}, "^--engine fast is not one of auto, torch, ctranslate2"),
        ({"verify": "no"}, "^--verify must be True or False, not 'no'"),
        ({"ensemble": 3}, "^--ensemble must be a text or a path or a list, not 3"),
        ({"ensemble": [3]}, "^3 is not the path of a model"),
    ],
)
def test_load_refuses_wrong_values(model, options, message):
    with pytest.raises(NmtError, match=message) as caught:
        load(model, **options)
    assert caught.value.hint


def test_numbers_of_numpy_and_none_are_values_of_options(translator):
    line = SENTENCES[0]
    options = {"beam": np.int64(4), "n_best": np.int32(2), "alpha": np.float64(0.5), "align": np.True_}
    expected = translator.translate(line, beam=4, n_best=2, alpha=0.5, align=True)
    assert translator.translate(line, **options) == expected
    nothing = dict.fromkeys(("beam", "n_best", "batch_tokens", "alpha", "forbid", "glossary", "at_least", "below"))
    assert translator.translate(line, **nothing) == translator.translate(line)


def test_score_has_the_options_of_the_command(translator):
    lines = [*SENTENCES[:4], f"{SENTENCES[0]} {SENTENCES[1]}"]
    found = translator.translate(lines, align=True, protect=False)
    texts = [one.text for one in found]
    scored = translator.score(lines, texts, align=True)
    assert [one.best.alignment for one in scored] == [one.best.alignment for one in found]
    assert "split" in scored[4].flags and all(one.best.alignment for one in scored)
    assert "split" not in translator.score(lines[4], texts[4], split=False, batch_tokens=100).flags
    (gnmt,) = translator.score(lines[:1], texts[:1], alpha=0.7, length_penalty="gnmt")
    assert gnmt.score == pytest.approx(gnmt.best.logprob / ((5 + gnmt.best.length) / 6) ** 0.7, abs=1e-4)
    without, with_penalty = (translator.score(lines[0], "Le chat.", coverage_penalty=beta).score for beta in (0, 1))
    assert with_penalty < without
    with pytest.raises(TypeError, match=r"score\(\) has no option n_best"):
        translator.score(lines, texts, n_best=2)
    for wrong, message in (("\ud800", " of line 1 is not UTF-8"), (None, " must be a text or a list, not None")):
        with pytest.raises(NmtError, match=f"^the translation{message}"):
            translator.score("a", wrong)


def test_scores_are_those_of_the_command(translator, nmt, model):
    scored = translator.score(SENTENCES[:4], TARGETS)
    stdin = text_of([f"{source}\t{target}" for source, target in zip(SENTENCES[:4], TARGETS, strict=True)])
    command = nmt("translate", model, "--score-only", stdin=stdin)
    assert [f"{one.score:.4f}" for one in scored] == command.text.split()
    assert [one.text for one in scored] == TARGETS
    assert translator.score(SENTENCES[0], TARGETS[0]).score == pytest.approx(scored[0].score, abs=1e-4)
    lazy = translator.score(iter(SENTENCES[:4]), iter(TARGETS))
    assert [one.score for one in lazy] == pytest.approx([one.score for one in scored], abs=1e-4)
    with pytest.raises(NmtError, match="different lengths: one ends after line 3"):
        list(translator.score(iter(SENTENCES[:4]), TARGETS[:3]))
    with pytest.raises(NmtError, match="different lengths: one ends after line 0"):
        translator.score(SENTENCES[:2], [])


def test_engine_starts_when_a_call_needs_it(model):
    with load(model, workers=1) as translator:
        assert translator.engine == ""
        translator.translate(SENTENCES[0])
        assert translator.engine == "ctranslate2, 1 worker"
        drawn = translator.translate(SENTENCES[0], sample=True, seed=3).text
        assert translator.engine == "torch, 1 worker"
        assert drawn == translator.translate(SENTENCES[0], sample=True, seed=3).text
    with pytest.raises(NmtError, match="there is no model"):
        load(model / "none")


def test_closing_ends_the_worker_processes(model):
    before = multiprocessing.active_children()
    with load(model, engine="torch", workers=2) as translator:
        text = translator.translate(SENTENCES[0]).text
        assert len(multiprocessing.active_children()) > len(before)
    assert multiprocessing.active_children() == before
    assert translator.translate(SENTENCES[0]).text == text  # a later call starts the workers again
    translator.close()


@pytest.mark.parametrize(("engine", "workers"), [("ctranslate2", 1), ("torch", 1), ("torch", 2)])
def test_results_that_are_read_after_the_end_are_an_error(model, engine, workers):
    with load(model, engine=engine, workers=workers) as translator:
        results = translator.translate(iter(SENTENCES[:3]))
    with pytest.raises(NmtError, match="the translator is closed") as caught:
        next(results)
    assert "inside of the with block" in caught.value.hint


def test_first_calls_of_several_threads_start_one_engine(model, monkeypatch):
    started, start_workers = [], module.start_workers

    def slowly(*arguments):
        started.append(arguments)
        time.sleep(0.5)
        return start_workers(*arguments)

    monkeypatch.setattr(module, "start_workers", slowly)
    with load(model, workers=1) as translator, ThreadPoolExecutor(3) as threads:
        texts = list(threads.map(lambda line: translator.translate(line).text, SENTENCES[:1] * 3))
        assert texts == [translator.translate(SENTENCES[0]).text] * 3
    assert len(started) == 1


def test_estimates_stay_those_of_the_loaded_model(model, tmp_path):
    """nmt train may write another model into the folder meanwhile."""
    shutil.copytree(model / "model", tmp_path / "model")
    with load(tmp_path / "model", workers=1) as translator:
        (tmp_path / "model/quality.json").unlink()
        first = translator.translate(SENTENCES[0])
        assert first.confidence is not None and first == translator.translate(SENTENCES[0])


WITH_WORKERS = """
import sys, types
import nmt_cli, torch
from nmt_cli.search import workers

def main():
    torch.set_num_threads(3)
    workers.sys = types.SimpleNamespace(platform=sys.argv[2])
    try:
        with nmt_cli.load(sys.argv[1], engine="torch", workers=2) as translator:
            print(translator.translate("The cat sleeps.").text)
            (running,) = translator._workers.values()
            print(running.pool.submit(torch.get_num_threads).result(), torch.get_num_threads())
    except nmt_cli.NmtError as error:
        print(error.message, error.hint)

"""
GUARD = 'if __name__ == "__main__":\n    '


@pytest.mark.parametrize(
    ("platform", "guard", "expected"),
    [("linux", "", "{text}\n1 3\n"), ("darwin", GUARD, "{text}\n1 3\n"), ("darwin", "", "cannot start")],
)
def test_workers_compute_on_one_core_and_start_by_fork_or_spawn(model, translator, tmp_path, platform, guard, expected):
    """The caller's process keeps its threads. A spawned worker imports the script, which must not start workers."""
    script = tmp_path / "script.py"
    script.write_text(f"{WITH_WORKERS}{guard}main()\n")
    done = subprocess.run([sys.executable, script, model, platform], capture_output=True, text=True, timeout=PATIENCE)
    text = translator.translate("The cat sleeps.").text
    assert expected.format(text=text) in done.stdout, done.stderr
    assert ('__name__ == "__main__"' in done.stdout) == (expected == "cannot start")


def test_ctranslate2_engine_never_imports_torch(model):
    script = (
        "import sys\n"
        "from nmt_cli.translate.translator import load\n"
        "assert 'ctranslate2' not in sys.modules\n"
        "print(load(sys.argv[1]).translate('the cat.').text, 'torch' in sys.modules, 'ctranslate2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, model], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split()[-2:] == ["False", "True"], done
