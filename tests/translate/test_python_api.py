"""nmt_cli.load and Translator: the command's translations, from Python."""

from __future__ import annotations

import itertools
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import FrozenInstanceError

import pytest
from support.small_language import SENTENCES, TEST, text_of

from nmt_cli.errors import NmtError
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
    with pytest.raises(NmtError, match="engine = 'fast' is not one of auto, torch, ctranslate2"):
        load(model, engine="fast")


def test_closing_ends_the_worker_processes(model):
    before = multiprocessing.active_children()
    with load(model, engine="torch", workers=2) as translator:
        text = translator.translate(SENTENCES[0]).text
        assert len(multiprocessing.active_children()) > len(before)
    assert multiprocessing.active_children() == before
    assert translator.translate(SENTENCES[0]).text == text  # a later call starts the workers again
    translator.close()


def test_ctranslate2_engine_never_imports_torch(model):
    script = (
        "import sys\n"
        "from nmt_cli.translate.translator import load\n"
        "assert 'ctranslate2' not in sys.modules\n"
        "print(load(sys.argv[1]).translate('the cat.').text, 'torch' in sys.modules, 'ctranslate2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, model], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split()[-2:] == ["False", "True"], done
