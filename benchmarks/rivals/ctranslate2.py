"""CTranslate2 by itself, on the weights that nmt has trained and converted. It does not train."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from rivals.task import LINES_OF_A_BATCH, Rival, threads

TRANSLATE = """
import sys
import ctranslate2
model, source, out, beam, size, workers = sys.argv[1:]
translator = ctranslate2.Translator(model, inter_threads=int(workers), intra_threads=1)
lines = [line.split() + ["</s>"] for line in open(source, encoding="utf-8")]
found = translator.translate_batch(lines, beam_size=int(beam), max_batch_size=int(size), max_decoding_length=100)
with open(out, "w", encoding="utf-8") as stream:
    stream.writelines(" ".join(result.hypotheses[0]) + "\\n" for result in found)
"""


class CTranslate2(Rival):
    name = "CTranslate2"
    trains = has_help = False

    def install(self) -> str:
        return importlib.metadata.version("ctranslate2")

    def config_lines(self) -> int:
        return len(TRANSLATE.strip().split("\n"))

    def translate(self, source: Path, out: Path, beam: int) -> list[str]:
        model = self.task.folder / "nmt/model/ctranslate2"
        words = [str(model), str(source), str(out), str(beam), str(LINES_OF_A_BATCH), str(threads())]
        return [sys.executable, "-c", TRANSLATE, *words]
