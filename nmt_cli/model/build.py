"""From a recipe's [model] to a model: one class of config per family, one `match`."""

from __future__ import annotations

from nmt_cli import recipe
from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.transformer import Transformer


def build_model(config: recipe.Model, source_vocab: int, target_vocab: int) -> Seq2Seq:
    """A freshly initialised model; `with torch.device("meta")` around it, one without weights, to count or to fill."""
    match config:
        case recipe.Transformer():
            return Transformer(config, source_vocab, target_vocab)
    raise TypeError(f"no model for {type(config).__name__}")
