"""The Transformer against PyTorch's Transformer and against the formulas of the paper."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.models import (
    SRC,
    TGT,
    TRANSFORMER_OPTIONS,
    VOCAB,
    assert_close,
    copy_attention,
    copy_layer,
    joined,
    randomized,
    sentences,
    small_transformer,
)
from torch import nn

from nmt_cli.errors import NmtError
from nmt_cli.model.attention import CrossAttention, SelfAttention
from nmt_cli.model.base import parameters_by_part
from nmt_cli.model.build import build_model
from nmt_cli.model.transformer import DecoderLayer, EncoderLayer, Sinusoids, Transformer, sinusoids
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import PAD

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}
every_option = pytest.mark.parametrize("options", TRANSFORMER_OPTIONS, ids=lambda options: "-".join(options.values()))


def build(seed: int = 0, **options) -> Transformer:
    return randomized(small_transformer(**options), seed)


def torch_stack(model: Transformer, options) -> tuple[nn.Module, nn.Module]:
    """PyTorch's encoder and decoder with our weights. In eval mode they would take another path."""
    arguments = {
        "d_model": 16,
        "nhead": 4,
        "dim_feedforward": 24,
        "dropout": 0.0,
        "activation": ACTIVATIONS[options["activation"]],
        "norm_first": options["norm"] == "pre",
        "batch_first": True,
    }
    pre = options["norm"] == "pre"
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**arguments), 2, nn.LayerNorm(16) if pre else None, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**arguments), 3, nn.LayerNorm(16) if pre else None)
    for stack, layers, norm in (
        (encoder, model.encoder, model.encoder_norm),
        (decoder, model.decoder, model.decoder_norm),
    ):
        for theirs, ours in zip(stack.layers, layers, strict=True):
            copy_layer(theirs, ours)
        if pre:
            stack.norm.load_state_dict(norm.state_dict())
    return encoder, decoder


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned"])
def test_only_without_positions_the_encoder_is_permutation_equivariant(positions):
    """If the words of the source change places, the memory changes places with them, and the target stays the same."""
    model, order = build(positions=positions), torch.randperm(9, generator=torch.Generator().manual_seed(2))
    src = SRC[1:2]
    with torch.no_grad():
        memory, moved = model.encode(src), model.encode(src[:, order])
        same = all(torch.allclose(moved[name], memory[name][:, order], atol=1e-5) for name in memory)
        logits = torch.allclose(model(src, TGT[1:2]), model(src[:, order], TGT[1:2]), atol=1e-5)
    assert same == logits == (positions == "none")


