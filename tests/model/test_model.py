"""The models: against PyTorch's own Transformer, against the formulas of the paper, and against themselves."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.models import (
    CONVS,
    DECODERS,
    RNNS,
    SRC,
    TGT,
    VOCAB,
    close,
    copy_attention,
    copy_layer,
    parametrized,
    randomised,
    sentences,
)
from torch import nn

from nmt_cli.errors import NmtError
from nmt_cli.model.attention import CrossAttention, SelfAttention
from nmt_cli.model.base import count_parameters, select
from nmt_cli.model.build import build_model
from nmt_cli.model.cache import GROWTH
from nmt_cli.model.dropout import dropout
from nmt_cli.model.transformer import DecoderLayer, EncoderLayer, Sinusoids, Transformer, sinusoids
from nmt_cli.recipe import schema as recipe
from nmt_cli.text.vocab import BOS, PAD
from nmt_cli.training.malloc import keep_freed_memory

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}
OPTIONS = [
    dict(zip(("norm", "positions", "tie", "activation"), values, strict=True))
    for values in [
        *itertools.product(["pre", "post"], ["sinusoidal", "learned"], ["all"], ["relu"]),
        ("pre", "sinusoidal", "target", "gelu"),
        ("post", "learned", "none", "swish"),
        ("pre", "learned", "none", "gelu"),
    ]
]


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


every_option = pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options.values()))


def small(**options) -> recipe.Transformer:
    sizes = {"dim": 16, "heads": 4, "ff": 24, "encoder_layers": 2, "decoder_layers": 3, "max_positions": 64}
    return recipe.Transformer(**{**sizes, **options})


def build(seed: int = 0, **options) -> Transformer:
    return randomised(small(**options), seed)


TRANSFORMERS = {"-".join(options.values()): small(**options) for options in OPTIONS}


every_model = parametrized(TRANSFORMERS | RNNS | CONVS | DECODERS)


# ---------------------------------------------------------------------------------------------------------------------
# Against an independent implementation


def copy_linear(target, *sources):
    target.weight.copy_(torch.cat([source.weight for source in sources]))
    target.bias.copy_(torch.cat([source.bias for source in sources]))


def torch_stack(model: Transformer, options) -> tuple[nn.Module, nn.Module]:
    """PyTorch's encoder and decoder with our weights. Kept in training mode, as eval takes PyTorch's own fast path."""
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


@every_option
def test_whole_model_equals_torch_transformer(options):
    model = build(**options)
    encoder, decoder = torch_stack(model, options)
    target = model.target_embedding.weight
    source = target if options["tie"] == "all" else model.source_embedding.weight
    output = model.output.weight if options["tie"] == "none" else target

    def embedded(ids, table, learned):
        positions = learned.weight if options["positions"] == "learned" else sinusoids(64, 16)
        return table[ids] * 4.0 + positions[: ids.size(1)]

    with torch.no_grad():
        memory = encoder(embedded(SRC, source, model.source_positions), src_key_padding_mask=SRC == PAD)
        expected = decoder(
            embedded(TGT, target, model.target_positions),
            memory,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(TGT.size(1)),
            memory_key_padding_mask=SRC == PAD,
        )
        logits = model(SRC, TGT)
    close(logits[TGT != PAD], (expected @ output.T)[TGT != PAD], 1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_layers_equal_torch_layers(norm, activation):
    options = {"norm": norm, "activation": activation}
    model = build(**options)
    encoder, decoder = torch_stack(model, options)
    x, y = torch.randn(3, 7, 16), torch.randn(3, 5, 16)
    with torch.no_grad():
        ours: EncoderLayer = model.encoder[1]
        close(ours(x, None, False)[0], encoder.layers[1](x))
        causal = nn.Transformer.generate_square_subsequent_mask(5)
        layer: DecoderLayer = model.decoder[2]
        actual = layer(y, layer.cross.keys_values(x), None, None, None, False)[0]
        close(actual, decoder.layers[2](y, x, tgt_mask=causal))


def test_gradients_equal_torch_gradients():
    """Through the fused projections: the gradient of qkv is that of PyTorch's in_proj_weight."""
    ours, theirs = SelfAttention(16, 4, 0.0), nn.MultiheadAttention(16, 4, batch_first=True)
    copy_attention(theirs, ours)
    x = torch.randn(2, 5, 16)
    ours(x)[0].square().sum().backward()
    theirs(x, x, x)[0].square().sum().backward()
    close(ours.qkv.weight.grad, theirs.in_proj_weight.grad)
    ours, y = CrossAttention(16, 4, 0.0), torch.randn(2, 3, 16)
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    copy_attention(theirs, ours)
    ours(y, ours.keys_values(x))[0].square().sum().backward()
    theirs(y, x, x)[0].square().sum().backward()
    close(torch.cat([ours.query.weight.grad, ours.keys_values.weight.grad]), theirs.in_proj_weight.grad)


