"""Train a small model with Marian on the demo corpus, import it, and compare the translations of both programs.

Marian is a program of its own, from the package pymarian (600 MB). Install it into its own environment:

    python -m venv /tmp/marian && /tmp/marian/bin/pip install pymarian
    python benchmarks/marian.py /tmp/marian/bin/python [--updates 400] [--lines 300]

The translations of pre-norm models differ: docs/import.md explains why.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import sentencepiece
from record import Record

from nmt_cli.demo import demo_corpus
from nmt_cli.importing.read import import_model
from nmt_cli.search.contract import Request, SearchOptions
from nmt_cli.search.torch_engine import TorchEngine, score
from nmt_cli.text.vocab import UNK, load_vocab

TRAIN = """
import pymarian
pymarian.Trainer("--type transformer --model model.npz --train-sets train.en train.fr --vocabs vocab.spm vocab.spm "
    "--dim-vocabs 800 800 --dim-emb 64 --transformer-dim-ffn 128 --transformer-heads 4 --enc-depth 2 --dec-depth 2 "
    "{shape} --cpu-threads 1 --mini-batch-words 1024 --workspace 512 --learn-rate 0.003 --lr-warmup 100 --seed 1 "
    "--after-batches {updates} --disp-freq 100 --save-freq 100000 --max-length 60 --overwrite").train()
"""
TRANSLATE = """
import pymarian
translator = pymarian.Translator("-m model.npz --cpu-threads 1 -b {beam} --normalize {alpha} --mini-batch 16 "
    "--maxi-batch 10 --max-length-factor 4 --quiet --quiet-translation --n-best", vocabs=["vocab.spm", "vocab.spm"])
lines = open("dev.en").read().split("\\n")[:-1]
best = {{}}
for row in "\\n".join(translator.translate(lines)).split("\\n"):
    number, text, score, *_ = row.split(" ||| ")
    best.setdefault(int(number), text + "\\t" + score.split("=")[1].strip())
print("\\n".join(best[number] for number in range(len(lines))))
"""
SHAPES = {
    "post": "--transformer-postprocess dan --transformer-ffn-activation swish --tied-embeddings-all",
    "pre": "--transformer-preprocess n --transformer-postprocess da --transformer-postprocess-top n "
    "--transformer-ffn-activation relu --tied-embeddings",
}


def write_corpus(folder: Path, lines: int) -> None:
    train, dev = demo_corpus("train"), demo_corpus("dev")[:lines]
    for side, language in enumerate(("en", "fr")):
        (folder / f"train.{language}").write_text("".join(f"{pair[side]}\n" for pair in train), encoding="utf-8")
        (folder / f"dev.{language}").write_text("".join(f"{pair[side]}\n" for pair in dev), encoding="utf-8")
    with (folder / "vocab.spm").open("wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([text for pair in train for text in pair]),
            model_writer=model,
            vocab_size=800,
            eos_id=0,
            unk_id=1,
            bos_id=-1,
            pad_id=-1,
            minloglevel=2,
        )


def marian(python: str, folder: Path, program: str) -> list[str]:
    """Run a program with pymarian in the folder, and return the lines that it prints."""
    done = subprocess.run([python, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\n").split("\n")


def compare(python: str, folder: Path, name: str, record: Record) -> None:
    import_model(folder, folder / "nmt", "en", "fr")
    vocab = load_vocab(folder / "nmt/vocab")
    lines = (folder / "dev.en").read_text(encoding="utf-8").split("\n")[:-1]
    requests = [Request(tuple(ids)) for ids in vocab.encode_source(lines)]
    engine = TorchEngine([folder / "nmt"], "cpu")
    for beam, alpha in ((1, 0.0), (4, 1.0)):
        theirs = [line.split("\t") for line in marian(python, folder, TRANSLATE.format(beam=beam, alpha=alpha))]
        options = SearchOptions(beam=beam, alpha=alpha, max_ratio=4, max_extra=0, forbidden=(UNK,))
        ours = [engine.translate([request], options)[0][0] for request in requests]
        texts = vocab.decode_target([list(best.ids) for best in ours])
        same = [n for n in range(len(lines)) if texts[n] == theirs[n][0]]
        # Marian forbids the unknown piece after the softmax, and its log p is that of the whole softmax.
        pairs = [(list(requests[n].source), list(ours[n].ids)) for n in same]
        scored = score(engine.models, pairs, SearchOptions(), engine.device)
        gap = max(abs(mine.logprob - float(theirs[n][1])) for mine, n in zip(scored, same, strict=True))
        print(f"{name}-norm, beam {beam}: {len(same)} of {len(lines)} translations are the same,", end=" ")
        print(f"and their log p differ by {gap:.1e} at most")
        record.add(f"{name}-norm, beam {beam}", lines=len(lines), same=len(same), largest_gap_of_logp=gap)
        for n in [n for n in range(len(lines)) if n not in same][:5]:
            print(f"  {theirs[n][1]} {theirs[n][0]}\n  {ours[n].logprob:.4f} {texts[n]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="the Python that has pymarian")
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--lines", type=int, default=300)
    arguments = parser.parse_args()
    with Record("marian") as record:
        for name, shape in SHAPES.items():
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary)
                write_corpus(folder, arguments.lines)
                marian(arguments.python, folder, TRAIN.format(shape=shape, updates=arguments.updates))
                compare(arguments.python, folder, name, record)


if __name__ == "__main__":
    main()
