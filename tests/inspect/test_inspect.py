"""`nmt inspect`: drawings against what a person would draw, the page in a real browser, and what is refused."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from support.checks import assert_user_error
from torch import nn

from nmt_cli.cli import app
from nmt_cli.errors import NmtError
from nmt_cli.inspect.attention import (
    alignment,
    as_table,
    beam_steps,
    html_page,
    inspect,
    show,
    source_ids,
)
from nmt_cli.inspect.beam_tree import draw, grow
from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.build import build_model
from nmt_cli.model.transformer import sinusoids
from nmt_cli.recipe.load import load_recipe
from nmt_cli.recipe.schema import Vocab
from nmt_cli.search.beam import Step, search
from nmt_cli.search.contract import options_of
from nmt_cli.store.checkpoint import Trained, load_model, save_model
from nmt_cli.terminal.heatmap import fit, grid, heatmap, ink_of, raster
from nmt_cli.terminal.plot import to_ascii
from nmt_cli.text.alignment import words_of
from nmt_cli.text.lines import one_line
from nmt_cli.text.vocab import BOS, EOS, PAD, learn, load_vocab, write_vocab

SENTENCE = "I like the green cat."
TEXT = ["I like the green cat.", "J'aime le chat vert.", "the dog, the cat", "我喜欢绿色的猫 🐈 (a - b)"] * 3
RECIPE = """
[data]
source_lang = "en"
target_lang = "fr"
[vocab]
size = 70
[model]
dim = 16
heads = 2
ff = 32
encoder_layers = 3
decoder_layers = 2
max_positions = 100
[data.clean]
max_tokens = 30
[translate]
beam = 3
"""
ABOUT = {
    "recipe": "toy", "step": 1200, "tokens": 34567, "minutes": 2.5, "flops": 1.25e12, "seed": 1, "data": "",
    "valid": {"loss": 1.5, "ppl": 4.48, "bleu": 31.25, "chrf": 50.5, "signature": "nrefs:1|tok:13a", "lines": 200},
}  # fmt: skip


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A run with a model of random weights, its recipe and its log; made once."""
    path = tmp_path_factory.mktemp("inspect")
    (path / "toy.toml").write_text(RECIPE)
    recipe = load_recipe(path / "toy.toml")
    write_vocab(path / "vocab", {"joint": learn(iter(TEXT), recipe.vocab, "toy")}, recipe.data, recipe.vocab)
    torch.manual_seed(3)
    model = build_model(recipe.model, 70, 70)
    nn.init.normal_(model.output_weight, std=0.7)  # sure of itself, so that something is written
    save_model(path / "run", model.state_dict(), recipe, path / "vocab", ABOUT)
    train = {"kind": "train", "epoch": 1.5, "tokens": 34567, "minutes": 2.5, "flops": 1.25e12, "memory_mb": 100}
    log = [{**train, "step": 300 * n, "loss": 5.0 / n} for n in range(1, 5)]
    log += [
        {"kind": "valid", "step": 600 * n, "value": 15.625 * n, **ABOUT["valid"], "bleu": 15.625 * n} for n in (1, 2)
    ]
    log += [{"kind": "end", "step": 1200, "reason": "1,200 steps", "signal": 0}]
    (path / "run/log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in log))
    return path


@pytest.fixture(scope="session")
def trained(folder) -> Trained:
    return load_model(folder / "run")


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """run("TEXT", "--ascii") is `nmt inspect run ...` inside this process, which saves importing torch each time."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: str, model: str = "run") -> str:
        capsys.readouterr()
        app(["inspect", model, *arguments], standalone_mode=False)
        return capsys.readouterr().out

    return call


def plain(renderable, width: int = 100) -> str:
    console = Console(width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def lines(text: str) -> str:
    """A drawing as it stands in this file: indented, with | at the left edge."""
    return "\n".join(line.strip().removeprefix("|") for line in text.strip().split("\n"))


# ---------------------------------------------------------------------------------------------------------------------
# Drawings

WEIGHTS = np.array([[0.9, 0.1, 0, 0], [0, 0.2, 0.7, 0.1], [0.05, 0.05, 0.3, 0.6]])
ROWS = ["J'", "aime", "猫"]
COLUMNS = ["I", "like", "the 猫咪", "🐈"]


@pytest.mark.parametrize(
    ("ink", "drawn"),
    [
        (
            "blocks",
            """
            |     I   like the 猫咪 🐈
            |  J' ███
            |aime     ░░░░ ▓▓▓▓▓▓▓▓
            |  猫          ░░░░░░░░ ▓▓▓
            |
            |0   ░░▒▒▓▓██ 0.9
            """,
        ),
        (
            "ascii",
            """
            |     I   like the 猫咪 🐈
            |  J' @@@ ....
            |aime     :::: ######## ...
            |  猫          -------- ***
            |
            |0   ..::--==++**##%%@@ 0.9
            """,
        ),
    ],
)
def test_heatmap(ink, drawn):
    assert heatmap(WEIGHTS, ROWS, COLUMNS, 60, ink).plain == lines(drawn)


def test_a_wide_heatmap_goes_on_below():
    drawn = heatmap(WEIGHTS, ROWS, ["I", "incomprehensibilities", "the", "cat"], 24, "blocks")
    assert drawn.plain == lines(
        """
        |1-2 of 4
        |     I   incomprehensi…
        |  J' ███
        |aime     ░░░░░░░░░░░░░░
        |  猫
        |
        |3-4 of 4
        |     the cat
        |  J'
        |aime ▓▓▓
        |  猫 ░░░ ▓▓▓
        |
        |0   ░░▒▒▓▓██ 0.9
        """
    )


@pytest.mark.parametrize("width", [20, 30, 47, 60, 200])
@pytest.mark.parametrize("ink", ["ascii", "blocks", "colour"])
def test_drawings_fit_their_width(width, ink):
    rows = ["Gänsefüßchen", "我喜欢绿色的猫", "👩‍👩‍👧", "e\u0301", ""] * 3
    columns = [*rows, "Donaudampfschifffahrtsgesellschaft"]
    weights = np.random.default_rng(1).dirichlet(np.ones(len(columns)), len(rows))
    maps = [(f"{n}: 1.23 bits", weights) for n in range(3)]
    for drawn in (heatmap(weights, rows, columns, width, ink), grid(maps, rows, columns, width, ink)):
        *body, _, _legend = drawn.plain.split("\n")
        assert max(map(cell_len, body)) <= width


def test_columns_stand_below_their_words():
    """Every cell begins where its word does, in cells, whatever the words are made of."""
    words = ["一", "ab", "🐈🐈🐈", "é"]
    head, *body = heatmap(np.eye(4), words, words, 80, "blocks").plain.split("\n")
    for word, line in zip(words, body, strict=False):
        assert cell_len(line[: line.index("█")]) == cell_len(head[: head.index(word, 6)])


def test_grid_of_heads():
    maps = [("1: 0.50 bits", WEIGHTS), ("2: 1.25 bits", WEIGHTS[:, ::-1])]
    assert grid(maps, ROWS, COLUMNS, 40, "ascii").plain == lines(
        """
        |     1: 0.50 bits  2: 1.25 bits
        |     I l t 🐈      I l t 🐈
        |  J' @@..              ..@@
        |aime   ::##..      ..##::
        |  猫     --**      **--
        |
        |0   ..::--==++**##%%@@ 0.9
        """
    )
    below = grid(maps, ROWS, COLUMNS, 20, "ascii").plain
    assert below.index("1: 0.50 bits\n") < below.index("2: 1.25 bits\n")


def test_raster():
    drawn = raster(np.array([[-1, 0, 1.0], [1, 0, -1]]), 40, "blocks", "a", "b")
    assert drawn.plain == "1  ▒█\n2 █▒\n  a b\n\n-1   ░░▒▒▓▓██ 1"


def test_colours_carry_figures():
    drawn = heatmap(WEIGHTS, ROWS, COLUMNS, 60, "colour")
    console = Console(width=60, color_system="truecolor", force_terminal=True, legacy_windows=False)
    with console.capture() as capture:
        console.print(drawn)
    assert "\x1b[30;48;2;253;231;37m 90\x1b[0m" in capture.get()  # the largest is yellow
    assert drawn.plain.split("\n")[1] == "  J'  90  10" + " " * 14


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ({"force_terminal": True, "color_system": "truecolor"}, {"TERM": "xterm"}, "colour"),
        ({"force_terminal": True, "color_system": "256"}, {"TERM": "xterm"}, "colour"),
        ({"force_terminal": True, "color_system": "standard"}, {"TERM": "xterm"}, "blocks"),
        ({"force_terminal": True, "color_system": "256"}, {"TERM": "xterm", "NO_COLOR": "1"}, "blocks"),
        ({"force_terminal": True}, {"TERM": "dumb"}, "ascii"),
        ({"force_terminal": False}, {"TERM": "xterm"}, "blocks"),
    ],
)
def test_ink_by_what_the_terminal_can_do(options, environment, expected):
    console = Console(_environ=environment, legacy_windows=False, **options)
    assert ink_of(console, False) == expected
    assert ink_of(console, True) == "ascii"


@pytest.mark.parametrize(
    ("text", "width", "fitted"),
    [("ab", 4, "ab  "), ("abcde", 4, "abc…"), ("猫猫猫", 4, "猫…"), ("猫", 1, " "), ("猫", 3, "猫 ")],
)
def test_fit(text, width, fitted):
    assert fit(text, width).rstrip() == fitted.rstrip() and cell_len(fit(text, width)) == width


def test_words_keep_their_apostrophes():
    pieces = ["▁J", "'", "aime", "▁le", "▁", "猫", "▁(", "vis", "-", "à", "-", "vis", ")", "."]
    assert [word.text for word in words_of(pieces, punctuation=True)] == [
        "J'aime",
        "le",
        "猫",
        "(",
        "vis-à-vis",
        ")",
        ".",
    ]
    assert [word.text for word in words_of(pieces)] == ["J'aime", "le", "猫", "(vis-à-vis)."]


# ---------------------------------------------------------------------------------------------------------------------
# The beam

NAMES = {3: "</s>", 4: "▁je", 5: "▁tu", 6: "▁猫", 7: "▁a"}


def steps() -> list[Step]:
    """Two hypotheses; je 猫 wins, tu a dies, je 猫 a is still open."""

    def step(rows, tokens, last, total, kept, ended):
        return Step(rows, tokens, [math.log(p) for p in last], [math.log(p) for p in total], kept, ended)

    return [
        step([0, 0, 0], [4, 5, 6], [0.6, 0.3, 0.05], [0.6, 0.3, 0.05], [0, 1], []),
        step([0, 1, 0], [6, 7, 3], [0.8, 0.9, 0.1], [0.48, 0.27, 0.06], [0, 1], []),
        step([0, 0, 1], [3, 7, 3], [0.7, 0.2, 0.0001], [0.336, 0.096, 0.000027], [1, 2], [0]),
    ]


def test_tree():
    tree = grow(steps(), NAMES.__getitem__, 1.0)
    assert draw(tree, 80).plain == lines(
        """
        |● <s>
        |├─● ▁tu 30%  ▁a 90%  × died, p = 27%
        |● ▁je 60%  ▁猫 80%
        |├─● ▁a 20%  ? open, p = 9.6%
        |● </s> 70%  ■ best, p = 34%, score -0.364
        """
    )
    assert draw(tree, 30).plain == lines(
        """
        |● <s>
        |├─● ▁tu 30%  ▁a 90%
        |│     × died, p = 27%
        |● ▁je 60%  ▁猫 80%
        |├─● ▁a 20%  ? open, p = 9.6%
        |● </s> 70%
        |    ■ best, p = 34%, score -0.364
        """
    )
    assert to_ascii("├─● … ■ × ?") == "|-* ~ # x ?"


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_the_tree_is_what_the_search_found(trained, beam):
    watched, options = beam_steps(trained, SENTENCE, beam)
    tree = grow(watched, str, options.alpha)
    ended = []
    stack = [(tree, ())]
    while stack:
        node, ids = stack.pop()
        ids = (*ids, node.piece)
        assert not node.parent or node.total == pytest.approx(node.parent.total + node.logprob, abs=1e-4)
        if node.ended:
            assert not node.children
            ended.append((node.best, tuple(map(int, ids[1:-1]))))
        stack += [(child, ids) for child in node.children]
    src = torch.tensor([source_ids(trained, SENTENCE)])
    found = search([trained.model], src, replace(options, n_best=beam))[0]
    best = sorted(ended, reverse=True)[: len(found)]
    assert [ids for _, ids in best] == [hypothesis.ids for hypothesis in found]
    assert [score for score, _ in best] == pytest.approx([hypothesis.score for hypothesis in found])


def test_only_one_sentence_is_watched(trained):
    with pytest.raises(ValueError, match="one sentence"):
        search([trained.model], torch.tensor([[4, EOS], [5, EOS]]), options_of(trained.recipe, 2), watch=print)


# ---------------------------------------------------------------------------------------------------------------------
# Attention


def test_weights_are_the_models_own(trained):
    """Over pieces, with special tokens, nothing is merged, left out or averaged."""
    found = inspect(trained, SENTENCE, "le chat", pieces=True, special=True)
    ids, target = trained.vocab.encode_source([SENTENCE])[0], trained.vocab.encode_target(["le chat"])[0]
    with torch.inference_mode():
        memory = trained.model.encode(torch.tensor([[*ids, EOS]]), attention=True)
        logits, weights = trained.model.decode(torch.tensor([[BOS, *target]]), memory, attention=True)
    expected = {"cross": weights["cross"], "decoder": weights["decoder"], "encoder": memory["attention"]}
    for kind, tensor in expected.items():
        np.testing.assert_allclose(found.of(kind).weights, tensor[0].numpy(), atol=1e-6)
        np.testing.assert_allclose(found.of(kind).weights.sum(-1), 1, atol=1e-5)
        assert found.of(kind).elsewhere == pytest.approx(0, abs=1e-5)
    assert found.of("cross").columns[-1] == found.of("cross").rows[-1] == "</s>"
    assert found.of("decoder").rows[0] == "<s>" and "".join(found.of("decoder").rows[1:]) == "▁le▁chat"
    logits = logits[0].clone()
    logits[:, [PAD, BOS]] = -np.inf  # no words
    per_token = logits.log_softmax(1)[range(len(target) + 1), [*target, EOS]]
    assert found.logprob == pytest.approx(float(per_token.sum()))


def test_words_add_up(trained):
    """Words hide the pieces and the end mark: their rows are the means of piece rows, their columns the sums."""
    words, pieces = (inspect(trained, SENTENCE, "le chat vert.", pieces=raw).of("cross") for raw in (False, True))
    assert words.columns == ["I", "like", "the", "green", "cat", "."] and words.rows == ["le", "chat", "vert", "."]
    np.testing.assert_allclose(words.weights[..., -1, :].sum(-1), pieces.weights[..., -1, :].sum(-1))
    assert 0 < words.elsewhere < 1
    np.testing.assert_allclose(words.chosen(None, None), words.weights.mean((0, 1)))
    np.testing.assert_allclose(words.chosen(2, None), words.weights[1].mean(0))
    np.testing.assert_allclose(words.chosen(None, 2), words.weights[:, 1].mean(0))
    np.testing.assert_allclose(words.chosen(1, 2), words.weights[0, 1])


def test_looks():
    """A head that always looks back one word, and one that looks at the full stop."""
    from nmt_cli.inspect.attention import Attention

    back, stop = np.eye(4, k=-1), np.tile([0, 0, 0, 1.0], (4, 1))
    words = ["a", "b", "c", "."]
    looks = Attention("encoder", words, words, np.stack([back, stop])[None], np.zeros((1, 2))).looks()
    assert {name: shares[0].round(2).tolist() for name, shares in looks.items()} == {
        "previous": [1, 0], "same": [0, 0.25], "next": [0, 0.33], "punctuation": [0, 1]
    }  # fmt: skip


def test_the_translation_is_the_searchs(trained):
    best = search([trained.model], torch.tensor([source_ids(trained, SENTENCE)]), options_of(trained.recipe))[0][0]
    found = inspect(trained, SENTENCE)
    assert found.target == one_line(trained.vocab.decode_target([list(best.ids)])[0]) and not found.given
    assert found.logprob == pytest.approx(best.logprob, abs=1e-3)


def test_bytes_are_spelt_out(folder, tmp_path, trained):
    """With byte fallback, what has no piece is bytes; a reader wants the character."""
    settings = Vocab(size=300, byte_fallback=True)
    write_vocab(tmp_path / "v", {"joint": learn(iter(TEXT[:2]), settings, "toy")}, trained.recipe.data, settings)
    vocab = load_vocab(tmp_path / "v")
    model = build_model(trained.recipe.model, *vocab.sizes).eval()
    found = inspect(Trained(model, vocab, trained.recipe, {}), "the ☂ cat")
    assert found.of("encoder").columns == ["the", "☂", "cat"]


class Recurrent(Seq2Seq):
    """The least that follows the contract: cross-attention with one layer and head, or none; no other kind."""

    def __init__(self, vocab: int, attends: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, 4)
        self.attends = attends

    @property
    def output_weight(self):
        return self.embedding.weight

    def encode(self, src, attention=False, keep=None):
        return {"keys": self.embedding(src)}

    def start(self, memory):
        return {"age": memory["keys"].new_zeros(len(memory["keys"]))}

    def step(self, prev, memory, state, attention=False):
        return self.project(self.embedding(prev)), None, state

    def features(self, tgt_in, memory, attention=False, keep=None):
        queries = self.embedding(tgt_in)
        weights = {"cross": (queries @ memory["keys"].mT).softmax(-1)[:, None, None]} if self.attends else None
        return queries, weights if attention else None


@pytest.fixture
def recurrent(trained):
    torch.manual_seed(1)
    return lambda attends: replace(trained, model=Recurrent(70, attends).eval())


def test_any_architecture_that_attends(recurrent):
    found = inspect(recurrent(True), SENTENCE, "le chat")
    assert list(found.attention) == ["cross"]
    drawn = plain(show(found, "cross", None, None, False, 80, "blocks"))
    assert "cross-attention, its only layer, its only head" in drawn and "chat " in drawn
    assert re.fullmatch(r"\d-[01] \d-[01]", alignment(found))
    with pytest.raises(NmtError, match="no self-attention of the encoder") as refused:
        found.of("encoder")
    assert refused.value.hint == "it has --kind cross"
    with pytest.raises(NmtError, match="there is no layer 2") as refused:
        found.of("cross").chosen(2, None)
    assert "one layer, number 1" in refused.value.hint


def test_a_model_without_attention(recurrent):
    model = recurrent(False)
    found = inspect(model, SENTENCE, "le chat")
    for ask in (lambda: found.of("cross"), lambda: alignment(found)):
        with pytest.raises(NmtError, match="this model has no attention to show") as refused:
            ask()
        assert "--beam" in refused.value.hint
    assert as_table(found)["attention"] == {} and as_table(found)["alignment"] is None
    with pytest.raises(NmtError, match="no attention"):
        html_page(found)
    assert beam_steps(model, SENTENCE, 2)[0]


def test_an_empty_translation(trained):
    class Mute(type(trained.model)):
        def project(self, features):
            return super().project(features).index_fill(-1, torch.tensor([EOS]), 1e4)

    model = Mute(trained.recipe.model, 70, 70)
    found = inspect(replace(trained, model=model.eval()), SENTENCE)
    assert found.target == "" and found.of("cross").rows == [] and alignment(found) == ""
    drawn = plain(show(found, "cross", None, None, False, 80, "blocks"))
    assert "(empty)" in drawn and "nothing attends" in drawn
    assert "green" in plain(show(found, "encoder", None, None, True, 80, "blocks"))
    json.dumps(as_table(found), allow_nan=False)


# ---------------------------------------------------------------------------------------------------------------------
# The command


def test_the_map_through_the_real_command(nmt, folder):
    result = nmt("inspect", folder / "run", SENTENCE, "--target", "le chat vert.", env={"FORCE_COLOR": "1"})
    assert result.code == 0 and result.err == ""
    assert "\x1b" not in result.text and not re.search(" $", result.text, flags=re.M)
    shown = result.text.split("\n")
    assert shown[:4] == [f"source  {SENTENCE}", "target  le chat vert.", shown[2], ""]
    assert shown[4] == "cross-attention, mean of 2 layers, mean of 2 heads"
    assert shown[5] == "     I   like the green cat ."
    assert [line[:4].strip() for line in shown[6:10]] == ["le", "chat", "vert", "."]
    assert "What heads look at" in result.text and "goes to special tokens" in result.text


def test_options_of_the_map(run):
    assert "self-attention of the encoder, layer 3 of 3, head 2 of 2" in run(
        SENTENCE, "--kind", "encoder", "--layer", "3", "--head", "2"
    )
    drawn = run(SENTENCE, "--kind", "decoder", "--special", "--pieces", "--ascii", "--target", "le chat")
    assert "<s>" in drawn and "_le" in drawn and drawn.isascii()
    heads = run(SENTENCE, "--heads")
    assert "the heads of layer 2 of 2 and their entropy" in heads
    assert re.search(r"1: \d\.\d\d bits +2: \d\.\d\d bits", heads)
    assert "the heads of layer 1 of 3" in run(SENTENCE, "--heads", "--layer", "1", "--kind", "encoder")
    assert run("I like\u2028the \x07cat.").startswith("source       I like the cat.\n")


def test_alignments(run, folder, trained):
    found = inspect(trained, SENTENCE, "le chat vert.")
    assert found.spaced.columns == SENTENCE.split() and found.spaced.rows == ["le", "chat", "vert."]
    shown = run(SENTENCE, "--format", "align", "--target", "le chat vert.")
    assert shown == alignment(found) + "\n" and len(shown.split()) == 3
    sharp = found.spaced.weights[1, 1].argmax(1)
    expected = " ".join(f"{source}-{target}" for source, target in sorted((s, t) for t, s in enumerate(sharp)))
    assert (
        run(SENTENCE, "--format", "align", "--target", "le chat vert.", "--layer", "2", "--head", "2")
        == expected + "\n"
    )


def test_json(run):
    table = json.loads(run(SENTENCE, "--format", "json", "--target", "le chat vert."))
    assert table["source"] == SENTENCE and table["target"] == "le chat vert." and table["given"] is True
    assert table["alignment"]["source"] == SENTENCE.split()
    assert {kind: part["shape"] for kind, part in table["attention"].items()} == {
        "cross": [2, 2, 4, 6], "encoder": [3, 2, 6, 6], "decoder": [2, 2, 4, 4]
    }  # fmt: skip
    cross = table["attention"]["cross"]
    assert np.array(cross["weights"]).shape == (2, 2, 4, 6)
    np.testing.assert_allclose(np.mean(cross["weights"], (0, 1)), cross["mean"], atol=1e-4)
    keys = {"layer", "head", "previous", "same", "next", "punctuation", "entropy"}
    assert [set(head) for head in cross["heads"]] == [keys] * 4


def test_the_beam(run):
    drawn = run(SENTENCE, "--beam")
    assert drawn.startswith("beam search, 3 kept: ") and "■ best, p = " in drawn and "● <s>" in drawn
    assert run(SENTENCE, "--beam", "--beam-size", "1").startswith("beam search, 1 kept: ")
    assert "* <s>" in run(SENTENCE, "--beam", "--ascii")


def test_standard_input(run, monkeypatch, tmp_path):
    def piped(data: bytes) -> str:
        (tmp_path / "stdin").write_bytes(data)
        with (tmp_path / "stdin").open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            return run("-", "--format", "json", "--target", "le chat")

    assert json.loads(piped("\ufeffI like the cat.\r\n".encode()))["source"] == "I like the cat."
    for data, message in ((b"a\nb\n", "2 lines"), (b"", "is empty"), (b"caf\xe9\n", "standard input, line 1, byte 4")):
        with pytest.raises(NmtError, match=message):
            piped(data)


def test_a_model_is_described(run, folder, tmp_path):
    shown = run()
    parts = (
        *(
            "transformer, en to fr",
            "70 joint bpe pieces",
            "MFLOPs for a source piece",
            "target_embedding",
            "MB in fp32",
        ),
        *("1,200 steps", "1.25e+12 FLOPs", "BLEU 31.25", "training loss", "validation BLEU"),
    )
    for part in parts:
        assert part in shown, part
    assert run("--ascii").isascii()
    about = json.loads(run("--format", "json"))
    assert about["parameters"] == sum(about["parts"].values()) and about["trained"]["valid"]["bleu"] == 31.25
    assert about["history"][-1]["kind"] == "end" and about["flops_per_target_piece"] > 0
    shutil.copytree(folder / "run/model", tmp_path / "moved")  # without its log, it still knows the main things
    moved = run(model=str(tmp_path / "moved"))
    for part in ("1,200 steps, 34,567 target tokens", "2:30", "BLEU 31.25, chrF 50.50", "nrefs:1|tok:13a"):
        assert part in moved, part


def test_schedule_is_the_dry_runs(run, capsys):
    curve = run("--schedule", "--set", "train.warmup=500", model="demo")
    assert "warm-up 500" in curve and "2.17e-03" in curve
    app(["train", "demo", "--dry-run", "--set", "train.warmup=500"], standalone_mode=False)
    dry = capsys.readouterr().out
    assert all(f"# {line}" in dry for line in curve.strip().split("\n"))
    assert run("--schedule", "--ascii", model="demo").isascii()
    assert "learning rate" in run("--schedule", model="run/model")


def test_positions(run, folder):
    drawn = run("--positions", model="toy.toml").split("\n")
    assert drawn[0].startswith("position encoding: positions 1 to 40 down")
    assert drawn[1] == " 1 ▒▒▒▒▒▒▒▒████████"  # sin 0 and cos 0
    assert len([line for line in drawn if re.match(" ?[0-9]+ [ ░▒▓█]", line)]) == 40
    model = build_model(load_recipe(folder / "toy.toml").model, 4, 4)
    assert torch.equal(model.positions(7), sinusoids(7, 16))
    assert Seq2Seq().positions(3) is None


def test_learned_positions(run, folder, tmp_path):
    recipe = load_recipe(folder / "toy.toml", {"model.positions": "learned"})
    model = build_model(recipe.model, 70, 70)
    with torch.no_grad():
        model.source_positions.weight.copy_(torch.arange(100)[:, None].expand(100, 16))
    save_model(tmp_path / "learned", model.state_dict(), recipe, folder / "vocab", ABOUT)
    drawn = run("--positions", "--ascii", model=str(tmp_path / "learned/model")).split("\n")
    assert drawn[1].rstrip() == " 1" and drawn[40] == "40 " + 16 * "@"
    with pytest.raises(NmtError, match="learnt"):
        run("--positions", "--set", "model.positions=learned", model="demo")


def test_a_family_without_positions(run, monkeypatch):
    monkeypatch.setattr("nmt_cli.inspect.attention.build_model", lambda *sizes: Seq2Seq())
    with pytest.raises(NmtError, match="has no position encoding"):
        run("--positions", model="demo")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([SENTENCE, "--layer", "3"], "there is no layer 3"),
        ([SENTENCE, "--layer", "0"], "there is no layer 0"),
        ([SENTENCE, "--head", "9"], "there is no head 9"),
        ([SENTENCE, "--head", "-1"], "there is no head -1"),
        ([SENTENCE, "--heads", "--layer", "7", "--kind", "encoder"], "there is no layer 7"),
        ([SENTENCE, "--format", "align", "--head", "3"], "there is no head 3"),
        ([""], "the sentence is empty"),
        ([" \u200b\t"], "the sentence is empty"),
        ([SENTENCE, "--target", " "], "the target is empty"),
        (["cat " * 100], "the sentence has"),
        ([SENTENCE, "--target", "chat " * 100], "the target has"),
        (["caf\udce9"], "not UTF-8"),
        ([SENTENCE, "--target", "caf\udce9"], "not UTF-8"),
        ([SENTENCE, "--heads", "--head", "1"], "--head has no meaning with --heads"),
        ([SENTENCE, "--beam", "--layer", "1"], "--layer has no meaning with --beam"),
        ([SENTENCE, "--format", "json", "--kind", "cross"], "--kind has no meaning with --format json"),
        ([SENTENCE, "--schedule"], "TEXT has no meaning with --schedule"),
        ([SENTENCE, "--set", "train.lr=1"], "--set has no meaning with TEXT"),
        ([SENTENCE, "--force"], "--force has no meaning with TEXT"),
        (["--heads"], "--heads needs a sentence"),
        (["--beam"], "--beam needs a sentence"),
        (["--format", "align"], "--format align needs a sentence"),
        ([SENTENCE, "--html", "nowhere/page.html"], "there is no folder nowhere"),
    ],
)
def test_mistakes(run, arguments, message):
    with pytest.raises(NmtError) as refused:
        run(*arguments)
    assert message in refused.value.message and refused.value.hint


def test_ranges_are_said(run):
    with pytest.raises(NmtError) as refused:
        run(SENTENCE, "--layer", "4", "--kind", "encoder")
    assert refused.value.hint == "the self-attention of the encoder of this model has layers 1 to 3"


def test_a_mistake_through_the_real_command(nmt, folder):
    assert_user_error(nmt("inspect", folder / "run", "a", "--layer", "9"), "there is no layer 9", "layers 1 to 2")


def in_terminal(arguments: list[str], columns: int, term: str = "xterm-256color") -> str:
    """What `nmt inspect` writes to a terminal of this width."""
    main, side = pty.openpty()
    fcntl.ioctl(side, 0x5414, np.array([50, columns, 0, 0], np.uint16).tobytes())  # TIOCSWINSZ
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "COLORTERM")}
    command = [sys.executable, "-m", "nmt_cli", "inspect", *arguments]
    process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env={**environment, "TERM": term})
    os.close(side)
    shown = b""
    try:
        while data := os.read(main, 4096):
            shown += data
    except OSError:  # how Linux says that nobody is at the other end
        pass
    os.close(main)
    assert process.wait() == 0, shown.decode()
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.skipif(sys.platform != "linux", reason="asks a Linux terminal for its size")
def test_a_narrow_terminal_in_colour(folder):
    text = "I like the green cat, the cat, the dog, 我喜欢绿色的猫 🐈."
    shown = in_terminal([str(folder / "run"), text, "--target", "J'aime le chat 🐈."], 40)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "\x1b[" in shown and "48;5;" in shown  # 256 colours behind
    assert re.search(r"^1-\d+ of \d+\n", bare, flags=re.M) and max(cell_len(line) for line in bare.split("\n")) <= 40


# ---------------------------------------------------------------------------------------------------------------------
# The page

HOSTILE = 'a </script><script>document.title = "hacked"</script> <!-- <b>cat</b> & "猫" 🐈'


def test_the_page_is_one_file_and_safe(run, folder, tmp_path):
    page = tmp_path / "page.html"
    assert run(HOSTILE, "--html", str(page)) == ""
    text = page.read_text(encoding="utf-8")
    assert text.count("</script>") == 2 and "<b>" not in text and "__DATA__" not in text
    assert not re.search(r"""(src|href)=["']?(https?:|//)|@import|url\(|fetch\(|XMLHttpRequest""", text)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, flags=re.S)[1])
    assert data["source"] == HOSTILE
    with pytest.raises(NmtError, match="exists"):
        run(SENTENCE, "--html", str(page))
    run(SENTENCE, "--html", str(page), "--force")
    assert page.read_text(encoding="utf-8") != text


