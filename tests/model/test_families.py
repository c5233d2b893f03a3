"""The families beside the Transformer, each against a second implementation that shares no code with it: recurrent
models and every score in numpy, word by word; ConvS2S by F.conv1d; decoder-only by torch.nn.TransformerEncoder."""

import math
from dataclasses import replace
from pathlib import Path

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
    copy_layer,
    parametrized,
    randomised,
)
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from nmt_cli.errors import NmtError
from nmt_cli.export.ctranslate2 import to_ctranslate2
from nmt_cli.export.hf import to_hf
from nmt_cli.model.build import build_model
from nmt_cli.model.rnn_scores import SourceAttention
from nmt_cli.model.transformer import sinusoids
from nmt_cli.recipe import schema as recipe
from nmt_cli.search.beam import search
from nmt_cli.search.contract import SearchOptions
from nmt_cli.store.checkpoint import Trained
from nmt_cli.store.model_folder import ModelFolder
from nmt_cli.text.vocab import BOS, EOS, PAD
from nmt_cli.training.loss import TrainingLoss
from nmt_cli.training.trainer import training_flops


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (recipe.Rnn(dim=16), "dropout"),
        (recipe.Rnn(dim=16, cell="gru", attention="none"), "dropout"),
        (recipe.Conv(dim=16), "dropout"),
        *((recipe.DecoderOnly(dim=16, ff=16, heads=2), f"{place}dropout") for place in ("", "attention_", "ff_")),
    ],
    ids=lambda value: getattr(value, "family", value),
)
def test_each_dropout_works_in_training_only(config, name):
    nothing = {key: 0.0 for key in vars(config) if key.endswith("dropout")}
    model = build_model(replace(config, **{**nothing, name: 0.2}), VOCAB, VOCAB)
    with torch.no_grad():
        quiet = model.eval()(SRC, TGT)
        assert torch.equal(quiet, model(SRC, TGT))
        noisy = model.train()(SRC, TGT)
        assert not torch.allclose(noisy, quiet) and not torch.allclose(noisy, model(SRC, TGT))
    without = build_model(replace(config, **nothing), VOCAB, VOCAB)
    with torch.no_grad():
        close(without.train()(SRC, TGT), without.eval()(SRC, TGT))


def unpadded(batch: torch.Tensor) -> list[torch.Tensor]:
    return [row[row != PAD] for row in batch]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    x = np.exp(x - x.max())
    return x / x.sum()


def numbers(model: nn.Module) -> dict:
    """A model's parameters in numpy, double precision."""
    return {name: parameter.detach().double().numpy() for name, parameter in model.named_parameters()}


def below(p: dict, prefix: str) -> dict:
    """Those of a part of the model."""
    return {name[len(prefix) + 1 :]: x for name, x in p.items() if name.startswith(prefix + ".")}


# ---------------------------------------------------------------------------------------------------------------------
# Recurrent models


def cell(kind, p, x, state, way=""):
    """One step by the formulas of the textbook; state is (h,) or (h, c)."""
    h = state[0]
    from_x = p[f"weight_ih_l0{way}"] @ x + p[f"bias_ih_l0{way}"]
    from_h = p[f"weight_hh_l0{way}"] @ h + p[f"bias_hh_l0{way}"]
    if kind == "rnn":
        return (np.tanh(from_x + from_h),)
    if kind == "gru":
        (rx, zx, nx), (rh, zh, nh) = np.split(from_x, 3), np.split(from_h, 3)
        r, z = sigmoid(rx + rh), sigmoid(zx + zh)
        return ((1 - z) * np.tanh(nx + r * nh) + z * h,)
    i, f, g, o = np.split(from_x + from_h, 4)
    c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def score(kind, p, q, k, s):
    """One number for a query q and the key k at position s, as the papers write it."""
    match kind:
        case "cosine":
            strength = math.log(1 + math.exp(p["strength.weight"][0] @ q + p["offset"][0]))
            return strength * (q @ k) / (np.linalg.norm(q) * np.linalg.norm(k))
        case "additive":
            return p["vector"] @ np.tanh(p["query.weight"] @ q + p["source.weight"] @ k)
        case "location":
            table = p["location.weight"]
            return table[s] @ q if s < len(table) else -1e4
        case "general":
            return q @ p["source.weight"] @ k
        case "dot":
            return q @ k
        case "scaled_dot":
            return q @ k / math.sqrt(len(k))
        case "mlp":
            hidden = p["hidden.weight"] @ np.concatenate([q, k]) + p["hidden.bias"]
            return p["vector"] @ np.maximum(hidden, 0)


