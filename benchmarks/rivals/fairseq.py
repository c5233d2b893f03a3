"""fairseq 0.12.2, the last version. It was written for older Pythons and for omegaconf 2.0."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from rivals.task import LINES_OF_A_BATCH, SAVE_EVERY, Rival, rates, report_every, run, run_for

FLAGS = (
    *("--arch transformer", "--encoder-layers 3", "--encoder-attention-heads 4", "--encoder-embed-dim 256"),
    *("--encoder-ffn-embed-dim 1024", "--encoder-normalize-before", "--decoder-layers 3", "--decoder-embed-dim 256"),
    *("--decoder-attention-heads 4", "--decoder-ffn-embed-dim 1024", "--decoder-normalize-before"),
    *("--share-all-embeddings", "--dropout 0.1", "--criterion label_smoothed_cross_entropy", "--label-smoothing 0.1"),
    *("--optimizer adam", "--adam-betas (0.9,0.98)", "--lr 1e-3", "--lr-scheduler inverse_sqrt"),
    *("--warmup-updates 400", "--source-lang en", "--target-lang de", "--cpu", "--disable-validation"),
    *("--no-epoch-checkpoints", "--keep-interval-updates 1", "--no-progress-bar", "--log-format simple"),
)


class Fairseq(Rival):
    name = "fairseq"
    packages = (
        *("fairseq==0.12.2", "hydra-core==1.3.2", "omegaconf==2.3.0", "antlr4-python3-runtime==4.9.3"),
        *("bitarray", "cffi", "pycparser", "regex", "tqdm"),
    )

    def mend(self, packages: Path) -> None:
        """Python 3.11 refuses `common: CommonConfig = CommonConfig()` in a dataclass: a factory makes the default."""
        for name in ("dataclass/configs.py", "models/transformer/transformer_config.py"):
            path = packages / "fairseq" / name
            text = re.sub(r"(?m)^( +\w+: (\w+) = )\2\(\)$", r"\1field(default_factory=\2)", path.read_text())
            path.write_text(re.sub(r"field\(default=(\w+)\(\)\)", r"field(default_factory=\1)", text))
        path = packages / "fairseq/dataclass/initialize.py"  # which reads these defaults
        old, new = "FairseqConfig.__dataclass_fields__[k].default\n", "getattr(FairseqConfig(), k)\n"
        path.write_text(path.read_text().replace(old, new))

    def configure(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        words = ["--source-lang", "en", "--target-lang", "de", "--joined-dictionary"]
        words += ["--trainpref", str(self.task.text("train")), "--validpref", str(self.task.text("valid"))]
        words += ["--destdir", str(self.folder / "data")]
        run([str(self.bin / "fairseq-preprocess"), *words])

    def config_lines(self) -> int:
        return len(FLAGS) + 11  # six flags of fairseq-preprocess; data, tokens, reports, model, saving

    def train(self, tokens: int, seconds: float, save: bool) -> list[float]:
        model = self.folder / "model"
        shutil.rmtree(model, ignore_errors=True)
        flags = [word for flag in FLAGS for word in flag.split()]
        flags += ["--max-tokens", str(tokens), "--log-interval", str(report_every(tokens)), "--save-dir", str(model)]
        flags += ["--save-interval-updates", str(SAVE_EVERY)] if save else ["--no-save"]
        printed = run_for([str(self.bin / "fairseq-train"), str(self.folder / "data"), *flags], seconds)
        return rates(r"wps=([\d.]+)", printed)

    def translate(self, source: Path, out: Path, beam: int) -> list[str]:
        words = [str(self.folder / "data"), "--path", str(self.folder / "model/checkpoint_last.pt"), "--cpu"]
        words += ["--source-lang", "en", "--target-lang", "de", "--beam", str(beam), "--max-len-b", "100"]
        words += ["--batch-size", str(LINES_OF_A_BATCH), "--buffer-size", "1000", "--input", str(source)]
        # Its lines "H-NUMBER score text" come in any order.
        script = 'set -o pipefail; out="$1"; shift; "$0" "$@" | sed -n s/^H-//p | sort -n | cut -f3 > "$out"'
        return ["bash", "-c", script, str(self.bin / "fairseq-interactive"), str(out), *words]

    def help(self) -> list[str]:
        return [str(self.bin / "fairseq-train"), "--help"]
