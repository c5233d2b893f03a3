"""`nmt inspect` as a command: its views, its formats, and the options that it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import threading

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from support.checks import assert_user_error
from support.records import write_again
from support.tiny_run import ABOUT, SENTENCE

from nmt_cli.cli import app
from nmt_cli.errors import NmtError
from nmt_cli.inspect.attention import attention
from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.build import build_model
from nmt_cli.model.transformer import sinusoids
from nmt_cli.recipe.load import load_recipe
from nmt_cli.store.checkpoint import save_model
from nmt_cli.text.alignment import pharaoh

TARGET = ("--target", "le chat vert.")


def test_a_map_in_a_pipe_has_no_colors(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = run(SENTENCE, *TARGET)
    assert "\x1b" not in text and not re.search(" $", text, flags=re.M)
    shown = text.split("\n")
    assert shown[:4] == [f"source  {SENTENCE}", "target  le chat vert.", shown[2], ""]
    assert shown[4] == "cross-attention, mean of 2 layers, mean of 2 heads"
    assert shown[5] == "     I   like the green cat ."
    assert [line[:4].strip() for line in shown[6:10]] == ["le", "chat", "vert", "."]
    assert "Where the attention goes" in text and "of the attention goes to special tokens" in text


def test_options_of_attention_and_heads(run):
    assert "encoder self-attention, layer 3 of 3, head 2 of 2" in run(
        SENTENCE, "--kind", "encoder", "--layer", "3", "--head", "2"
    )
    drawn = run(SENTENCE, "--kind", "decoder", "--special", "--pieces", "--ascii", "--target", "le chat")
    assert "<s>" in drawn and "_le" in drawn and drawn.isascii()
    heads = run(SENTENCE, "--show", "heads")
    assert "the heads of layer 2 of 2 and their entropy" in heads
    assert re.search(r"1: \d\.\d\d bits +2: \d\.\d\d bits", heads)
    assert "the heads of layer 1 of 3" in run(SENTENCE, "--show", "heads", "--layer", "1", "--kind", "encoder")
    assert run("I like\u2028the \x07cat.").startswith("source       I like the cat.\n")


def test_square_brackets_are_shown_as_typed(run, tmp_path):
    sentence, target = "[bold] the [/x] cat", "[red]le chat[/red]"
    shown = run(sentence, "--target", target)
    assert shown.startswith(f"source  {sentence}\ntarget  {target}\n")
    (tmp_path / "[/x]").mkdir(parents=True)  # the folder "x]" in the folder "["
    run(SENTENCE, "--out", tmp_path / "[/x]/[bold].txt")
    assert (tmp_path / "[/x]/[bold].txt").read_text().startswith("source ")


def test_out_keeps_links_and_writes_into_pipes(run, tmp_path):
    """As --out of nmt translate: - is standard output, a link stays a link, and a pipe is written to."""
    shown = run(SENTENCE, *TARGET)
    assert run(SENTENCE, *TARGET, "--out", "-") == shown
    (tmp_path / "real.txt").touch()
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    run(SENTENCE, *TARGET, "--out", tmp_path / "link.txt", "--force")
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "real.txt").read_text() == shown
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    run(SENTENCE, *TARGET, "--out", tmp_path / "pipe")
    assert os.read(reader, 1 << 16).decode() == shown
    os.close(reader)


def test_align_counts_words_between_spaces(run, trained):
    result = attention(trained, SENTENCE, TARGET[1])
    assert result.source_words == SENTENCE.split() and result.target_words == ["le", "chat", "vert."]
    shown = run(SENTENCE, "--format", "align", *TARGET)
    assert shown == pharaoh(result.alignment()) + "\n" and len(shown.split()) == 3
    sharpest = result.word_weights[1, 1].argmax(1)
    expected = " ".join(f"{source}-{target}" for source, target in sorted((s, t) for t, s in enumerate(sharpest)))
    assert run(SENTENCE, "--format", "align", *TARGET, "--layer", "2", "--head", "2") == expected + "\n"


def test_json_holds_every_weight(run):
    table = json.loads(run(SENTENCE, "--format", "json", *TARGET))
    assert table["source"] == SENTENCE and table["target"] == "le chat vert." and table["target_given"] is True
    assert table["alignment"]["source"] == SENTENCE.split()
    assert {kind: part["shape"] for kind, part in table["attention"].items()} == {
        "cross": [2, 2, 4, 6], "encoder": [3, 2, 6, 6], "decoder": [2, 2, 4, 4]
    }  # fmt: skip
    cross = table["attention"]["cross"]
    assert np.array(cross["weights"]).shape == (2, 2, 4, 6)
    np.testing.assert_allclose(np.mean(cross["weights"], (0, 1)), cross["mean"], atol=1e-4)
    keys = {"layer", "head", "previous", "same", "next", "punctuation", "entropy"}
    assert [set(head) for head in cross["heads"]] == [keys] * 4


def test_beam_view(run):
    drawn = run(SENTENCE, "--show", "beam")
    assert drawn.startswith("beam search, beam size 3: ") and "■ best, p = " in drawn and "● <s>" in drawn
    assert run(SENTENCE, "--show", "beam", "--beam-size", "1").startswith("beam search, beam size 1: ")
    assert "* <s>" in run(SENTENCE, "--show", "beam", "--ascii")


def test_the_sentence_from_standard_input(run, monkeypatch, tmp_path):
    def piped(data: bytes) -> str:
        (tmp_path / "stdin").write_bytes(data)
        with (tmp_path / "stdin").open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            return run("-", "--format", "json", "--target", "le chat")

    assert json.loads(piped("\ufeffI like the cat.\r\n".encode()))["source"] == "I like the cat."
    for data, message in ((b"a\nb\n", "2 lines"), (b"", "is empty"), (b"caf\xe9\n", "standard input, line 1, byte 4")):
        with pytest.raises(NmtError, match=message):
            piped(data)


def test_a_model_alone_is_described(run, folder, tmp_path):
    shown = run()
    parts = (
        "transformer, en to fr",
        "70 joint bpe pieces",
        "MFLOPs per source piece",
        "target_embedding",
        "MB in fp32",
        "1,200 steps",
        "1.25e+12 FLOPs by weight",
        "3.00e+13 FLOPs by time",
        "BLEU 31.25",
        "1,200 steps, 1.5 epochs, 2:32, 227 tokens/s, 120 MB at most",  # two seconds of validation after the updates
        "training loss",
        "validation BLEU",
    )
    for part in parts:
        assert part in shown, part
    assert run("--show", "model") == shown
    assert run("--ascii").isascii()
    about = json.loads(run("--format", "json"))
    assert about["parameters"] == sum(about["parts"].values()) and about["trained"]["valid"]["bleu"] == 31.25
    assert about["history"][-1]["kind"] == "end" and about["flops_per_target_piece"] > 0
    shutil.copytree(folder / "run/model", tmp_path / "moved")  # without log.jsonl, the model knows the main facts
    moved = run(model=tmp_path / "moved")
    for part in ("1,200 steps, 34,567 target tokens", "2:30", "BLEU 31.25, chrF 50.50", "nrefs:1|tok:13a"):
        assert part in moved, part


def test_schedule_is_the_curve_of_the_dry_run(run, capsys):
    curve = run("--show", "schedule", "--set", "train.warmup=500", model="demo")
    assert "warm-up 500" in curve and "2.17e-03" in curve
    app(["train", "demo", "--dry-run", "--set", "train.warmup=500"], standalone_mode=False)
    dry_run = capsys.readouterr().out
    assert all(f"# {line}" in dry_run for line in curve.strip().split("\n"))
    assert run("--show", "schedule", "--ascii", model="demo").isascii()
    assert "learning rate" in run("--show", "schedule", model="run/model")


@pytest.mark.parametrize(("view", "what"), [("schedule", "learning rate"), ("positions", "width")])
def test_what_nmt_train_chooses_is_not_drawn(view, what, run, folder, tmp_path):
    (tmp_path / "plain.toml").write_text('[data]\nsource_lang = "en"\n')
    with pytest.raises(NmtError, match=f"nmt train chooses the {what}") as refused:
        run("--show", view, model=tmp_path / "plain.toml")
    assert f"nmt inspect RUN --show {view}" in refused.value.hint
    if view == "positions":
        assert "..., 64" in run("--show", view, "--set", "model.dim=64", model=tmp_path / "plain.toml")


def test_positions_by_formula(run, folder):
    drawn = run("--show", "positions", model="toy.toml").split("\n")
    assert drawn[0].startswith("position encoding: positions 1 to 40 down")
    assert drawn[1] == " 1 ▒▒▒▒▒▒▒▒████████"  # sin 0 and cos 0
    assert len([line for line in drawn if re.match(" ?[0-9]+ [ ░▒▓█]", line)]) == 80
    first = next(n for n, line in enumerate(drawn) if line.startswith("products P_t . P_s"))
    rows = [line[3:].ljust(40) for line in drawn[first + 1 : first + 41]]
    assert [row[n] for n, row in enumerate(rows)] == ["█"] * 40  # P_t . P_t is the largest
    assert all(rows[t][s] == rows[t - 1][s - 1] for t in range(1, 40) for s in range(1, 40))  # only the distance counts
    model = build_model(load_recipe(folder / "toy.toml").model, 4, 4)
    assert torch.equal(model.positions(7), sinusoids(7, 16))
    assert Seq2Seq().positions(3) is None


def test_learned_positions_come_from_the_trained_model(run, folder, tmp_path):
    recipe = load_recipe(folder / "toy.toml", {"model.positions": "learned"})
    model = build_model(recipe.model, 70, 70)
    with torch.no_grad():
        model.source_positions.weight.copy_(torch.arange(100)[:, None].expand(100, 16))
    save_model(tmp_path / "learned", model.state_dict(), recipe, folder / "vocab", ABOUT)
    drawn = run("--show", "positions", "--ascii", model=tmp_path / "learned/model").split("\n")
    assert drawn[1].rstrip() == " 1" and drawn[40] == "40 " + 16 * "@"
    with pytest.raises(NmtError, match="--set has no effect on positions that a run has learned"):
        run("--show", "positions", "--set", "model.heads=1", model=tmp_path / "learned/model")
    by_formula = run("--show", "positions", "--set", "model.positions=sinusoidal", model=tmp_path / "learned/model")
    assert by_formula == run("--show", "positions", model="toy.toml")


@pytest.mark.parametrize("model", ["demo", "data", "run/model", "toy.toml"])
def test_learned_positions_without_a_model_that_has_learned_them(run, folder, tmp_path, monkeypatch, model):
    """demo is a shipped recipe and the text of `nmt demo`, data are prepared data, the run has sinusoids."""
    for name in ("demo", "data"):
        (tmp_path / name).mkdir()
    shutil.copy(folder / "toy.toml", tmp_path)
    shutil.copy(folder / "toy.toml", tmp_path / "data/recipe.toml")
    shutil.copytree(folder / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NmtError, match="learns its positions in training, so only a trained model has them") as refused:
        run("--show", "positions", "--set", "model.positions=learned", model=model)
    assert refused.value.hint == "name a run that has learned them: nmt inspect RUN --show positions"


def test_a_family_without_positions(run):
    with pytest.raises(NmtError, match="has no position encoding"):
        run("--show", "positions", model="demo-rnn")
    with pytest.raises(NmtError, match=r'with model\.positions = "none" has no position encoding'):
        run("--show", "positions", "--set", "model.positions=none", model="demo")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([SENTENCE, "--layer", "3"], "there is no layer 3"),
        ([SENTENCE, "--layer", "0"], "there is no layer 0"),
        ([SENTENCE, "--head", "9"], "there is no head 9"),
        ([SENTENCE, "--head", "-1"], "there is no head -1"),
        ([SENTENCE, "--show", "heads", "--layer", "7", "--kind", "encoder"], "there is no layer 7"),
        ([SENTENCE, "--show", "heads", "--layer", "0"], "there is no layer 0"),
        ([SENTENCE, "--format", "align", "--head", "3"], "there is no head 3"),
        ([""], "the sentence is empty"),
        ([" \u200b\t"], "the sentence is empty"),
        ([SENTENCE, "--target", " "], "the target is empty"),
        (["cat " * 100], "the sentence has"),
        ([SENTENCE, "--target", "chat " * 100], "the target has"),
        (["caf\udce9"], "not UTF-8"),
        ([SENTENCE, "--target", "caf\udce9"], "not UTF-8"),
        ([SENTENCE, "--show", "heads", "--head", "1"], "--head does not apply to --show heads"),
        ([SENTENCE, "--show", "beam", "--layer", "1"], "--layer does not apply to --show beam"),
        ([SENTENCE, "--show", "beam", "--format", "json"], "--format json does not apply to --show beam"),
        ([SENTENCE, "--format", "json", "--kind", "cross"], "--kind does not apply to --format json"),
        ([SENTENCE, "--format", "html", "--ascii"], "--ascii does not apply to --format html"),
        ([SENTENCE, "--show", "schedule"], "TEXT does not apply to --show schedule"),
        ([SENTENCE, "--show", "model"], "TEXT does not apply to --show model"),
        ([SENTENCE, "--set", "train.lr=1"], "--set does not apply to --show attention"),
        ([SENTENCE, "--target", "chat", "--beam-size", "2"], "--beam-size has no effect on a given translation"),
        ([SENTENCE, "--force"], "--force needs --out"),
        (["--layer", "1"], "--layer does not apply to --show model"),
        (["--format", "align"], "--format align does not apply to --show model"),
        (["--show", "heads"], "--show heads needs a sentence"),
        (["--show", "beam"], "--show beam needs a sentence"),
        ([SENTENCE, "--format", "html", "--out", "nowhere/page.html"], "there is no folder nowhere"),
    ],
)
def test_mistakes_are_refused_with_a_hint(run, arguments, message):
    with pytest.raises(NmtError) as refused:
        run(*arguments)
    assert message in refused.value.message and refused.value.hint


def test_hints_name_what_exists(run):
    with pytest.raises(NmtError) as refused:
        run(SENTENCE, "--layer", "4", "--kind", "encoder")
    assert refused.value.hint == "the encoder self-attention of this model has layers 1 to 3"
    with pytest.raises(NmtError) as refused:
        run("--head", "1")
    assert refused.value.hint == "--head applies to --show attention, with a sentence as TEXT"


def test_a_mistake_through_the_real_command(nmt, folder):
    assert_user_error(nmt("inspect", folder / "run", "a", "--layer", "9"), "there is no layer 9", "layers 1 to 2")


def test_a_second_run_is_not_taken_for_a_sentence(nmt, folder, tmp_path):
    (tmp_path / "my run").mkdir()
    for second in (folder / "run", folder / "run/model", tmp_path / "my run"):
        hint = f"nmt compare {folder}/run {shlex.quote(str(second))} compares"
        (second / "recipe.toml").touch()
        assert_user_error(nmt("inspect", folder / "run", second), f"{second} is a folder of nmt, not a sentence", hint)


def test_a_narrow_terminal_in_color(folder, monkeypatch):
    shown = b""

    def read_all() -> None:
        nonlocal shown
        with contextlib.suppress(OSError):  # Linux reports a closed terminal as an error
            while data := os.read(keyboard, 4096):
                shown += data

    keyboard, screen = pytest.importorskip("pty").openpty()
    reader = threading.Thread(target=read_all)
    reader.start()
    # Truecolor, as in tests/terminal: rich caches the codes of a style for the color system that used it first.
    for name, value in {"TERM": "xterm", "COLORTERM": "truecolor", "COLUMNS": "40"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = "I like the green cat, the cat, the dog, 我喜欢绿色的猫 🐈."
    with os.fdopen(screen, "w", encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        app(["inspect", str(folder / "run"), text, "--target", "J'aime le chat 🐈."], standalone_mode=False)
    reader.join()
    os.close(keyboard)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r\n", "\n")
    assert b"\x1b[" in shown and b"48;2;" in shown  # background colors
    assert re.search(r"^1-\d+ of \d+\n", bare, flags=re.M) and max(cell_len(line) for line in bare.split("\n")) <= 40


@pytest.mark.parametrize("columns", ["60", "200"])
def test_description_shows_the_reliability_diagram(nmt, start_nmt, model, columns):
    shown = start_nmt("inspect", model, "--show", "model", env={"COLUMNS": columns}).wait()
    lines = shown.text.split("\nConfidence\n")[1].splitlines()
    about = json.loads(nmt("inspect", model, "--format", "json").text)["quality"]
    bins = [one for one in about["reliability"] if one["lines"]]
    assert [line.split()[:3] for line in lines[1 : 1 + len(bins)]] == [
        [f"{one['confidence']:.2f}", f"{one['good']:.2f}", f"{one['lines']:,}"] for one in bins
    ]
    assert f"calibration error {about['calibration_error']:.3f} on {about['lines']:,} validation lines" in shown.text
    assert max(map(cell_len, lines)) <= 60


def test_model_without_estimates_has_no_reliability_diagram(nmt, model, tmp_path):
    shutil.copytree(model / "model", tmp_path / "copy")
    (tmp_path / "copy/quality.json").unlink()
    write_again(tmp_path / "copy/about.json")
    assert "\nConfidence\n" not in nmt("inspect", "copy").text
    assert json.loads(nmt("inspect", "copy", "--format", "json").text)["quality"] is None
