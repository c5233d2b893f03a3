"""Small models of every family, and the helpers that tests of models share."""

import dataclasses
import itertools

import pytest
import torch
from torch import nn

from nmt_cli.model.attention import SelfAttention
from nmt_cli.model.base import Seq2Seq
from nmt_cli.model.build import build_model
from nmt_cli.model.transformer import DecoderLayer
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import BOS, EOS, PAD

VOCAB = 40


def randomized(config: recipe.Model, seed: int = 0) -> Seq2Seq:
    """A model in which every parameter is random: biases of zero and norms of one would hide mistakes."""
    torch.manual_seed(seed)
    model = build_model(config, VOCAB, VOCAB).eval()
    mean, std = (0.05, 0.2) if isinstance(config, recipe.Conv) else (0.1, 0.4)  # Conv has no norms: activations grow
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=mean, std=std)
    return model


def small_transformer(**options) -> recipe.Transformer:
    sizes = {"dim": 16, "heads": 4, "ff": 24, "encoder_layers": 2, "decoder_layers": 3, "max_positions": 64}
    return recipe.Transformer(**{**sizes, **options})


TRANSFORMER_OPTIONS = [
    dict(zip(("norm", "positions", "tie", "activation"), values, strict=True))
    for values in [
        *itertools.product(["pre", "post"], ["sinusoidal", "learned"], ["all"], ["relu"]),
        ("pre", "sinusoidal", "target", "gelu"),
        ("post", "learned", "none", "swish"),
        ("pre", "learned", "none", "gelu"),
    ]
]
TRANSFORMER_OPTIONS += [
    {"norm": "pre", "positions": "none", "tie": "all", "activation": "relu"},
    {"norm": "post", "positions": "sinusoidal", "tie": "all", "activation": "relu", "positions_join": "concat"},
    {"norm": "pre", "positions": "learned", "tie": "target", "activation": "relu", "positions_join": "concat"},
]

TRANSFORMERS = {"-".join(options.values()): small_transformer(**options) for options in TRANSFORMER_OPTIONS}
MIXTURES = {"experts": small_transformer(experts=4), "experts-post": small_transformer(norm="post", experts=3)}
TRANSFORMERS["like-mbart"] = small_transformer(
    positions="timing", first_position=2, scale_embeddings=False, embedding_norm=True, output_bias=True
)

RNNS = {
    "rnn-bottleneck": recipe.Rnn(cell="rnn", attention="none", directions="forward"),
    "gru-bottleneck-every": recipe.Rnn(cell="gru", attention="none", context="every", tie="none"),
    "lstm-bottleneck": recipe.Rnn(attention="none", encoder_layers=2, decoder_layers=2),
    "cosine": recipe.Rnn(cell="gru", attention="cosine"),
    "additive": recipe.Rnn(attention="additive", tie="target"),
    "location": recipe.Rnn(cell="rnn", attention="location", location_size=6),
    "general": recipe.Rnn(attention="general", decoder_layers=2, input_feeding=True),
    "dot": recipe.Rnn(attention="dot", context="every", directions="forward", encoder_layers=2),
    "scaled-dot": recipe.Rnn(cell="rnn", attention="scaled_dot", context="every", input_feeding=True),
    "mlp": recipe.Rnn(cell="gru", attention="mlp", input_feeding=True),
    "local-m": recipe.Rnn(attention="general", span="monotonic", radius=1),
    "local-m-location": recipe.Rnn(attention="location", span="monotonic", radius=1, location_size=3),
    "local-p": recipe.Rnn(cell="gru", attention="additive", span="predictive", radius=2, input_feeding=True),
    "heads": recipe.Rnn(attention="scaled_dot", projections=True, heads=4),
    "heads-additive": recipe.Rnn(attention="additive", projections=True, heads=2, span="predictive", radius=3),
    "heads-mlp": recipe.Rnn(attention="mlp", projections=True, heads=2),
    "projections": recipe.Rnn(attention="dot", projections=True),
    "plain-cosine": recipe.Rnn(attention="plain_cosine", projections=True, heads=2),
    "mean": recipe.Rnn(cell="gru", attention="none", context="mean"),
    "mean-attention": recipe.Rnn(attention="dot", order="before", context="mean", encoder_layers=2),
    "hard": recipe.Rnn(attention="general", hard=True, projections=True, heads=2),
    "hard-local-p": recipe.Rnn(cell="rnn", attention="dot", hard=True, span="predictive", radius=2, order="before"),
    "before": recipe.Rnn(cell="gru", attention="additive", order="before"),
    "before-every": recipe.Rnn(attention="location", order="before", context="every", decoder_layers=2, tie="none"),
    "before-local-m": recipe.Rnn(cell="rnn", attention="mlp", order="before", span="monotonic", radius=1),
    "before-local-p": recipe.Rnn(attention="general", order="before", span="predictive", radius=2, decoder_layers=2),
    "bottom": recipe.Rnn(cell="gru", attention="general", order="bottom", context="every", decoder_layers=2),
    "before-to-all": recipe.Rnn(
        attention="dot", order="before", context_to_all=True, decoder_layers=3, skip="residual"
    ),
    "gnmt": recipe.Rnn(
        directions="both_first",
        skip="residual",
        encoder_layers=4,
        decoder_layers=3,
        order="bottom",
        context_to_all=True,
    ),
    "deep-att": recipe.Rnn(
        directions="interleaved",
        skip="fast_forward",
        encoder_layers=3,
        decoder_layers=3,
        order="bottom",
    ),
    "interleaved-gru": recipe.Rnn(
        cell="gru", directions="interleaved", encoder_layers=2, attention="dot", context="mean"
    ),
    "fast-forward": recipe.Rnn(
        cell="rnn",
        skip="fast_forward",
        encoder_layers=2,
        decoder_layers=2,
        attention="mlp",
        order="before",
        context="mean",
        context_to_all=True,
    ),
    "before-heads": recipe.Rnn(attention="scaled_dot", order="before", projections=True, heads=4),
    "rnn-experts": recipe.Rnn(attention="general", experts=3, experts_ff=8, encoder_layers=2, decoder_layers=2),
    "rnn-experts-before": recipe.Rnn(
        cell="gru", order="before", experts=3, experts_ff=8, encoder_layers=3, decoder_layers=2
    ),
}
RNNS = {name: dataclasses.replace(config, dim=16) for name, config in RNNS.items()}