def attended(config, p, h, states, t):
    """The context of decoder state h at step t, and the weights (H,S)."""
    size, own = len(states), below(p, "score")
    queries, keys, values = [h], [states], [states]
    if config.projections:
        queries = np.split(p["query.weight"] @ h, config.heads)
        key_matrix, value_matrix = np.split(p["keys_values.weight"], 2)
        keys = np.split(states @ key_matrix.T, config.heads, axis=1)
        values = np.split(states @ value_matrix.T, config.heads, axis=1)
    centre = None
    if config.span == "monotonic":
        centre = min(t, size - 1)
    if config.span == "predictive":
        centre = size * sigmoid(p["centre.weight"][0] @ np.tanh(p["centre_hidden.weight"] @ h))
    seen = [s for s in range(size) if centre is None or abs(s - centre) <= config.radius]
    contexts, rows = [], []
    for q, ks, vs in zip(queries, keys, values, strict=True):
        weights = np.zeros(size)
        weights[seen] = softmax(np.array([score(config.attention, own, q, ks[s], s) for s in seen]))
        if config.span == "predictive":
            sigma = config.radius / 2
            weights *= [math.exp(-((s - centre) ** 2) / (2 * sigma**2)) for s in range(size)]
        contexts.append(weights @ vs)
        rows.append(weights)
    return np.concatenate(contexts), np.array(rows)


def by_hand(config, p, src, tgt):
    """Logits (T,V) and attention (T,H,S) of one sentence, word by word."""
    target_table = p["target_embedding.weight"]
    source_table = p.get("source_embedding.weight", target_table)
    output = p.get("output.weight", target_table)
    scale, slots = math.sqrt(config.dim), 2 if config.cell == "lstm" else 1
    states = [source_table[i] * scale for i in src]
    for layer in range(config.encoder_layers):
        own, outputs = below(p, f"encoder.{layer}"), []
        for way in ("", "_reverse") if config.bidirectional else ("",):
            width = config.dim // (1 + config.bidirectional)
            state, made = (np.zeros(width),) * slots, []
            for x in reversed(states) if way else states:
                state = cell(config.cell, own, x, state, way)
                made.append(state[0])
            outputs.append(made[::-1] if way else made)
            outputs[-1].append(made[-1])  # the last state of each direction comes last
        states = [np.concatenate(parts) for parts in zip(*outputs, strict=True)]
        last = states.pop()
    states = np.array(states)
    first = np.tanh(p["bridge.weight"] @ last + p["bridge.bias"]).reshape(slots, config.decoder_layers, -1)
    layers = [tuple(first[:, i]) for i in range(config.decoder_layers)]
    fed, logits, attention = np.zeros(config.dim), [], []
    for t, i in enumerate(tgt):
        x = [target_table[i] * scale]
        x += [last] if config.context == "every" else []
        x += [fed] if config.input_feeding else []
        h = np.concatenate(x)
        for n in range(config.decoder_layers):
            layers[n] = cell(config.cell, below(p, f"decoder.{n}"), h, layers[n])
            h = layers[n][0]
        if config.attention != "none":
            context, weights = attended(config, below(p, "attention"), h, states, t)
            h = fed = np.tanh(p["readout.weight"] @ np.concatenate([context, h]))
            attention.append(weights)
        logits.append(output @ h)
    return np.array(logits), np.array(attention)


@parametrized(RNNS)
def test_recurrent_models_by_hand(config):
    model = randomised(config)
    parameters = numbers(model)
    with torch.no_grad():
        logits, weights = model.decode(TGT, model.encode(SRC), attention=True)
    for n, (src, tgt) in enumerate(zip(unpadded(SRC), unpadded(TGT), strict=True)):
        expected, attention = by_hand(config, parameters, src.tolist(), tgt.tolist())
        np.testing.assert_allclose(logits[n, : len(tgt)], expected, rtol=1e-4, atol=2e-5)
        if config.attention != "none":
            actual = weights["cross"][n, 0, :, : len(tgt), : len(src)].transpose(0, 1)
            np.testing.assert_allclose(actual, attention, atol=1e-5)


