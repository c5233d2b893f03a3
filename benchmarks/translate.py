"""How fast is `nmt translate`, start-up included? python benchmarks/translate.py RUN TEXT [REFERENCE]

    python benchmarks/translate.py runs/multi30k-en-de test_2016_flickr.en.gz test_2016_flickr.de.gz

TEXT is repeated to 10,000 lines. Three programs are compared, with beam 5 and on all cores: the torch engine; the
ctranslate2 engine with float32 and int8; and a bare script that only calls CTranslate2 on the same exported model, with
CTranslate2's patience of 1 and with nmt's patience of 1.5. They take turns, in reverse order in every second round.
CTranslate2 sorts by length itself. The script's batch size is the fastest of five, tried on a tenth of the lines.
Tokens are target pieces, end marks included. The tenth also shows how time and memory grow. Programs that do the same
search are also compared round by round: on a shared machine, the ratio of neighbors says more than a ratio of medians.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import sacrebleu
from record import Record, spread

from nmt_cli.parallel import cores
from nmt_cli.store.folders import open_model
from nmt_cli.text.lines import read_lines

LINES, ROUNDS = 10_000, 3
BATCHES = (("16", "examples"), ("32", "examples"), ("64", "examples"), ("512", "tokens"), ("1024", "tokens"))

BARE = """
import resource, sys, time
began = time.perf_counter()
import ctranslate2, sentencepiece
model, vocab, text, out, workers, patience, size, unit = sys.argv[1:]
sp = sentencepiece.SentencePieceProcessor(vocab)
translator = ctranslate2.Translator(model, inter_threads=int(workers), intra_threads=1)
lines = open(text, encoding="utf-8").read().split("\\n")[:-1]
source = [pieces + ["</s>"] for pieces in sp.encode(lines, out_type=str)]
batches = {"max_batch_size": int(size), "batch_type": unit}
found = translator.translate_batch(source, beam_size=5, patience=float(patience), max_input_length=0, **batches)
tokens = sum(len(result.hypotheses[0]) + 1 for result in found)
with open(out, "w", encoding="utf-8") as stream:
    stream.writelines(sp.decode(result.hypotheses[0]) + "\\n" for result in found)
