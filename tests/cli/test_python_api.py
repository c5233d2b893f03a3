"""The Python API: what it costs to import, what it exports, and that the examples of the documents run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.small_language import sentences

import nmt_cli

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/python.md", "docs/score.md", "docs/production.md", "docs/wmt14.md")


def test_import_loads_nothing_heavy():
    script = "import sys, nmt_cli; print(sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for heavy in ("torch", "ctranslate2", "numpy", "sentencepiece", "sacrebleu", "typer", "rich"):
        assert f"'{heavy}'" not in done.stdout


def test_every_exported_name_exists():
    for name in nmt_cli.__all__:
        assert getattr(nmt_cli, name) is not None
    assert dir(nmt_cli) == sorted(nmt_cli.__all__)
    with pytest.raises(AttributeError, match="no attribute 'translate_all'"):
        _ = nmt_cli.translate_all


def test_functions_stay_functions_after_their_rooms_are_imported():
    import nmt_cli.scoring.metrics
    import nmt_cli.training.session

    assert all(callable(getattr(nmt_cli, name)) for name in ("train", "score", "prepare", "load", "attention"))


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("train", {"out": "a", "set": {"train.out": "b"}}, "--out and --set train.out"),
        ("train", {"minutes": 1, "set": {"train": {"minutes": 2}}}, "--minutes and --set train.minutes"),
        ("prepare", {"out": "a", "set": {"data.prepared": "b"}}, "--out and --set data.prepared"),
        ("prepare", {"vocab_size": 60, "set": {"vocab": {"size": 50}}}, "--vocab-size and --set vocab.size"),
    ],
)
def test_an_argument_and_a_setting_of_the_same_key_are_refused(tmp_path, monkeypatch, function, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(nmt_cli.NmtError, match=f"^{message} are both given$"):
        getattr(nmt_cli, function)("demo", **arguments)
    assert not list(tmp_path.iterdir())


def test_the_examples_of_the_documents_run(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("nmt_cli.training.precision._claimed_precision", lambda device: None)  # a trial takes seconds
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/demo").symlink_to(model)
    (tmp_path / "demo").mkdir()
    for name, size in (("train", 400), ("dev", 20), ("test", 20)):
        pairs = sentences(size, seed=size + len(name))
        for side, language in enumerate(("en", "fr")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            (tmp_path / f"demo/{name}.{language}").write_text(text, encoding="utf-8")
    for page in (ROOT / name for name in PAGES):
        lines = ["这是一只猫。", "那是一只狗。"]
        names = {"a_lines": lines, "b_lines": lines[::-1], "lines": lines, "source_lines": ["a", "b"]}  # of score.md
        for example in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S):
            exec(compile(example, str(page), "exec"), names)
    printed = capsys.readouterr().out
    assert "Le chat dort." in printed and "BLEU" in printed and "runs/small" in printed
    assert (tmp_path / "runs/small/model/model.safetensors").is_file()
