"""BLEU of a trained run on a prepared split, by beam search. python benchmarks/quality.py RUN [valid|test] [beam]

RUN is the folder of a run whose prepared data are where its recipe says. Cased, detokenised, with its signature.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from nmt_cli.model.device import Compute
from nmt_cli.recipe.load import load_recipe
from nmt_cli.store.checkpoint import load_model
from nmt_cli.training.distributed import World
from nmt_cli.training.validation import Validation


def main() -> None:
    if len(sys.argv) < 2:
        print("name a run: python benchmarks/quality.py RUN [valid|test] [beam]")
        return
    run, split = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "test"
    trained = load_model(run)
    beam = int(sys.argv[3]) if len(sys.argv) > 3 else trained.recipe.translate.beam
    recipe = load_recipe(run / "recipe.toml")
    recipe = replace(recipe, train=replace(recipe.train, valid_beam=beam, valid_lines=0))
    lines = Validation.load(recipe, trained.vocab, split)
    assert lines is not None, f"no {split} in {recipe.prepared_folder}"
    compute = Compute(torch.device("cpu"), "fp32", "")
    start = time.perf_counter()
    measured = lines.measure(trained.model, recipe, compute, World())
    assert measured is not None
    loss, scores = measured
    seconds = time.perf_counter() - start
    print(
        f"{run} {split}: BLEU {scores.bleu:.2f}  chrF {scores.chrf:.2f}  loss {loss:.3f}  beam {beam}, "
        f"{len(lines.sources):,} lines, {seconds:.0f} s  {scores.signature}"
    )


if __name__ == "__main__":
    main()