@pytest.mark.parametrize("dim", [2, 16, 512])
def test_sinusoids_follow_the_paper(dim):
    expected = np.zeros((70, dim))
    for position in range(70):
        for i in range(dim // 2):
            angle = position / 10000 ** (2 * i / dim)
            expected[position, 2 * i : 2 * i + 2] = math.sin(angle), math.cos(angle)
    np.testing.assert_allclose(sinusoids(70, dim).numpy(), expected, atol=1e-6)


def transformer_parameters(d, ff, encoder, decoder, vocabularies):
    """By hand: matrices, biases, norms (pre-norm with a final norm on each side), embeddings."""
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
    assert count_parameters(model) == expected
    assert all(parameter.is_meta for parameter in model.parameters())


# ---------------------------------------------------------------------------------------------------------------------
# Against itself


@every_model
def test_future_tokens_change_nothing(config):
    model = randomised(config)
    changed = TGT.clone()
    changed[:, 4:] = torch.randint(4, VOCAB, changed[:, 4:].shape)
    with torch.no_grad():
        close(model(SRC, TGT)[:, :4], model(SRC, changed)[:, :4])


@every_model
@pytest.mark.parametrize("attention", [False, True])
def test_padding_and_neighbours_change_nothing(config, attention):
    """A sentence alone, without padding, gets the logits that it gets in a padded batch."""
    model = randomised(config)
    with torch.no_grad():
        batch = model.decode(TGT, model.encode(SRC, attention), attention)[0]
        wider = F.pad(SRC, (0, 6), value=PAD), F.pad(TGT, (0, 3), value=PAD)
        close(model(*wider)[:, : TGT.size(1)][TGT != PAD], batch[TGT != PAD], 2e-5)
        for i in range(len(SRC)):
            src, tgt = SRC[i][SRC[i] != PAD], TGT[i][TGT[i] != PAD]
            close(model(src[None], tgt[None])[0], batch[i, : len(tgt)], 2e-5)


@every_model
def test_attention_is_what_the_fast_path_computes(config):
    model = randomised(config)
    with torch.no_grad():
        memory = model.encode(SRC, attention=True)
        logits, weights = model.decode(TGT, memory, attention=True)
        close(logits, model(SRC, TGT), 2e-5)
    shapes = {name: tuple(shares.shape) for name, shares in weights.items()}
    if "attention" in memory:
        shapes["source"] = tuple(memory["attention"].shape)
    assert shapes == attention_shapes(config)
    weights = {"source": memory.get("attention"), "cross": None, "decoder": None, **weights}
    source, cross, own = weights["source"], weights["cross"], weights["decoder"]
    source_pads = (SRC == PAD)[:, None, None, None]
    sums = []
    if source is not None:
        sums.append(source.sum(-1)[(SRC != PAD)[:, None, None].expand(source.shape[:-1])])
    if cross is not None:
        assert (cross.masked_select(source_pads) == 0).all()
        if isinstance(config, recipe.DecoderOnly):  # one softmax over both sides
            sums.append(cross.sum(-1) + own.sum(-1))
        elif getattr(config, "span", "") != "predictive":  # whose Gaussian takes something away
            sums.append(cross.sum(-1))
    if own is not None:
        assert (own.triu(1) == 0).all()
    for total in sums:
        close(total, torch.ones(total.shape))
    with torch.no_grad():
        assert model.decode(TGT, model.encode(SRC))[1] is None


def attention_shapes(config: recipe.Model) -> dict[str, tuple[int, ...]]:
    (rows, s), t = SRC.shape, TGT.size(1)
    match config:
        case recipe.Transformer():
            return {"source": (rows, 2, 4, s, s), "cross": (rows, 3, 4, t, s), "decoder": (rows, 3, 4, t, t)}
        case recipe.Conv():
            return {"cross": (rows, config.decoder_layers, 1, t, s)}
        case recipe.DecoderOnly():
            shape = (rows, config.layers, config.heads)
            return {"source": (*shape, s, s), "cross": (*shape, t, s), "decoder": (*shape, t, t)}
    return {} if config.attention == "none" else {"cross": (rows, 1, config.heads, t, s)}


@every_model
@pytest.mark.parametrize("attention", [False, True])
def test_steps_equal_decode(config, attention):
    model = randomised(config)
    with torch.inference_mode():
        memory = model.encode(SRC)
        logits, weights = model.decode(TGT, memory, attention=True)
        state = model.start(memory)
        for t in range(TGT.size(1)):
            step, shares, state = model.step(TGT[:, t], memory, state, attention)
            close(step, logits[:, t], 2e-5)
            if attention:
                assert shares.keys() == weights.keys() - {"decoder"}
                for name in shares:
                    close(shares[name], weights[name][:, :, :, t])
            else:
                assert shares is None


@every_model
@pytest.mark.parametrize("steps", [4, 40])
def test_steps_after_moves(config, steps):
    """Hypotheses of a sentence reordered, repeated and dropped at every step, and sentences that leave, as in a beam
    search: each row goes on as if it had been alone with what it has written."""
    model = randomised(config)
    chance = torch.Generator().manual_seed(8)
    alive, width = torch.arange(len(SRC)), 1
    with torch.inference_mode():
        memory = model.encode(SRC)
        state = model.start(memory)
        written = torch.full((len(SRC), 1), BOS)
        for t in range(steps):
            logits, _, state = model.step(written[:, -1], memory, state)
            if t % 8 == 3:
                sources = SRC[alive].repeat_interleave(width, 0)
                close(logits, model(sources, written)[:, -1], 2e-5)
            stay = torch.arange(len(alive)) if t != steps // 2 else torch.tensor([0, *range(2, len(alive))])
            rows = stay[:, None] * width + torch.randint(width, (len(stay), 3), generator=chance)
            alive, width, memory = alive[stay], 3, select(memory, stay)
            state = model.move(state, rows)
            new = torch.randint(4, 20, (rows.numel(), 1), generator=chance)
            written = torch.cat([written[rows.flatten()], new], 1)


@every_model
@pytest.mark.parametrize("attention", [False, True])
def test_hypotheses_share_their_source(config, attention):
    """Three rows to each row of memory give what they give with the memory repeated."""
    model = randomised(config)
    rows = torch.arange(len(SRC)).repeat_interleave(3)
    prefixes = sentences([5] * len(rows), end=(), seed=6)
    with torch.inference_mode():
        memory = model.encode(SRC)
        repeated = select(memory, rows)
        shared_state, state = model.move(model.start(memory), rows.view(-1, 3)), model.start(repeated)
        for t in range(5):
            shared, shared_weights, shared_state = model.step(prefixes[:, t], memory, shared_state, attention)
            expected, weights, state = model.step(prefixes[:, t], repeated, state, attention)
            close(shared, expected, 2e-5)
            for name in weights or ():
                close(shared_weights[name], weights[name])


@parametrized({name: (TRANSFORMERS | DECODERS)[name] for name in ("pre-sinusoidal-all-relu", "decoder")})
def test_steps_beyond_the_first_growth_of_the_cache(config):
    model = randomised(config)
    tgt = sentences([40] * len(SRC), end=(), seed=7)
    with torch.inference_mode():
        memory = model.encode(SRC)
        expected, state = model.decode(tgt, memory)[0], model.start(memory)
        held = []  # all, or memory that was freed could be mistaken for memory that was kept
        for t in range(40):
            logits, _, state = model.step(tgt[:, t], memory, state)
            close(logits, expected[:, t], 2e-5)
            held.append(state["cache"])
    assert len({cache.data_ptr() for cache in held}) == math.ceil(40 / GROWTH)  # else it stays where it is


@every_model
def test_zeroed_embeddings_keep_their_positions(config):
    model = randomised(config)
    keep_src, keep_tgt = torch.rand(SRC.shape) < 0.6, torch.rand(TGT.shape) < 0.6
    with torch.no_grad():
        zeroed = model.features(TGT, model.encode(SRC, keep=keep_src), keep=keep_tgt)[0]
        all_kept = model.features(TGT, model.encode(SRC, keep=keep_src | True), keep=keep_tgt | True)[0]
        close(all_kept, model.features(TGT, model.encode(SRC))[0])
        # The same by hand: a piece whose vector is zero takes the place of each token that is not kept.
        for table in {model.target_embedding, model.source_table}:
            table.weight[VOCAB - 1] = 0
        src, tgt = SRC.masked_fill(~keep_src & (SRC != PAD), VOCAB - 1), TGT.masked_fill(~keep_tgt, VOCAB - 1)
        expected = model.features(tgt, model.encode(src))[0]
    used = (SRC == VOCAB - 1).any(1) | (TGT == VOCAB - 1).any(1)
    close(zeroed[~used][TGT[~used] != PAD], expected[~used][TGT[~used] != PAD], 2e-5)


def test_sinusoids_grow_and_learned_positions_refuse():
    src = sentences([90])
    tgt = sentences([80], end=())
    with torch.no_grad():
        model = build(positions="sinusoidal")  # max_positions is 64
        long = model(src, tgt)
        close(long[:, :10], model(src, tgt[:, :10]))
        model = build(positions="learned")
        with pytest.raises(NmtError, match="90 pieces is longer than the 64 positions") as error:
            model.encode(src)
        assert "max_positions" in error.value.hint


@every_model
def test_a_model_built_without_weights(config):
    """Built on the meta device and then filled, as a loader does: the sinusoids are there."""
    model = randomised(config)
    for assign in (False, True):
        with torch.device("meta"):
            empty = build_model(config, VOCAB, VOCAB)
        if not assign:
            empty.to_empty(device="cpu")
        empty.load_state_dict(model.state_dict(), assign=assign)
        with torch.no_grad():
            close(empty.eval()(SRC, TGT), model(SRC, TGT))


def test_sinusoids_grow_on_their_own():
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
        close(other(SRC, TGT), model(SRC, TGT))


def test_one_matrix_needs_one_vocabulary():
    with pytest.raises(NmtError, match="one vocabulary, not 30 and 40"):
        build_model(small(tie="all"), 30, 40)
    assert build_model(small(tie="target"), 30, 40).project(torch.zeros(2, 16)).shape == (2, 40)


def test_initialisation():
    torch.manual_seed(3)
    model = build_model(recipe.Transformer(dim=64, ff=192, tie="none"), 500, 500)
    bounds = {"qkv": (64, 64), "keys_values": (64, 64), "query": (64, 64), "inner": (64, 192), "outer": (192, 64)}
    bounds["output"] = (64, 64)
    for name, parameter in model.named_parameters():
        module, kind = name.split(".")[-2:]
        if name == "output.weight":  # as if it were tied to the embedding
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


# ---------------------------------------------------------------------------------------------------------------------
# Dropout


@pytest.mark.parametrize("p", [0.05, 0.1, 0.3, 0.5, 0.9])
def test_dropout_statistics(p):
    """Each element is dropped with p to within 1/512, and the mean is exactly preserved in expectation."""
    torch.manual_seed(4)
    x = torch.ones(1000, 1003)  # a size that 8 does not divide
    y = dropout(x, p)
    kept = (y != 0).double()
    assert len(y.unique()) == 2
    rounded = round(p * 256) / 256
    n = x.numel()
    assert abs(rounded - p) <= 1 / 512
    error = 4.5 * math.sqrt(rounded * (1 - rounded) / n)
    assert kept.mean().item() == pytest.approx(1 - rounded, abs=error)
    assert y.double().mean().item() == pytest.approx(1, abs=error / (1 - rounded))
    for dim in (0, 1):  # no row or column is special, neighbours are independent
        assert (kept.mean(dim) - (1 - rounded)).abs().max() < 6 * math.sqrt(rounded * (1 - rounded) / 1000)
        together = (kept.narrow(dim, 1, 999) * kept.narrow(dim, 0, 999)).mean().item()
        assert together == pytest.approx((1 - rounded) ** 2, abs=2 * error)


def test_dropout_repeats_from_the_state_of_the_generator():
    x = torch.randn(7, 11)
    state = torch.get_rng_state()
    first, second = dropout(x, 0.3), dropout(x, 0.3)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(dropout(x, 0.3), first)
    assert torch.equal(dropout(x, 0.3), second)
    assert dropout(x, 0.0) is x


@pytest.mark.parametrize("with_residual", [False, True])
def test_dropout_gradient(with_residual):
    x = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
    residual = torch.randn(5, 9, dtype=torch.float64, requires_grad=True) if with_residual else None
    torch.manual_seed(5)
    y = dropout(x, 0.4, residual)
    y.square().sum().backward()
    noise = (y - (residual if with_residual else 0)) / x
    close(x.grad, 2 * y * noise)
    if with_residual:
        close(residual.grad, 2 * y)


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "ff_dropout"])
def test_each_dropout_works_in_training_only(name):
    nothing = {"dropout": 0.0, "attention_dropout": 0.0, "ff_dropout": 0.0}
    model = build(**{**nothing, name: 0.2})
    with torch.no_grad():
        assert torch.equal(model(SRC, TGT), model(SRC, TGT))
        quiet = model(SRC, TGT)
        model.train()
        torch.manual_seed(6)
        first = model(SRC, TGT)
        assert not torch.allclose(first, quiet)
        assert not torch.allclose(first, model(SRC, TGT))
        torch.manual_seed(6)
        assert torch.equal(model(SRC, TGT), first)
        close(build(**nothing).train()(SRC, TGT), build(**nothing)(SRC, TGT))


def test_dropout_is_on_embeddings_and_on_residuals():
    """Each by itself, since both have the rate model.dropout."""
    model = build(dropout=0.5, norm="pre")
    residual = model.encoder[0].around_attention
    nothing, ones = torch.zeros(8, 50, 16), torch.ones(8, 50, 16)
    ids = torch.full((8, 50), 7)
    with torch.no_grad():
        for train in (False, True):
            model.train(train)
            embedded = model.embed(ids, model.source_table, model.source_positions)
            dropped = [float((x == 0).float().mean()) for x in (embedded, residual.leave(nothing, ones))]
            assert all(0.4 < share < 0.6 if train else share == 0 for share in dropped)


def test_keep_freed_memory_says_whether_it_worked():
    assert keep_freed_memory() in (True, False)