seconds = time.perf_counter() - began
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"{len(lines)} lines; {tokens} tokens; {seconds:.2f} s in all; {memory:.0f} MB at most")
"""


def ours(run: Path, text: Path, out: Path, *options: str) -> tuple[float, int]:
    command = [sys.executable, "-m", "nmt_cli", "translate", str(run), str(text), "--stats", *options]
    with out.open("wb") as stream:
        done = subprocess.run(command, stdout=stream, stderr=subprocess.PIPE, text=True, check=True)
    return figures(done.stderr)


def bare(run: Path, text: Path, out: Path, patience: str, batch: tuple[str, str]) -> tuple[float, int]:
    folder = open_model(run)
    vocab = next(folder.path.glob("vocab/joint.model"), folder.path / "vocab/source.model")
    command = [sys.executable, "-c", BARE, folder.ctranslate2, vocab, text, out, str(cores()), patience, *batch]
    return figures(subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout)


def first_line(run: Path) -> float:
    """Seconds from the start of the process to its first line, while its input is still open."""
    command = [sys.executable, "-m", "nmt_cli", "translate", str(run)]
    began = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"A man.\n")
        process.stdin.flush()
        assert process.stdout.readline()
        seconds = time.perf_counter() - began
        process.stdin.close()
    return seconds


def figures(line: str) -> tuple[float, int]:
    seconds, memory = re.search(r"([\d.]+) s in all; ([\d,]+) MB", line).groups()  # type: ignore[union-attr]
    return float(seconds), int(memory.replace(",", ""))


def main() -> None:
    if len(sys.argv) < 3:
        print("name a run and a text: python benchmarks/translate.py RUN TEXT [REFERENCE]")
        return
    run, source = Path(sys.argv[1]), list(read_lines(Path(sys.argv[2])))
    references = list(read_lines(Path(sys.argv[3]))) if len(sys.argv) > 3 else None
    target = open_model(run).vocab.target
    with tempfile.TemporaryDirectory() as name, Record(f"translate-{run.name}") as record:
        folder, out = Path(name), Path(name) / "out"
        texts = {}
        for count in (LINES // 10, LINES):
            texts[count] = folder / f"{count}.txt"
            lines = (source * (count // len(source) + 1))[:count]
            texts[count].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        tried = {batch: [bare(run, texts[LINES // 10], out, "1", batch)[0] for _ in range(ROUNDS)] for batch in BATCHES}
        best = min(BATCHES, key=lambda batch: min(tried[batch]))
        for batch, elapsed in tried.items():
            print(
                f"bare script, {' '.join(batch):<12} {LINES // 10 / min(elapsed):>6.0f} lines/s"
                + " *" * (batch == best)
            )
        pairs = {"ctranslate2": "bare script, patience 1.5", "ctranslate2, patience 1": "bare script, patience 1"}
        systems = {
            "torch": lambda text: ours(run, text, out, "--engine", "torch"),
            "torch, patience 1": lambda text: ours(run, text, out, "--engine", "torch", "--patience", "1"),
            "ctranslate2, int8": lambda text: ours(run, text, out, "--type", "int8"),
            "ctranslate2": lambda text: ours(run, text, out, "--type", "float32"),
            "bare script, patience 1.5": lambda text: bare(run, text, out, "1.5", best),
            "ctranslate2, patience 1": lambda text: ours(run, text, out, "--type", "float32", "--patience", "1"),
            "bare script, patience 1": lambda text: bare(run, text, out, "1", best),
        }
        seconds: dict[str, list[float]] = {system: [] for system in systems}
        memory, bleu, tokens = {}, {}, {}
        for turn in range(ROUNDS):
            for system in list(systems)[:: -1 if turn % 2 else 1]:
                elapsed, memory[system] = systems[system](texts[LINES])
                seconds[system].append(elapsed)
                found = out.read_text(encoding="utf-8").split("\n")[:-1]
                assert len(found) == LINES
                tokens[system] = sum(len(ids) + 1 for ids in target.encode(found))
                if references:
                    bleu[system] = sacrebleu.corpus_bleu(found[: len(references)], [references]).score
        print(f"{LINES:,} lines, beam 5, {cores()} cores, start-up included; medians and best of {ROUNDS}")
        base = statistics.median(seconds["bare script, patience 1"])
        for system, times in seconds.items():
            middle = statistics.median(times)
            print(
                f"{system:<28} {LINES / middle:>6.0f} lines/s {tokens[system] / middle:>7,.0f} tokens/s "
                f"(best {tokens[system] / min(times):>7,.0f})  {base / middle:>5.2f}x of the bare script  "
                f"{memory[system]:>5,} MB  " + (f"BLEU {bleu[system]:.2f}" if bleu else "")
            )
            figures = {"ratio": base / middle, "peak_mb": memory[system], "bleu": bleu.get(system)}
            record.add(system, lines_per_second=LINES / middle, tokens_per_second=tokens[system] / middle, **figures)
        for one, other in pairs.items():
            ratios = spread(seconds[other], seconds[one])
            print("{}, of {}, by round: {ratio:.2f}x, {lowest:.2f} to {highest:.2f}".format(one, other, **ratios))
            record.add(f"{one}, of {other}", **ratios)
        for system in ("torch", "ctranslate2"):
            elapsed, peak = systems[system](texts[LINES // 10])
            grown = statistics.median(seconds[system]) / elapsed
            print(f"{system}: 10 times the lines take {grown:.1f} times as long, {memory[system]} MB after {peak} MB")
            record.add(f"{system}, ten times the lines", times_as_long=grown, mb=memory[system], mb_before=peak)
        waits = sorted(first_line(run) for _ in range(6))
        print(
            f"the first line, from the start of the process: {waits[0]:.2f} to {waits[-1]:.2f} s in {len(waits)} runs"
        )
        record.add("the first line", fastest_seconds=waits[0], slowest_seconds=waits[-1])


if __name__ == "__main__":
    main()