class Browser:
    """Chromium, driven by its own protocol over a pipe: real mouse, real keys, no other program needed."""

    def __init__(self, program: str, profile: Path) -> None:
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (*os.pipe(), *os.pipe())]
        here, self.write_end, self.read_end, there = ends[0], ends[1], ends[2], ends[3]
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
        command = [program, *flags, f"--user-data-dir={profile}", "--window-size=900,900", "about:blank"]
        script = f'exec "$@" 3<&{here} 4>&{there}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "-", *command], pass_fds=(here, there), stderr=subprocess.DEVNULL
        )
        os.close(here)
        os.close(there)
        self.buffer, self.number, self.events, self.session = b"", 0, [], None
        (page,) = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters) -> dict:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while (answer := self.receive()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def receive(self) -> dict:
        while b"\0" not in self.buffer:
            assert select.select([self.read_end], [], [], 60)[0], "the browser says nothing for a minute"
            data = os.read(self.read_end, 1 << 16)
            assert data, "the browser has closed"
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + 30
        while self.js("document.readyState + location.protocol") != "completefile:" and time.monotonic() < deadline:
            time.sleep(0.05)

    def js(self, expression: str):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def point_at(self, selector: str) -> None:
        where = self.js(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView();"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=where[0], y=where[1])

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        os.close(self.write_end)
        os.close(self.read_end)


@pytest.fixture
def browser(tmp_path):
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium here to open the page in")
    chromium = Browser(program, tmp_path / "profile")
    yield chromium
    chromium.close()


SAID = "document.getElementById('said').textContent"


def test_the_page_in_a_browser(browser, trained, tmp_path):
    text = f"the cat {HOSTILE[2:]}"
    found = inspect(trained, text, "le chat vert.")
    (tmp_path / "page.html").write_text(html_page(found), encoding="utf-8")
    browser.open(tmp_path / "page.html")
    cross = found.of("cross")

    def said(row: int, weights: np.ndarray, kind: str = "cross") -> str:
        shares = sorted(zip(-weights[row], range(len(weights[row])), strict=True))[:1]
        return f"“{found.of(kind).rows[row]}” attends to {found.of(kind).columns[shares[0][1]]} "

    # What the sentence contains is text, not HTML; nothing went wrong, nothing was fetched.
    assert browser.js("document.title") == f"{text} – nmt inspect"
    assert browser.js("[...document.querySelectorAll('#columns button')].map(b => b.firstChild.data)") == cross.columns
    assert browser.js("document.querySelectorAll('script, b').length") == 2

    # The mouse: a target word shows what it attends to, a source word what attends to it.
    browser.point_at("#rows button:nth-child(2)")
    assert browser.js(SAID).startswith(said(1, cross.chosen(None, None)))
    shown = browser.js("[...document.querySelectorAll('#columns small')].map(s => s.textContent)")
    assert [figure for figure in shown if figure] == [f"{w:.0%}" for w in cross.chosen(None, None)[1] if w >= 0.005]
    browser.point_at("#columns button:nth-child(1)")
    assert browser.js(SAID).startswith("“the” is attended to by ")
    browser.point_at("#map tbody tr:nth-child(3) td:nth-child(2)")
    assert browser.js(SAID).startswith(said(2, cross.chosen(None, None)))

    # The keyboard: Tab through the three controls to the words, arrows among them.
    browser.js("document.activeElement.blur(); document.querySelector('h1').scrollIntoView()")
    browser.point_at("h1")
    where = []
    for _ in range(6):
        browser.press("Tab", 9)
        where.append(browser.js("document.activeElement.id || document.activeElement.parentElement.id"))
    assert where == ["kind", "layer", "head", "columns", "rows", ""], where  # "": the map, which can be scrolled
    browser.js("document.querySelector('#rows button[tabindex=\"0\"]').focus()")
    browser.press("Home", 36)
    browser.press("ArrowRight", 39)
    assert browser.js(SAID).startswith(said(1, cross.chosen(None, None)))
    browser.press("ArrowUp", 38)
    assert browser.js(SAID).startswith("“cat” is attended to by ")
    browser.press("ArrowDown", 40)
    browser.press("End", 35)
    assert browser.js(SAID).startswith(said(3, cross.chosen(None, None)))

    # The controls, by keys too: one step down in a list is layer 1, then head 1; then another kind.
    for control in ("layer", "head"):
        browser.js(f"document.getElementById('{control}').focus()")
        browser.press("ArrowDown", 40)
    assert browser.js(SAID).startswith(said(3, cross.chosen(1, 1)))
    assert browser.js("document.getElementById('look').textContent").startswith("This head: previous ")
    browser.js("document.getElementById('kind').focus()")
    browser.press("ArrowDown", 40)
    encoder = found.of("encoder")
    assert browser.js("document.getElementById('kind').value") == "encoder"
    assert browser.js(SAID).startswith(said(0, encoder.chosen(None, None), "encoder"))
    assert browser.js("document.getElementById('layer').options.length") == 4  # the mean, and three

    # Dark mode turns the page dark.
    ground = "getComputedStyle(document.body).backgroundColor"
    light = browser.js(ground)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert light == "rgb(255, 255, 255)" and browser.js(ground) == "rgb(20, 23, 28)"

    requested = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
    assert all(url.startswith(("file:", "data:")) for url in requested)
    assert not [e for e in browser.events if e["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
