"""Recurrent models and every attention score against a second implementation in numpy, word by word."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.models import RNNS, SRC, TGT, VOCAB, assert_close, parametrized, randomized, unpadded
from torch import nn

from nmt_cli.model.build import build_model
from nmt_cli.model.rnn_scores import SourceAttention, blend
from nmt_cli.recipe import schema as recipe
from nmt_cli.search.beam import search
from nmt_cli.search.contract import SearchOptions
from nmt_cli.text.vocab import BOS, EOS, PAD


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    x = np.exp(x - x.max())
    return x / x.sum()


def parameters_of(model: nn.Module) -> dict:
    """The parameters of a model as numpy arrays in double precision."""
    return {name: parameter.detach().double().numpy() for name, parameter in model.named_parameters()}


def of_part(p: dict, prefix: str) -> dict:
    """The parameters of a part of the model."""
    return {name[len(prefix) + 1 :]: x for name, x in p.items() if name.startswith(prefix + ".")}


def cell(kind, p, x, state, direction=""):
    """One step by the formulas of a textbook; state is (h,) or (h, c)."""
    h = state[0]
    from_x = p[f"weight_ih_l0{direction}"] @ x + p[f"bias_ih_l0{direction}"]
    from_h = p[f"weight_hh_l0{direction}"] @ h + p[f"bias_hh_l0{direction}"]
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
    """The score of query q and key k at position s, by the formula of its paper."""
    match kind:
        case "plain_cosine":
            return (q @ k) / (np.linalg.norm(q) * np.linalg.norm(k))
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


def attend(config, p, h, states, t):
    """The context of decoder state h at step t, and the weights (H,S)."""
    size, score_parameters = len(states), of_part(p, "score")
    queries, keys, values = [h], [states], [states]
    if config.projections:
        queries = np.split(p["query.weight"] @ h, config.heads)
        key_matrix, value_matrix = np.split(p["keys_values.weight"], 2)
        keys = np.split(states @ key_matrix.T, config.heads, axis=1)
        values = np.split(states @ value_matrix.T, config.heads, axis=1)
    center = None
    if config.span == "monotonic":
        center = min(t, size - 1)
    if config.span == "predictive":
        center = size * sigmoid(p["center.weight"][0] @ np.tanh(p["center_hidden.weight"] @ h))
    visible = [s for s in range(size) if center is None or abs(s - center) <= config.radius]
    contexts, rows = [], []
    for q, ks, vs in zip(queries, keys, values, strict=True):
        weights = np.zeros(size)
        weights[visible] = softmax(np.array([score(config.attention, score_parameters, q, ks[s], s) for s in visible]))
        if config.span == "predictive":
            sigma = config.radius / 2
            weights *= [math.exp(-((s - center) ** 2) / (2 * sigma**2)) for s in range(size)]
        if config.hard:
            weights = np.eye(size)[weights.argmax()]
        contexts.append(weights @ vs)
        rows.append(weights)
    return np.concatenate(contexts), np.array(rows)


def encoder_directions(config, column, layer) -> list[int]:
    """The directions of a layer: 1 from left to right, -1 from right to left."""
    match config.directions:
        case "both":
            return [1, -1]
        case "both_first":
            return [1] if layer else [1, -1]
        case "interleaved":  # Zhou et al.: a column changes its direction in each layer, and the other is opposite
            return [(-1) ** (layer + column)]
    return [1]


def half_of_f(p, x, suffix=""):
    """The first half of f = W x + b (Zhou et al. 2016)."""
    f = p[f"weight_ih_l0{suffix}"] @ x + p[f"bias_ih_l0{suffix}"]
    return f[: len(f) // 2]


def mixture(config, p, x):
    """The output of the best experts (Shazeer et al. 2017), weighted by the softmax of their scores."""
    scores = p["gate"] @ x
    best = np.argsort(-scores)[: config.experts_top]
    outputs = []
    for i in best:
        hidden = np.maximum(p[f"experts.{i}.inner.weight"] @ x + p[f"experts.{i}.inner.bias"], 0)
        outputs.append(p[f"experts.{i}.outer.weight"] @ hidden + p[f"experts.{i}.outer.bias"])
    return softmax(scores[best]) @ np.array(outputs)


def run_model(config, p, src, tgt):
    """Logits (T,V) and attention (T,H,S) of one sentence, word by word."""
    target_table = p["target_embedding.weight"]
    source_table = p.get("source_embedding.weight", target_table)
    output = p.get("output.weight", target_table)
    scale, slots = math.sqrt(config.dim), 2 if config.cell == "lstm" else 1
    columns, lasts = [], []
    for column in range(2 if config.directions == "interleaved" else 1):
        states = [source_table[i] * scale for i in src]
        for layer in range(config.encoder_layers):
            if config.experts and layer + 1 == config.encoder_layers:
                states = [x + mixture(config, of_part(p, "encoder_experts"), x) for x in states]
            layer_parameters, outputs = of_part(p, f"encoder.{column * config.encoder_layers + layer}"), []
            for direction in encoder_directions(config, column, layer):
                suffix = "_reverse" if "weight_hh_l0_reverse" in layer_parameters and direction < 0 else ""
                width = layer_parameters["weight_hh_l0"].shape[1]
                state, hidden = (np.zeros(width),) * slots, []
                for x in states[::direction]:
                    state = cell(config.cell, layer_parameters, x, state, suffix)
                    hidden.append(state[0])
                outputs.append([*hidden[::direction], hidden[-1]])  # the last state of each direction comes last
            inputs, states = states, [np.concatenate(parts) for parts in zip(*outputs, strict=True)]
            last = states.pop()
            if config.skip == "residual" and layer >= 2:
                states = [h + x for h, x in zip(states, inputs, strict=True)]
            if config.skip == "fast_forward":
                both = ("", "_reverse") if "weight_hh_l0_reverse" in layer_parameters else ("",)
                states = [
                    np.concatenate([*(half_of_f(layer_parameters, x, suffix) for suffix in both), h])
                    for h, x in zip(states, inputs, strict=True)
                ]
        columns.append(states)
        lasts.append(last)
    states, last = [np.concatenate(parts) for parts in zip(*columns, strict=True)], np.concatenate(lasts)
    if config.skip == "fast_forward":
        states = [p["encoder_states.weight"] @ e for e in states]
    states = np.array(states)
    first = np.tanh(p["bridge.weight"] @ last + p["bridge.bias"]).reshape(slots, config.decoder_layers, -1)
    layers = [tuple(first[:, i]) for i in range(config.decoder_layers)]
    attentional, logits, attention = np.zeros(config.dim), [], []
    for t, i in enumerate(tgt):
        x = [target_table[i] * scale]
        x += {"start": [], "every": [last], "mean": [states.mean(0)]}[config.context]
        x += [attentional] if config.input_feeding else []
        if config.order != "after":
            asking = layers[0 if config.order == "bottom" else -1][0]
            context, weights = attend(config, of_part(p, "attention"), asking, states, t)
            x.append(context)
            attention.append(weights)
        h = np.concatenate(x)
        for n in range(config.decoder_layers):
            if config.experts and n + 1 == config.decoder_layers:
                h = h + mixture(config, of_part(p, "decoder_experts"), h)
            below, layer_parameters = h, of_part(p, f"decoder.{n}")
            inputs = np.concatenate([h, context]) if n and config.context_to_all else h
            layers[n] = cell(config.cell, layer_parameters, inputs, layers[n])
            h = layers[n][0]
            if config.skip == "residual" and n >= 2:
                h = h + below
            if config.skip == "fast_forward" and n + 1 < config.decoder_layers:
                h = np.concatenate([half_of_f(layer_parameters, inputs), h])
        if config.attention != "none" and config.order != "bottom":
            if config.order == "after":
                context, weights = attend(config, of_part(p, "attention"), h, states, t)
                attention.append(weights)
            seen = [context, h, x[0]] if config.order == "before" else [context, h]
            h = attentional = np.tanh(p["readout.weight"] @ np.concatenate(seen))
        logits.append(output @ h)
    return np.array(logits), np.array(attention)


@parametrized(RNNS)
def test_recurrent_models_equal_numpy(config):
    model = randomized(config)
    parameters = parameters_of(model)
    with torch.no_grad():
        logits, weights = model.decode(TGT, model.encode(SRC), attention=True)
    for n, (src, tgt) in enumerate(zip(unpadded(SRC), unpadded(TGT), strict=True)):
        expected, attention = run_model(config, parameters, src.tolist(), tgt.tolist())
        np.testing.assert_allclose(logits[n, : len(tgt)], expected, rtol=1e-4, atol=2e-5)
        if config.attention != "none":
            actual = weights["cross"][n, 0, :, : len(tgt), : len(src)].transpose(0, 1)
            np.testing.assert_allclose(actual, attention, atol=1e-5)


SCORES = ["plain_cosine", "cosine", "additive", "location", "general", "dot", "scaled_dot", "mlp"]


@pytest.mark.parametrize("span", ["global", "monotonic", "predictive"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("kind", SCORES)
def test_scores_and_windows_equal_numpy(kind, heads, span):
    """Every score with every window, for three sentences of different length."""
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
    parameters = parameters_of(attention)
    for n, length in enumerate(lengths):
        for t in range(6):
            source = states[n, :length].double().numpy()
            expected, rows = attend(config, parameters, queries[n, t].double().numpy(), source, t)
            np.testing.assert_allclose(context[n, t], expected, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(weights[n, :, t, :length], rows, rtol=1e-4, atol=1e-5)


def test_hard_attention_takes_the_gradient_of_soft_attention():
    """The gradient of a softmax by its formula: dL/de_s = a_s (g . v_s - sum over r of a_r g . v_r), with g = dL/dc.
    The values get the gradient of the weights that were used: only the chosen value has one."""
    torch.manual_seed(5)
    scores, values = (
        torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in ((1, 1, 1, 5), (1, 5, 1, 3))
    )
    gradient = torch.randn(3, dtype=torch.double)
    context, weights = blend(scores, torch.ones(1, 1, 1, 5, dtype=torch.bool), values, hard=True)
    context[0, 0].backward(gradient)
    chosen = int(scores.argmax())
    assert weights.flatten().tolist() == [float(s == chosen) for s in range(5)]
    assert_close(context[0, 0], values[0, chosen, 0])
    a, along = scores.detach().flatten().softmax(0), values.detach()[0, :, 0] @ gradient
    assert_close(scores.grad.flatten(), a * (along - a @ along))
    assert_close(values.grad[0, :, 0], torch.eye(5).double()[chosen][:, None] * gradient)


@pytest.mark.parametrize(("kind", "stack"), [("rnn", nn.RNN), ("gru", nn.GRU), ("lstm", nn.LSTM)])
def test_encoder_equals_torch_stack(kind, stack):
    config = recipe.Rnn(cell=kind, dim=16, encoder_layers=2, attention="dot")
    model = randomized(config)
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
            assert_close(model.encode(row[None])["values"].flatten(2), expected)


def test_initial_weights():
    torch.manual_seed(3)
    model = build_model(recipe.Rnn(dim=64, attention="cosine", tie="none"), 500, 500)
    for layer in (*model.encoder, *model.decoder):
        width = layer.hidden_size
        assert layer.bias_ih_l0.unflatten(0, (4, -1)).tolist() == [[n == 1] * width for n in range(4)]
        assert (layer.bias_hh_l0 == 0).all()
        for gate in layer.weight_hh_l0.split(width):
            assert_close(gate @ gate.T, torch.eye(width))
        limit = math.sqrt(6 / (width + 64))
        assert 0.95 * limit < layer.weight_ih_l0.abs().max() <= limit
    for table in (model.target_embedding, model.source_embedding):
        assert table.weight.std().item() == pytest.approx(1 / 8, rel=0.05)
        assert (table.weight[PAD] == 0).all()
    assert model.output.weight.std().item() == pytest.approx(1 / 8, rel=0.05)
    assert model.attention.score.offset.item() == 4


def test_gru_biases_begin_at_zero():
    model = build_model(recipe.Rnn(cell="gru", dim=16), VOCAB, VOCAB)
    assert all((parameter == 0).all() for name, parameter in model.named_parameters() if "bias" in name)


def test_only_without_attention_accuracy_falls_with_length():
    """The models copy digits. Without attention, one vector must hold the whole source, and accuracy falls with every
    digit. The same network with attention copies all lengths."""
    generator = torch.Generator().manual_seed(1)

    def batch(length: int, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        digits = torch.randint(5, 15, (rows, length), generator=generator)
        begin, end = digits.new_full((rows, 1), BOS), digits.new_full((rows, 1), EOS)
        return torch.cat([digits, end], 1), torch.cat([begin, digits], 1), torch.cat([digits, end], 1)

    accuracy = {}
    for attention in ("none", "location"):  # of all scores, location learns to copy in the fewest updates
        torch.manual_seed(1)
        config = recipe.Rnn(dim=32, cell="rnn", attention=attention, encoder_layers=1, decoder_layers=1, dropout=0.0)
        model = build_model(config, 15, 15)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for step in range(100):
            optimizer.zero_grad()
            src, tgt_in, tgt_out = batch(2 + step % 6, 64)
            F.cross_entropy(model(src, tgt_in).flatten(0, 1), tgt_out.flatten()).backward()
            optimizer.step()
        model.eval()
        accuracy[attention] = []
        for length in (2, 4, 7):
            src, _, expected = batch(length, 100)
            written = torch.full(expected.shape, PAD)
            for row, hypotheses in zip(written, search([model], src, SearchOptions(beam=1)), strict=True):
                ids = torch.tensor(hypotheses[0].ids[: length + 1])
                row[: len(ids)] = ids
            accuracy[attention].append((written == expected)[:, :length].float().mean().item())
    short, middle, long = accuracy["none"]
    assert short > middle + 0.1 and middle > long + 0.1, accuracy
    with_attention = accuracy["location"]
    assert with_attention[2] > long + 0.3, accuracy
    assert with_attention[0] - with_attention[2] < (short - long) / 2, accuracy