SCORES = ["cosine", "additive", "location", "general", "dot", "scaled_dot", "mlp"]


@pytest.mark.parametrize("span", ["global", "monotonic", "predictive"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("kind", SCORES)
def test_scores_follow_their_formulas(kind, heads, span):
    """Every score with every window, apart from the models; three sentences of different length."""
    config = recipe.Rnn(dim=8, attention=kind, heads=heads, projections=heads > 1, span=span, radius=2, location_size=5)
    torch.manual_seed(7)
    attention = SourceAttention(config)
    for parameter in attention.parameters():
        nn.init.normal_(parameter)
    lengths, states, queries = [7, 1, 4], torch.randn(3, 7, 8), torch.randn(3, 6, 8)
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        context, weights = attention(queries, attention.read(states, mask), torch.arange(6).expand(3, -1))
    assert (weights.masked_select(~mask[:, None, None]) == 0).all()
    parameters = numbers(attention)
    for n, length in enumerate(lengths):
        for t in range(6):
            source = states[n, :length].double().numpy()
            expected, rows = attended(config, parameters, queries[n, t].double().numpy(), source, t)
            np.testing.assert_allclose(context[n, t], expected, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(weights[n, :, t, :length], rows, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "stack"), [("rnn", nn.RNN), ("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_the_encoder_is_torchs_own_stack(kind, stack):
    config = recipe.Rnn(cell=kind, dim=16, encoder_layers=2, attention="dot")
    model = randomised(config)
    theirs = stack(16, 8, 2, batch_first=True, bidirectional=True)
    theirs.load_state_dict(
        {
            name.replace("_l0", f"_l{n}"): parameter
            for n, layer in enumerate(model.encoder)
            for name, parameter in layer.state_dict().items()
        }
    )
    with torch.no_grad():
        for row in unpadded(SRC):
            expected, _ = theirs(model.target_embedding(row)[None] * 4.0)
            close(model.encode(row[None])["values"].flatten(2), expected)


def test_initialisation_of_recurrent_models():
    torch.manual_seed(3)
    model = build_model(recipe.Rnn(dim=64, attention="cosine", tie="none"), 500, 500)
    for layer in (*model.encoder, *model.decoder):
        width = layer.hidden_size
        assert layer.bias_ih_l0.unflatten(0, (4, -1)).tolist() == [[n == 1] * width for n in range(4)]
        assert (layer.bias_hh_l0 == 0).all()
        for gate in layer.weight_hh_l0.split(width):
            close(gate @ gate.T, torch.eye(width))
        limit = math.sqrt(6 / (width + 64))
        assert 0.95 * limit < layer.weight_ih_l0.abs().max() <= limit
    for table in (model.target_embedding, model.source_embedding):
        assert table.weight.std().item() == pytest.approx(1 / 8, rel=0.05)
        assert (table.weight[PAD] == 0).all()
    assert model.output.weight.std().item() == pytest.approx(1 / 8, rel=0.05)
    assert model.attention.score.offset.item() == 4


def test_a_gru_does_not_begin_with_ones():
    model = build_model(recipe.Rnn(cell="gru", dim=16), VOCAB, VOCAB)
    assert all((parameter == 0).all() for name, parameter in model.named_parameters() if "bias" in name)


# ---------------------------------------------------------------------------------------------------------------------
# ConvS2S


def conv1d(linear: nn.Linear, x: torch.Tensor, left: int, right: int) -> torch.Tensor:
    """The same convolution by PyTorch: x (T,D) -> (T,D), gated."""
    dim = x.size(1)
    weight = linear.weight.view(2 * dim, -1, dim).transpose(1, 2)  # (2D,D,kernel)
    y = F.conv1d(F.pad(x.T, (left, right)), weight, linear.bias)
    return (y[:dim] * torch.sigmoid(y[dim:])).T


@parametrized(CONVS)
def test_convolutions_by_conv1d(config):
    model = randomised(config)
    half, kernel = math.sqrt(0.5), config.kernel
    with torch.no_grad():
        logits, weights = model.decode(TGT, model.encode(SRC), attention=True)
        for n, (src, tgt) in enumerate(zip(unpadded(SRC), unpadded(TGT), strict=True)):
            embedded = model.source_table.weight[src] + model.source_positions.weight[: len(src)]
            z = embedded
            for layer in model.encoder:
                z = (conv1d(layer.linear, z, kernel // 2, kernel // 2) + z) * half
            values = (z + embedded) * half
            x = own = model.target_embedding.weight[tgt] + model.target_positions.weight[: len(tgt)]
            for n_layer, layer in enumerate(model.decoder):
                h = conv1d(layer.convolution.linear, x, kernel - 1, 0)
                d = (h @ layer.query.weight.T + layer.query.bias + own) * half
                shares = torch.softmax(d @ z.T, -1)
                close(weights["cross"][n, n_layer, 0, : len(tgt), : len(src)], shares)
                context = (shares @ values) * (len(src) * math.sqrt(1 / len(src)))
                x = ((h + context) * half + x) * half
            close(logits[n, : len(tgt)], x @ model.output_weight.T, 2e-5)


def test_initial_variance_of_convolutions():
    """Section 3.6 of the paper promises that layers keep it: no layer is to be ten times its neighbour."""
    torch.manual_seed(2)
    model = build_model(recipe.Conv(dim=128, encoder_layers=6, dropout=0.2), 500, 500)
    assert model.target_embedding.weight.std().item() == pytest.approx(0.1, rel=0.02)
    assert model.decoder[0].query.weight.std().item() == pytest.approx(128**-0.5, rel=0.05)
    assert model.encoder[0].linear.weight.std().item() == pytest.approx(math.sqrt(4 * 0.8 / (3 * 128)), rel=0.05)
    with torch.no_grad():
        src = torch.randint(4, 500, (8, 20))
        embedded = model.embed(src, model.source_table, model.source_positions)
        assert 0.3 < model.encode(src)["keys"].std() / embedded.std() < 3


# ---------------------------------------------------------------------------------------------------------------------
# Decoder only


@parametrized(DECODERS)
def test_decoder_only_is_one_causal_stack(config):
    """PyTorch's encoder with a causal mask, on source, BOS and target in one row without padding."""
    model = randomised(config)
    pre = config.norm == "pre"
    activation = {"relu": F.relu, "gelu": F.gelu}[config.activation]
    layer = nn.TransformerEncoderLayer(16, config.heads, 24, 0.0, activation, batch_first=True, norm_first=pre)
    stack = nn.TransformerEncoder(layer, config.layers, nn.LayerNorm(16) if pre else None, enable_nested_tensor=False)
    for theirs, ours in zip(stack.layers, model.layers, strict=True):
        copy_layer(theirs, ours)
    if pre:
        stack.norm.load_state_dict(model.norm.state_dict())

    def embedded(ids, table, positions):
        where = positions.table.weight if config.positions == "learned" else sinusoids(64, 16)
        return table.weight[ids] * 4.0 + where[: len(ids)] + positions.side

    with torch.no_grad():
        logits = model(SRC, TGT)
        for n, (src, tgt) in enumerate(zip(unpadded(SRC), unpadded(TGT), strict=True)):
            assert tgt[0] == BOS
            x = torch.cat(
                [
                    embedded(src, model.source_table, model.source_positions),
                    embedded(tgt, model.target_embedding, model.target_positions),
                ]
            )[None]
            y = stack(x, nn.Transformer.generate_square_subsequent_mask(x.size(1)))[0, len(src) :]
            close(logits[n, : len(tgt)], y @ model.output_weight.T, 2e-5)


# ---------------------------------------------------------------------------------------------------------------------
# What the commands ask of a family


OTHERS = {"rnn": RNNS["additive"], "conv": CONVS["conv"], "decoder": DECODERS["decoder"]}


@parametrized(OTHERS)
def test_export_is_refused(config, tmp_path):
    trained = Trained(randomised(config), None, recipe.Recipe(model=config), {})
    for export in (to_ctranslate2, to_hf):
        with pytest.raises(NmtError, match=f'family "{config.family}"') as error:
            export(trained, tmp_path / "out")
        assert error.value.hint
    assert not (tmp_path / "out").exists()


def test_a_recurrence_has_no_longest_sentence():
    def longest(model, max_tokens):
        data = recipe.Data(clean=recipe.Clean(max_tokens=max_tokens))
        return ModelFolder(Path(), recipe.Recipe(data=data, model=model), None, {}).longest_source

    assert longest(recipe.Rnn(), 250) == longest(recipe.Conv(), 250) == 250  # what it was trained on
    assert longest(recipe.Rnn(), 0) > 10**6
    assert longest(recipe.Conv(max_positions=100), 0) == 99


def test_positions_to_look_at():
    assert randomised(OTHERS["rnn"]).positions(5) is None
    conv, decoder = randomised(OTHERS["conv"]), randomised(OTHERS["decoder"])
    close(conv.positions(5), conv.source_positions.weight[:5])
    close(decoder.positions(5), sinusoids(5, 16))


# ---------------------------------------------------------------------------------------------------------------------
# The count of FLOPs


@pytest.mark.parametrize(
    "config",
    [
        recipe.Transformer("transformer", 64, 4, 256, 2, 2),
        recipe.Conv("conv", 64, 3, 2, 2),
        recipe.DecoderOnly("decoder", 64, 4, 256, 3),
        recipe.Rnn(dim=64, attention="none", context="every"),
        recipe.Rnn(dim=64, attention="general", decoder_layers=2),
        recipe.Rnn(dim=64, attention="mlp", input_feeding=True),
        recipe.Rnn(cell="gru", dim=64, attention="additive", projections=True, heads=4),
    ],
    ids=lambda config: f"{config.family}-{getattr(config, 'attention', '')}",
)
def test_training_flops(config, monkeypatch):
    """Against PyTorch's count of one pass, thrice; attention's own products, which ours leaves out, are small here."""
    torch.manual_seed(1)
    model = build_model(config, 300, 300).eval()
    src, tgt = torch.randint(4, 300, (16, 5)), torch.randint(4, 300, (16, 7))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # whose recurrence is one operation that nobody counts
    with FlopCounterMode(display=False) as counter:
        model(src, tgt)
    assert training_flops(model, src.numel(), tgt.numel()) == pytest.approx(3 * counter.get_total_flops(), rel=0.08)


def test_one_vector_holds_short_sentences_only():
    """The bottleneck: copying digits, the rung without attention gets worse with every digit, and the same network
    with attention does not."""
    generator = torch.Generator().manual_seed(1)

    def batch(length: int, rows: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        digits = torch.randint(5, 15, (rows, length), generator=generator)
        begin, end = digits.new_full((rows, 1), BOS), digits.new_full((rows, 1), EOS)
        return torch.cat([digits, end], 1), torch.cat([begin, digits], 1), torch.cat([digits, end], 1)

    right = {}
    for attention in ("none", "general"):
        torch.manual_seed(1)
        config = recipe.Rnn(dim=48, cell="gru", attention=attention, encoder_layers=1, decoder_layers=1, dropout=0.0)
        model = build_model(config, 15, 15)
        loss, optimizer = TrainingLoss(model, recipe.Train()), torch.optim.Adam(model.parameters(), 5e-3)
        for step in range(400):
            optimizer.zero_grad()
            value, _, count = loss(*batch(2 + step % 9))
            (value / count).backward()
            optimizer.step()
        model.eval()
        right[attention] = []
        for length in (3, 6, 10):
            src, _, wanted = batch(length, 200)
            found = search([model], src, SearchOptions(beam=1))
            rows = zip(found, wanted.tolist(), strict=True)
            same = [sum(a == b for a, b in zip(best[0].ids, row, strict=False)) / length for best, row in rows]
            right[attention].append(sum(same) / len(same))
    short, middle, long = right["none"]
    assert short > middle + 0.1 and middle > long + 0.1, right
    assert right["general"][2] > long + 0.3 and right["general"][0] - right["general"][2] < (short - long) / 2, right
