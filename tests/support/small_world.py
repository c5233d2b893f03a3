"""A folder with small corpora, data and runs under the names that the documents use, to run their commands in."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from nmt_cli.recipe.load import load_recipe, shipped_recipes
from nmt_cli.recipe.schema import Transformer
from support.checks import Result
from support.documents import ROOT, Command
from support.small_language import sentences
from support.toy_runs import sets

# What is added to a documented command, to make it short.
_SHORT_OUTPUT = sets("translate.beam=1", "translate.max_ratio=0.1", "translate.max_extra=2")
_SHORT_TRAINING = sets("train.steps=2", "train.valid_lines=2", "train.processes=1", "train.precision=fp32")
FEW_UPDATES = [*_SHORT_TRAINING, *_SHORT_OUTPUT]
SMALL = sets("model.dim=16", "train.batch_tokens=128")
ONE_LAYER = sets("model.encoder_layers=1", "model.decoder_layers=1")
SMALL_VOCABULARY = sets("vocab.size=80")
PLACEHOLDERS = {"MODEL": "runs/demo", "RUN": "runs/demo", "RECIPE": "demo"}
CORPORA = {
    "demo": ("train", "dev", "test"),
    "multi30k": ("train", "val", "test_2016_flickr"),
    "wmt14-en-de": ("train", "newstest2013", "newstest2014"),
}
LINES = 16  # of each text


class SmallWorld:
    def __init__(self, folder: Path, nmt_in: Callable[..., Result]) -> None:
        self.folder, self.nmt_in = folder, nmt_in

    def build(self, commands: list[Command]) -> None:
        """Write the texts that the commands name, and train the runs that they name for two updates."""
        name = re.compile(r"[\w./-]+\.(?:en|de|fr|zh|align)(?:\.gz)?(?= |$)")
        texts = {found for command in commands for found in name.findall(command.text)}
        texts |= {f"demo/{part}.{language}" for part in CORPORA["demo"] for language in ("en", "fr")}
        texts |= {f"multi30k/{part}.{language}.gz" for part in CORPORA["multi30k"] for language in ("en", "de")}
        texts |= {f"wmt14-en-de/{part}.{language}" for part in CORPORA["wmt14-en-de"] for language in ("en", "de")}
        for text in texts:
            self._write_text(text)
        (self.folder / "mine.toml").write_text('# A rung.\nextends = "demo-rnn"\n')
        files = ("--source", "a.en", "--target", "a.de", "--test-source", "test.en", "--test-target", "test.de")
        self._nmt("prepare", *files, "--out", "data/base", *SMALL_VOCABULARY)
        self._nmt("train", "data/base", "--out", "runs/base", *FEW_UPDATES, *SMALL, *sets("model.norm=post"))
        for run in ("old", "a", "b", "en-de"):
            shutil.copytree(self.folder / "runs/base", self.folder / "runs" / run, symlinks=True)
        language_model = sets("model.family=decoder", "train.source_loss=1")
        self._nmt("train", "data/base", "--out", "runs/lm", *FEW_UPDATES, *SMALL, *language_model)
        self._nmt("export", "runs/base", "--to", "hf", "--out", "opus-mt-en-de")

    def _write_text(self, name: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part, language = path.name.removesuffix(".gz").rsplit(".", 1)
        pairs = sentences(LINES, seed=sum(map(ord, part)))
        lines = ["0-0 1-1" if language == "align" else pair[language != "en"] for pair in pairs]
        text = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    def set_demo(self, model: Path) -> None:
        """Make runs/demo a copy of a model that was trained well: some commands need its confidence."""
        shutil.rmtree(self.folder / "runs/demo", ignore_errors=True)
        shutil.copytree(model, self.folder / "runs/demo", symlinks=True)

    def run(self, command: Command) -> None:
        """Run a command as it is documented, with further options that make it short."""
        for part in command.text.split(" && "):
            output = b""
            for stage in part.split(" | "):
                stage, _, written = stage.partition(" > ")
                stage, _, read = stage.partition(" < ")
                output = (self.folder / read.strip()).read_bytes() if read else output
                output = self._run_program(stage, output)
                if written:
                    (self.folder / written.strip()).write_bytes(output)

    def _run_program(self, stage: str, stdin: bytes) -> bytes:
        program, *words = (PLACEHOLDERS.get(word, word) for word in shlex.split(stage))
        while "=" in program:  # a variable of the environment
            program, *words = words
        if program == "nmt":
            if "--dry-run" not in words:
                self._remove_result(words)
            return self._nmt(*words, *_more_options(words), stdin=stdin)
        if program == "torchrun":
            self._remove_result(words[words.index("nmt_cli") + 1 :])
            words += _more_options(words[words.index("nmt_cli") + 1 :])
            program, words = sys.executable, ["-m", "torch.distributed.run", *words]
        else:
            assert program in ("cat", "echo", "cp", "cut"), f"write <!-- not run: REASON --> before its block: {stage}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([program, *words], input=stdin, capture_output=True, cwd=self.folder, env=environment)
        assert done.returncode == 0, f"{stage}\n{done.stderr.decode()}"
        return done.stdout

    def _nmt(self, *words: str, stdin: bytes = b"") -> bytes:
        result = self.nmt_in(self.folder, *words, stdin=stdin)
        assert result.code == 0, f"nmt {shlex.join(words)}\n{result.err}"
        return result.out

    def _remove_result(self, words: list[str]) -> None:
        """Remove what the folder already has under the name of the command's result."""
        if option := next((option for option in ("--out", "--html") if option in words), ""):
            result = self.folder / words[words.index(option) + 1]
        elif words[0] in ("train", "prepare"):
            result = self.folder / {"train": "runs", "prepare": "data"}[words[0]] / words[1]
        else:
            return
        if result.is_dir():
            shutil.rmtree(result)
        else:
            result.unlink(missing_ok=True)


def _trains_transformer(words: list[str]) -> bool:
    """Whether `nmt train WORDS` trains a transformer. Some other families need more than one layer."""
    if any(word.startswith("model.family=") for word in words):
        return False
    shipped = shipped_recipes()
    return words[0] not in shipped or isinstance(load_recipe(shipped[words[0]]).model, Transformer)


def _more_options(words: list[str]) -> list[str]:
    command, *rest = words
    by_name = [] if rest and rest[0].startswith(("-", "data/", "runs/")) else SMALL_VOCABULARY
    match command:
        case "demo":
            return ["whole-demo"]  # the folder demo holds a smaller corpus
        case "prepare":
            return by_name
        case "finetune":
            return FEW_UPDATES
        case "train" if "--from" in rest:
            return FEW_UPDATES
        case "train":
            return [*FEW_UPDATES, *SMALL, *(ONE_LAYER if _trains_transformer(rest) else []), *by_name]
        case "ladder":
            return [*([] if "--rungs" in rest else ["--rungs", "demo"]), *FEW_UPDATES, *SMALL, *by_name]
    return []
