"""`nmt learn`: the rules on planted figures, the experiments in small, the command, the page in a real browser."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.checks import assert_user_error

from nmt_cli.errors import NmtError
from nmt_cli.learn import lab as laboratory
from nmt_cli.learn import mechanisms, models
from nmt_cli.learn.claims import CLAIMS, find_claim
from nmt_cli.learn.draw import draw_result
from nmt_cli.learn.lab import Lab
from nmt_cli.learn.page import html_page
from nmt_cli.learn.results import Bars, Curves, Maps, Measurement, Result, run
from nmt_cli.terminal.console import output

# Figures of one seed that hold, and changes to them that do not.
HOLDING = {
    "gradients": {"plain RNN, distance 20": 1e-4, "LSTM, distance 20": 0.02, "Transformer, distance 20": 0.1},
    "bottleneck": {
        "one vector: BLEU of short lines": 20, "one vector: BLEU of long lines": 5,
        "attention: BLEU of short lines": 40, "attention: BLEU of long lines": 30,
    },
    "alignment": {"diagonal: AER": 50, "attention of an LSTM: AER": 40},
    "order": {"without positions": 1e-7, "with positions": 0.5},
    "scale": {"plain, width 4": 0.3, "plain, width 1024": 0.95, "scaled, width 4": 0.2, "scaled, width 1024": 0.2},
    "mask": {
        "decoder, masked: largest effect of a later word": 0, "encoder, not masked: largest effect of a later word": 1,
    },
    "heads": {"untrained": 0.1, "trained": 0.4},
    "positions": {"sinusoidal: BLEU": 40, "learned: BLEU": 42},
    "norms": {
        "pre-norm: first loss": 7, "pre-norm: last loss": 4, "post-norm: first loss": 7, "post-norm: last loss": 6,
    },
    "smoothing": {
        "no smoothing: confidence": 0.9, "no smoothing: BLEU": 50,
        "smoothing 0.1: confidence": 0.8, "smoothing 0.1: BLEU": 40,
    },
    "beam": {
        "lines with a higher log p": 0.2, "lines with a lower log p": 0, "greedy: mean log p": -3,
        "beam 5: mean log p": -2, "greedy: BLEU": 40, "beam 5: BLEU": 41,
    },
    "cost": {
        "attention, between words, exponent": 2, "the rest of the layer, exponent": 1, "recurrence, exponent": 1,
    },
}  # fmt: skip
FAILING = [
    ("gradients", {"plain RNN, distance 20": 0.02}),
    ("gradients", {"LSTM, distance 20": 5e-4}),
    ("gradients", {"Transformer, distance 20": 0.01}),
    ("bottleneck", {"one vector: BLEU of long lines": 18}),
    ("alignment", {"attention of an LSTM: AER": 41}),
    ("order", {"without positions": 1e-3}),
    ("order", {"with positions": 0.01}),
    ("scale", {"plain, width 1024": 0.5}),
    ("scale", {"scaled, width 1024": 0.4}),
    ("mask", {"decoder, masked: largest effect of a later word": 1e-9}),
    ("mask", {"encoder, not masked: largest effect of a later word": 0}),
    ("heads", {"trained": 0.15}),
    ("heads", {"untrained": 0.3}),
    ("norms", {"post-norm: last loss": 4.5}),
    ("norms", {"pre-norm: last loss": 6.5, "post-norm: last loss": 8}),
    ("smoothing", {"smoothing 0.1: confidence": 0.9}),
    ("beam", {"lines with a lower log p": 0.005}),
    ("cost", {"attention, between words, exponent": 1.5}),
    ("cost", {"recurrence, exponent": 2}),
]


@pytest.mark.parametrize("name", HOLDING)
def test_rule_holds(name):
    assert find_claim(name).holds([HOLDING[name]] * 3)


@pytest.mark.parametrize(("name", "changes"), FAILING)
def test_one_seed_that_fails_is_enough_to_fail(name, changes):
    assert not find_claim(name).holds([HOLDING[name], HOLDING[name], {**HOLDING[name], **changes}])


def test_rules_over_all_seeds():
    """Positions are compared by their means. Beam search may lose in BLEU for a minority of the seeds."""
    positions, beam = HOLDING["positions"], HOLDING["beam"]
    far = {**positions, "learned: BLEU": 44}
    assert find_claim("positions").holds([positions, positions, far])  # the means are 40 and 42.7
    worse = {**beam, "beam 5: BLEU": 39}
    assert not find_claim("positions").holds([far, far, far])
    assert find_claim("beam").holds([beam, beam, worse])
    assert not find_claim("beam").holds([beam, worse, worse])
    diverged = {**HOLDING["norms"], "post-norm: last loss": float("nan")}
    assert find_claim("norms").holds([diverged] * 3)


# --- The experiments ----------------------------------------------------------------------------------------------

UNTRAINED = ("order", "scale", "mask", "cost")


@pytest.mark.parametrize("name", UNTRAINED)
def test_claims_without_training(name, tmp_path, monkeypatch):
    monkeypatch.setattr(mechanisms, "LENGTHS", (16, 32, 64))
    result = run(find_claim(name), Lab(tmp_path), seeds=(1,))
    assert result.held and result.measurements[1].figures.keys() == HOLDING[name].keys()
    assert not any(tmp_path.iterdir())


def test_gradient_by_distance_is_that_of_finite_differences(monkeypatch):
    """Moving a word vector a little along one axis changes the output as the gradient says."""
    monkeypatch.setattr(mechanisms, "DISTANCES", 4)
    monkeypatch.setattr(mechanisms, "SENTENCES", 1)
    model = mechanisms.recurrent(1, "rnn").double()
    src, table = mechanisms.sentence(5, 1000), model.get_parameter("source_embedding.weight")
    direction = torch.randn(1, mechanisms.DIM, generator=torch.Generator().manual_seed(0)).double()
    norms = []
    with torch.no_grad():
        for word in src[0]:
            before, slopes = float((model.encode(src)["last"] * direction).sum()), []
            for axis in range(mechanisms.DIM):
                table[word, axis] += 1e-6
                slopes.append((float((model.encode(src)["last"] * direction).sum()) - before) / 1e-6)
                table[word, axis] -= 1e-6
            norms.append(np.linalg.norm(slopes))
    shares = mechanisms.gradient_by_distance(model, 1)
    assert shares == pytest.approx([norm / norms[-1] for norm in reversed(norms)], rel=1e-3)


def test_growth_is_the_exponent():
    assert mechanisms.growth([(n, 5.0 * n**1.5) for n in (3, 10, 100)]) == pytest.approx(1.5)


@pytest.mark.parametrize(("source", "target", "links"), [
    ("a b c", "x y z", {(0, 0), (1, 1), (2, 2)}),
    ("a b", "w x y z", {(0, 0), (0, 1), (1, 2), (1, 3)}),
    ("a b c d", "x", {(2, 0)}),
])  # fmt: skip
def test_diagonal(source, target, links):
    assert models.diagonal(source, target) == links


class PlantedLab(Lab):
    """A lab in which every model is the same small model, which was trained elsewhere."""

    def __init__(self, trained):
        self.model = trained

    def trained(self, name, seed):
        return self.model

    def losses(self, name, seed):
        return [(n, 7.0 - n) for n in range(1, 5)]


TRAINED = [claim.name for claim in CLAIMS if claim.measure.__module__ == models.__name__]


@pytest.mark.parametrize("name", TRAINED)
def test_claims_with_trained_models_measure_what_their_rules_read(name, trained, monkeypatch):
    monkeypatch.setattr(models, "LINES", 6)
    result = run(find_claim(name), PlantedLab(trained), seeds=(1,))
    assert result.measurements[1].figures.keys() == HOLDING[name].keys()
    assert name not in ("bottleneck", "norms", "smoothing") or not result.held  # a model is not better than itself
    drawn(result)
    html_page([result])


def test_lab_trains_a_model_once(tmp_path, monkeypatch):
    monkeypatch.setattr(laboratory, "demo_corpus", lambda split: models.demo_corpus(split)[:120])
    monkeypatch.setitem(laboratory.COMMON, "train.steps", 2)
    monkeypatch.setitem(laboratory.COMMON, "vocab.size", 200)
    shown, weights = [], []
    for _ in range(2):
        shown.append([])
        lab = Lab(tmp_path, lambda *event: shown[-1].append(event))
        weights.append(lab.trained("transformer", 1).model.output_weight)
    assert torch.equal(*weights)
    assert [step for step, loss in lab.losses("transformer", 1)] == [2]
    assert len(shown[0]) == 2 and len(shown[1]) == 2  # the second lab only loads the run, and losses() reads its log


def test_a_training_that_diverges_is_a_measurement(tmp_path, monkeypatch):
    """The rule of `norms` counts a post-norm loss that is not a number."""
    monkeypatch.setattr(laboratory, "demo_corpus", lambda split: models.demo_corpus(split)[:120])
    monkeypatch.setitem(laboratory.COMMON, "vocab.size", 200)
    small = {**laboratory.UNPREPARED, "model.encoder_layers": 1, "model.decoder_layers": 1, "train.steps": 20}
    monkeypatch.setitem(laboratory.MODELS, "pre-norm", {**small, "model.norm": "pre"})
    monkeypatch.setitem(laboratory.MODELS, "post-norm", {**small, "model.norm": "post", "train.lr": 1e30})
    result = run(find_claim("norms"), Lab(tmp_path), seeds=(1,))
    figures = result.measurements[1].figures
    assert np.isfinite(figures["pre-norm: last loss"]) and np.isnan(figures["post-norm: last loss"])
    assert "nan" in drawn(result) and "nan" in html_page([result])


def test_curves_without_values_are_not_drawn():
    for curves in ({"empty": [], "second curve": [(0, 1.0), (9, 2.0)]}, {"empty": []}):
        result = planted(Curves("losses", "updates", curves))
        is_drawn = "second curve" in curves
        assert ("second curve" in drawn(result)) == ("second curve" in html_page([result])) == is_drawn
        assert ("nothing to draw" in drawn(result)) == ("nothing to draw" in html_page([result])) != is_drawn


def test_the_models_of_a_lab_are_not_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(laboratory, "demo_corpus", lambda split: models.demo_corpus(split)[:120])
    monkeypatch.setitem(laboratory.COMMON, "train.steps", 1)
    monkeypatch.setitem(laboratory.COMMON, "vocab.size", 200)
    Lab(tmp_path).losses("transformer", 1)
    for key, value, problem in (("train.lr", 1e-3, "has other settings"), ("vocab.size", 150, "exists with other")):
        monkeypatch.setitem(laboratory.COMMON, key, value)
        with pytest.raises(NmtError, match=problem) as refused:
            Lab(tmp_path).losses("transformer", 1)
        assert refused.value.hint == f"remove the folder {tmp_path} to start again, or choose another with --out"


# --- The command --------------------------------------------------------------------------------------------------


def test_claims_are_listed_and_run(nmt, tmp_path):
    listed = nmt("learn")
    assert [line.split()[0] for line in listed.text.splitlines()[1:] if line[0] != " "] == [c.name for c in CLAIMS]
    result = nmt("learn", "mask", "--ascii", "--html", "page.html")
    assert result.code == 0, result.err
    assert result.text.splitlines()[1] == "held here" and result.text.isascii()
    assert "written to page.html" in result.err
    assert 'id="mask"' in (tmp_path / "page.html").read_text() and not (tmp_path / "learn").exists()


@pytest.mark.parametrize(("arguments", "parts"), [
    (["alignement"], ["there is no claim 'alignement'", "did you mean alignment?"]),
    (["?"], ["there is no claim '?'", "nmt learn lists the claims"]),
    (["mask", "--all"], ["--all runs every claim, but one is named"]),
    (["--html", "page.html"], ["--html needs results", "--all"]),
    (["mask", "--force"], ["--force replaces the page of --html, but no page is named"]),
    (["mask", "--html", "old.html"], ["old.html exists", "--force"]),
    (["mask", "--html", "none/page.html"], ["there is no folder none"]),
    (["alignment", "--out", "old.html"], ["old.html is a file, but a folder is to be written", "--out"]),
])  # fmt: skip
def test_errors(nmt, write, arguments, parts):
    old = write("old.html", "mine")
    assert_user_error(nmt("learn", *arguments), *parts)
    assert old.read_text() == "mine"


def test_names_are_unique_and_every_text_is_a_sentence():
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS) >= 12
    for claim in CLAIMS:
        assert claim.sentence.endswith(".") and claim.rule.rstrip(")").endswith(".") and len(claim.lesson.split()) > 30
    with pytest.raises(NmtError):
        find_claim("")


# --- The drawings -------------------------------------------------------------------------------------------------

HOSTILE = 'a </table><script>document.title = "hacked"</script> & "b"'
PICTURES = [
    Curves(HOSTILE, "words", {"one": [(0, 1.0), (9, 0.001)], "<b>two</b>": [(0, 1.0), (9, 0.5)]}, powers=True),
    Bars("bars", [("short", 40.0), (HOSTILE, 0.0)]),
    Maps(
        "maps",
        ["I", HOSTILE],
        [str(n) for n in range(30)],
        {"head 1": np.eye(2, 30).tolist(), "head 2": np.ones((2, 30)).tolist()},
    ),
]


def planted(picture, held: bool = True) -> Result:
    claim = replace(CLAIMS[0], name=type(picture).__name__, sentence=HOSTILE)
    return Result(claim, {seed: Measurement({"a < b": 0.5, "tiny": 1e-9}, picture) for seed in (1, 2, 3)}, held)


def drawn(result: Result, width: int = 80) -> str:
    console = output()
    with console.capture() as text:
        console.print(draw_result(result, width, "blocks"))
    return text.get()


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: type(picture).__name__)
@pytest.mark.parametrize("width", [40, 100])
def test_terminal(picture, width):
    text = drawn(planted(picture, held=False), width)
    assert "did not hold here" in text and "a < b" in text and "1.0e-09" in text and "rule:" in text


def test_page_in_a_browser(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(html_page([planted(picture, held=n > 0) for n, picture in enumerate(PICTURES)]), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(180_000)
    requested, problems = [], []
    page.on("request", lambda request: requested.append(request.url))
    page.on("console", lambda message: problems.append(message.text))
    page.goto(path.as_uri())
    assert page.title() == "nmt learn: claims, measured"  # the hostile script did not run
    assert page.locator("script, section b b").count() == 0
    assert page.locator("h2").all_inner_texts() == [HOSTILE] * 3
    assert page.locator("p.verdict").all_inner_texts() == ["did not hold here", "held here", "held here"]
    assert "2 of 3 claims held here" in page.locator("main").inner_text()
    assert page.locator("#Curves polyline").count() == 2
    bars = page.locator("#Bars .bar i").evaluate_all("all => all.map(bar => bar.getBoundingClientRect().width)")
    assert bars[0] > 100 > bars[1]
    assert page.locator("#Maps table.map td").count() == 2 * 2 * 30
    page.click("nav a[href='#Maps']")
    for width in (1200, 360):  # wide pictures scroll inside their frame, not the page
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    assert all(url.startswith(("file:", "data:")) for url in requested) and not problems


@pytest.mark.torture
def test_all_claims(nmt, tmp_path):
    """`make learn`, which trains 21 small models. A second run trains nothing."""
    first = nmt("learn", "--all", "--html", "page.html")
    assert first.code == 0, first.err
    again = nmt("learn", "--all", "--html", "page.html", "--force")
    assert again.text == first.text
    verdicts = re.findall(r"^(?:held|did not hold) here$", first.text, flags=re.M)
    assert len(verdicts) == len(CLAIMS)
