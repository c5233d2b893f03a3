"""BLEU and chrF of a trained run on a prepared split, by beam search.

    python benchmarks/quality.py RUN [valid|test] [BEAM]

RUN is the folder of a run. The data must still be in the folder that its recipe names. The scores are case-sensitive,
on detokenized text, and are printed with their signature.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
from record import Record

from nmt_cli.model.device import Compute
from nmt_cli.recipe.load import load_recipe
from nmt_cli.store.checkpoint import load_model
from nmt_cli.training.distributed import World
from nmt_cli.training.validation import Validation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("split", nargs="?", choices=("valid", "test"), default="test")
    parser.add_argument("beam", nargs="?", type=int, help="default: the beam of the run's recipe")
    args = parser.parse_args()
    with Record(f"quality-{args.run.name}", load_recipe(args.run / "recipe.toml")) as record:
        measure(args, record)


def measure(args: argparse.Namespace, record: Record) -> None:
    trained = load_model(args.run)
    beam = args.beam or trained.recipe.translate.beam
    recipe = load_recipe(args.run / "recipe.toml")
    recipe = replace(recipe, train=replace(recipe.train, valid_beam=beam, valid_lines=0))
    lines = Validation.load(recipe, trained.vocab, args.split)
    if lines is None:
        raise SystemExit(f"{recipe.prepared_folder} has no {args.split} lines")
    compute = Compute(torch.device("cpu"), "fp32", "")
    start = time.perf_counter()
    measured = lines.measure(trained.model, recipe, compute, World())
    assert measured is not None
    loss, scores = measured
    seconds = time.perf_counter() - start
    print(
        f"{args.run} {args.split}: BLEU {scores.bleu:.2f}  chrF {scores.chrf:.2f}  loss {loss:.3f}  beam {beam}, "
        f"{len(lines.sources):,} lines, {seconds:.0f} s  {scores.signature}"
    )
    figures = {"bleu": scores.bleu, "chrf": scores.chrf, "loss": loss, "beam": beam, "lines": len(lines.sources)}
    record.add(f"{args.run.name}, {args.split}", **figures, signature=scores.signature)


if __name__ == "__main__":
    main()
