"""Marian 1.12, as the package pymarian: its Trainer and its Translator take the command lines of marian.

Each thread of --cpu-threads is a device. Without --sync-sgd, the devices update the weights one by one, with gradients
of older weights. With it, they share each batch: --mini-batch-words are source pieces of an update, not of a device.

The layers are post-norm, as Marian and HF MarianMT have them by default; those of the other programs are pre-norm.
Marian 1.12.42 does not translate a pre-norm model with the formula that it trains with (docs/import.md).
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

from rivals.task import LINES_OF_A_BATCH, SAVE_EVERY, Rival, rates, report_every, run_for, threads

FLAGS = (
    *("--type transformer", "--dim-emb 256", "--transformer-dim-ffn 1024", "--transformer-heads 4", "--enc-depth 3"),
    *("--dec-depth 3", "--transformer-postprocess dan", "--transformer-dropout 0.1", "--label-smoothing 0.1"),
    *("--tied-embeddings-all", "--learn-rate 0.001", "--lr-warmup 400", "--lr-decay-inv-sqrt 400"),
    *("--optimizer-params 0.9 0.98 1e-9", "--max-length 100", "--mini-batch-fit=false", "--cost-type ce-mean-words"),
    *("--clip-norm 0", "--overwrite", "--workspace 2000", "--sync-sgd"),
)
TRANSLATE = """
import sys, pymarian
source, out, options, vocab = sys.argv[1:]
translator = pymarian.Translator(options, vocabs=[vocab, vocab])
lines = open(source, encoding="utf-8").read().split("\\n")[:-1]
found = translator.translate(lines)
open(out, "w", encoding="utf-8").write("".join(f"{line}\\n" for line in found))
"""


class Marian(Rival):
    name = "Marian"
    packages = ("pymarian",)

    def configure(self) -> None:
        self.folder.mkdir(exist_ok=True)
        pieces = ["</s>", "<unk>", *self.task.pieces]
        lines = [f"{json.dumps(piece, ensure_ascii=False)}: {number}\n" for number, piece in enumerate(pieces)]
        (self.folder / "vocab.yml").write_text("".join(lines), encoding="utf-8")

    def config_lines(self) -> int:
        return len(FLAGS) + 5  # model, corpora, vocabularies, threads, tokens of a batch

    def train(self, tokens: int, seconds: float, save: bool) -> list[float]:
        for path in self.folder.glob("model.npz*"):
            path.unlink()
        train, vocab = self.task.text("train"), self.folder / "vocab.yml"
        files = f"--model {self.folder}/model.npz --train-sets {train}.en {train}.de --vocabs {vocab} {vocab}"
        report = f"--disp-freq {report_every(tokens)} --save-freq {SAVE_EVERY if save else 1000000}"
        options = f"{' '.join(FLAGS)} {files} {report} --mini-batch-words {tokens} --cpu-threads {threads()}"
        program = f"import pymarian; pymarian.Trainer({options!r}).train()"
        printed = run_for([str(self.bin / "python"), "-c", program], seconds, signal.SIGTERM)
        return rates(r"([\d.]+) words/s", printed)  # words are labels: target pieces

    def translate(self, source: Path, out: Path, beam: int) -> list[str]:
        batches = f"--mini-batch {LINES_OF_A_BATCH} --maxi-batch 16 --maxi-batch-sort src --cpu-threads {threads()}"
        search = f"-m {self.folder}/model.npz -b {beam} --normalize 1 {batches} --quiet --quiet-translation"
        vocab = str(self.folder / "vocab.yml")
        return [str(self.bin / "python"), "-c", TRANSLATE, str(source), str(out), search, vocab]

    def help(self) -> list[str]:
        return [str(self.bin / "pymarian"), "--help"]