@every_option
def test_whole_model_equals_torch_transformer(options):
    model = build(**options)
    encoder, decoder = torch_stack(model, options)
    target = model.target_embedding.weight
    source = target if options["tie"] == "all" else model.source_embedding.weight
    output = model.output.weight if options["tie"] == "none" else target

    def embedded(ids, table, learned):
        tables = {"sinusoidal": sinusoids(64, 16), "none": torch.zeros(64, 16)}
        positions = learned.weight if options["positions"] == "learned" else tables[options["positions"]]
        return joined(model, table[ids] * 4.0, positions[: ids.size(1)])

    with torch.no_grad():
        memory = encoder(embedded(SRC, source, model.source_positions), src_key_padding_mask=SRC == PAD)
        expected = decoder(
            embedded(TGT, target, model.target_positions),
            memory,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(TGT.size(1)),
            memory_key_padding_mask=SRC == PAD,
        )
        logits = model(SRC, TGT)
    assert_close(logits[TGT != PAD], (expected @ output.T)[TGT != PAD], 1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_layers_equal_torch_layers(norm, activation):
    options = {"norm": norm, "activation": activation}
    model = build(**options)
    encoder, decoder = torch_stack(model, options)
    x, y = torch.randn(3, 7, 16), torch.randn(3, 5, 16)
    with torch.no_grad():
        ours: EncoderLayer = model.encoder[1]
        assert_close(ours(x, None, False)[0], encoder.layers[1](x))
        causal = nn.Transformer.generate_square_subsequent_mask(5)
        layer: DecoderLayer = model.decoder[2]
        actual = layer(y, layer.cross.keys_values(x), None, None, None, False)[0]
        assert_close(actual, decoder.layers[2](y, x, tgt_mask=causal))


def test_gradients_equal_torch_gradients():
    """The gradients of our fused projections equal the gradient of PyTorch's in_proj_weight."""
    ours, theirs = SelfAttention(16, 4, 0.0), nn.MultiheadAttention(16, 4, batch_first=True)
    copy_attention(theirs, ours)
    x = torch.randn(2, 5, 16)
    ours(x, None, False)[0].square().sum().backward()
    theirs(x, x, x)[0].square().sum().backward()
    assert_close(ours.qkv.weight.grad, theirs.in_proj_weight.grad)
    ours, y = CrossAttention(16, 4, 0.0), torch.randn(2, 3, 16)
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    copy_attention(theirs, ours)
    ours(y, ours.keys_values(x), None, False)[0].square().sum().backward()
    theirs(y, x, x)[0].square().sum().backward()
    assert_close(torch.cat([ours.query.weight.grad, ours.keys_values.weight.grad]), theirs.in_proj_weight.grad)


@pytest.mark.parametrize("dim", [2, 16, 512])
def test_sinusoids_follow_the_paper(dim):
    expected = np.zeros((70, dim))
    for position in range(70):
        for i in range(dim // 2):
            angle = position / 10000 ** (2 * i / dim)
            expected[position, 2 * i : 2 * i + 2] = math.sin(angle), math.cos(angle)
    np.testing.assert_allclose(sinusoids(70, dim).numpy(), expected, atol=1e-6)


def transformer_parameters(d, ff, encoder, decoder, vocabularies):
    """The sum of matrices, biases, norms (pre-norm, with a final norm on each side) and embeddings."""
    attention, feed_forward, norm = 4 * (d * d + d), d * ff + ff + ff * d + d, 2 * d
    layers = encoder * (attention + feed_forward + 2 * norm) + decoder * (2 * attention + feed_forward + 3 * norm)
    return layers + 2 * norm + vocabularies * d


@pytest.mark.parametrize(
    ("config", "vocab", "expected"),
    [
        (recipe.Transformer(), 8000, transformer_parameters(256, 1024, 3, 3, 8000)),
        (recipe.Transformer(tie="target"), 8000, transformer_parameters(256, 1024, 3, 3, 16000)),
        (recipe.Transformer(tie="none"), 8000, transformer_parameters(256, 1024, 3, 3, 24000)),
        (recipe.Transformer(norm="post"), 8000, transformer_parameters(256, 1024, 3, 3, 8000) - 4 * 256),
        (recipe.Transformer(positions="learned"), 8000, transformer_parameters(256, 1024, 3, 3, 8000 + 2 * 1024)),
        # The paper's table 3 says 65 million for base and 213 for big, 37,000 joint pieces.
        (recipe.Transformer("transformer", 512, 8, 2048, 6, 6), 37000, 63_084_544),
        (recipe.Transformer("transformer", 1024, 16, 4096, 6, 6), 37000, 214_249_472),
    ],
)
def test_parameter_counts(config, vocab, expected):
    with torch.device("meta"):
        model = build_model(config, vocab, vocab)
    assert parameters_by_part(model).total() == expected
    assert all(parameter.is_meta for parameter in model.parameters())


def test_long_sentences_fit_sinusoids_and_are_refused_by_learned_positions():
    src = sentences([90])
    tgt = sentences([80], end=())
    with torch.no_grad():
        model = build(positions="sinusoidal")  # max_positions is 64
        long = model(src, tgt)
        assert_close(long[:, :10], model(src, tgt[:, :10]))
        model = build(positions="learned")
        with pytest.raises(NmtError, match="90 pieces is longer than the 64 positions") as error:
            model.encode(src)
        assert "max_positions" in error.value.hint


def test_sinusoids_grow_beyond_max_positions():
    assert Sinusoids(4, 2)(0, 9, torch.zeros(1)).shape == (9, 2)


@pytest.mark.parametrize(("tie", "tables"), [("all", 1), ("target", 2), ("none", 3)])
def test_tied_matrices_are_stored_once(tie, tables):
    model = build(tie=tie)
    state = model.state_dict()
    assert sum(tensor.shape == (VOCAB, 16) for tensor in state.values()) == tables
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)
    other = build(seed=1, tie=tie)
    other.load_state_dict(state)
    with torch.no_grad():
        assert_close(other(SRC, TGT), model(SRC, TGT))


def test_tie_all_needs_one_vocabulary():
    with pytest.raises(NmtError, match="one vocabulary, not 30 and 40"):
        build_model(small_transformer(tie="all"), 30, 40)
    assert build_model(small_transformer(tie="target"), 30, 40).project(torch.zeros(2, 16)).shape == (2, 40)


def test_initial_weights():
    torch.manual_seed(3)
    model = build_model(recipe.Transformer(dim=64, ff=192, tie="none"), 500, 500)
    bounds = {"qkv": (64, 64), "keys_values": (64, 64), "query": (64, 64), "inner": (64, 192), "outer": (192, 64)}
    bounds["output"] = (64, 64)
    for name, parameter in model.named_parameters():
        module, kind = name.split(".")[-2:]
        if name == "output.weight":  # like an embedding
            assert parameter.std().item() == pytest.approx(64**-0.5, rel=0.05), name
        elif kind == "bias":
            assert (parameter == 0).all(), name
        elif module in bounds:  # Xavier: a uniform distribution, each fused matrix by itself
            limit = math.sqrt(6 / sum(bounds[module]))
            assert parameter.abs().max() <= limit, name
            assert parameter.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.05), name
        elif "embedding" in name:
            assert parameter.std().item() == pytest.approx(64**-0.5, rel=0.05), name
            assert (parameter[PAD] == 0).all(), name


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "ff_dropout"])
def test_each_dropout_works_in_training_only(name):
    no_dropout = {"dropout": 0.0, "attention_dropout": 0.0, "ff_dropout": 0.0}
    model = build(**{**no_dropout, name: 0.2})
    with torch.no_grad():
        assert torch.equal(model(SRC, TGT), model(SRC, TGT))
        without_noise = model(SRC, TGT)
        model.train()
        torch.manual_seed(6)
        first = model(SRC, TGT)
        assert not torch.allclose(first, without_noise)
        assert not torch.allclose(first, model(SRC, TGT))
        torch.manual_seed(6)
        assert torch.equal(model(SRC, TGT), first)
        assert_close(build(**no_dropout).train()(SRC, TGT), build(**no_dropout)(SRC, TGT))


def test_dropout_is_applied_to_embeddings_and_to_residuals():
    """Both have the rate model.dropout, so each is checked by itself."""
    model = build(dropout=0.5, norm="pre")
    residual = model.encoder[0].around_attention
    zeros, ones = torch.zeros(8, 50, 16), torch.ones(8, 50, 16)
    ids = torch.full((8, 50), 7)
    with torch.no_grad():
        for train in (False, True):
            model.train(train)
            embedded = model.embed(ids, model.source_table, model.source_positions)
            zero_shares = [float((x == 0).float().mean()) for x in (embedded, residual.after(zeros, ones))]
            assert all(0.4 < share < 0.6 if train else share == 0 for share in zero_shares)