CONVS = {
    "conv": recipe.Conv("conv", 16, 3, 2, 3, 64),
    "conv-5": recipe.Conv("conv", 16, 5, 3, 1, 64, tie="target"),
    "conv-1": recipe.Conv("conv", 16, 1, 1, 2, 64, tie="none"),
}

BYTENETS = {
    "bytenet": recipe.ByteNet("bytenet", 16, 3, 3, 3, cycle=2),
    "bytenet-5": recipe.ByteNet("bytenet", 16, 5, 1, 2, 5, 1.0, 3, tie="none"),
}

DECODERS = {
    "decoder": recipe.DecoderOnly("decoder", 16, 4, 24, 3, max_positions=64),
    "decoder-post": recipe.DecoderOnly("decoder", 16, 2, 24, 2, "gelu", "post", "learned", 64, "target"),
    "decoder-one": recipe.DecoderOnly("decoder", 16, 4, 24, 1, max_positions=64, tie="none"),
    "decoder-bag": recipe.DecoderOnly("decoder", 16, 4, 24, 2, positions="none", max_positions=64),
    "decoder-concat": recipe.DecoderOnly("decoder", 16, 4, 24, 2, positions_join="concat", max_positions=64),
}

EVERY_MODEL = TRANSFORMERS | MIXTURES | RNNS | CONVS | BYTENETS | DECODERS

# One model of each family but the Transformer.
OTHER_FAMILIES = {
    "rnn": RNNS["additive"],
    "conv": CONVS["conv"],
    "bytenet": BYTENETS["bytenet"],
    "decoder": DECODERS["decoder"],
}


def joined(model: Seq2Seq, words: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The input of the first layer. The product of a matrix and a concatenation is the sum of two products."""
    if model.join is None:
        return words + positions
    of_words, of_positions = model.join.weight.chunk(2, 1)
    return words @ of_words.T + positions @ of_positions.T + model.join.bias


def parametrized(configs: dict[str, recipe.Model]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("config", configs.values(), ids=configs.keys())


def sentences(lengths, width=0, end=(EOS,), seed=1) -> torch.Tensor:
    """(B,width): random ids that end with `end`, padded."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.full((len(lengths), max(*lengths, width)), PAD)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.randint(4, VOCAB, (length,), generator=generator)
        row[length - len(end) : length] = torch.tensor(end)
    return rows


SRC = sentences([5, 9, 7, 2])
TGT = sentences([6, 3, 8, 4], end=(), seed=2)
TGT[:, 0] = BOS


def unpadded(batch: torch.Tensor) -> list[torch.Tensor]:
    return [row[row != PAD] for row in batch]


def assert_close(actual, expected, tolerance=1e-5):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@torch.no_grad()
def copy_attention(theirs: nn.MultiheadAttention, ours):
    """Copy the weights of our attention into PyTorch's."""
    parts = [ours.qkv] if isinstance(ours, SelfAttention) else [ours.query, ours.keys_values]
    theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
    theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def copy_layer(theirs, ours):
    """Copy the weights of our Transformer layer into PyTorch's."""
    copy_attention(theirs.self_attn, ours.attention)
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
    residuals = [ours.around_attention, ours.around_feed_forward]
    if isinstance(ours, DecoderLayer):
        copy_attention(theirs.multihead_attn, ours.cross)
        residuals.insert(1, ours.around_cross)
    for i, residual in enumerate(residuals):
        getattr(theirs, f"norm{i + 1}").load_state_dict(residual.norm.state_dict())
