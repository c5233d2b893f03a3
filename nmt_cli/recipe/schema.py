"""Every key of a recipe: its type, range, default and meaning. Nothing else declares them.

`nmt recipes --keys` and docs/recipe.md are printed from these dataclasses. recipe/load.py reads recipe files.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

MOST_BEAM = 10_000  # hypotheses of a sentence; memory grows with them
MOST_POSITIONS = 100_000  # pieces of a sentence


@dataclass(frozen=True)
class Range:
    """The limits of a number. Both limits are allowed values, except `high` if `open_high` is set."""

    low: float | None = None
    high: float | None = None
    open_high: bool = False

    def problem(self, value: float) -> str | None:
        if self.low is not None and value < self.low:
            return f"must be at least {self.low:g}, not {value:g}"
        if self.high is not None and (value > self.high or (self.open_high and value == self.high)):
            return f"must be {'below' if self.open_high else 'at most'} {self.high:g}, not {value:g}"
        return None


Count = Annotated[int, Range(low=1)]
Whole = Annotated[int, Range(low=0)]
# The upper limits are far above every known model. They refuse a damaged or hostile recipe before memory is taken.
Width = Annotated[int, Range(low=2, high=65_536)]
Inner = Annotated[int, Range(low=1, high=262_144)]
Layers = Annotated[int, Range(low=1, high=1000)]
Positions = Annotated[int, Range(low=2, high=MOST_POSITIONS)]
Beam = Annotated[int, Range(low=1, high=MOST_BEAM)]
Amount = Annotated[float, Range(low=0)]
Share = Annotated[float, Range(low=0, high=1, open_high=True)]
Part = Annotated[float, Range(low=0, high=1)]


@dataclass(frozen=True)
class Corpus:
    """Parallel text: two files of equal length, or one TSV file with the source in the first column."""

    source: Path
    target: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.source,) if self.target is None else (self.source, self.target)

    def __str__(self) -> str:
        return " + ".join(map(str, self.paths))


@dataclass(frozen=True)
class Clean:
    """[data.clean]: the rules that drop training pairs. The report counts the pairs of each rule."""

    empty: Annotated[bool, "drop a pair if one side is blank"] = True
    max_tokens: Annotated[Whole, "drop a pair if one side has more pieces than this. 0: off"] = 250
    max_ratio: Annotated[
        Amount, "drop a pair if a side has over max_ratio times the other's pieces, plus 5. 0: off"
    ] = 3.0
    identical: Annotated[bool, "drop a pair if both sides are the same text"] = True
    wrong_script: Annotated[bool, "drop a pair if most letters of a side are not in the script of its language"] = True
    duplicates: Annotated[bool, "drop a pair that occurred before"] = True
    overlap: Annotated[bool, "drop a pair if its source or target is also in valid or test"] = True


@dataclass(frozen=True)
class Data:
    """[data]: the corpora, and the folder of the prepared data. A corpus is ["a.en", "a.de"] or "both.tsv"."""

    source_lang: Annotated[str, "language code of the source, such as en; data.clean.wrong_script needs it"] = ""
    target_lang: Annotated[str, "language code of the target, such as de; also selects the tokenizer of BLEU"] = ""
    folder: Annotated[Path | None, "folder of the corpus files. Unset: the folder of the recipe"] = None
    train: Annotated[tuple[Corpus, ...], "training corpora: plain, .gz, .xz or .zst; - is standard input"] = ()
    valid: Annotated[tuple[Corpus, ...], "validation corpora; they are never cleaned"] = ()
    test: Annotated[tuple[Corpus, ...], "test corpora; they are never cleaned"] = ()
    hold_out: Annotated[
        Whole, "validation pairs taken from the training corpus when data.valid is empty (at most 10 %)"
    ] = 1000
    prepared: Annotated[Path | None, "folder of the prepared data. Unset: data/NAME"] = None
    normalize: Annotated[Literal["nfc", "nfkc", "none"], "Unicode normalization of all text"] = "nfc"
    clean: Clean = field(default_factory=Clean)

    def corpora(self) -> dict[str, tuple[Corpus, ...]]:
        return {"train": self.train, "valid": self.valid, "test": self.test}


@dataclass(frozen=True)
class Vocab:
    """[vocab]: the SentencePiece vocabulary."""

    reuse: Annotated[Path | None, "reuse the vocabulary of this run, model or prepared folder"] = None
    type: Annotated[
        Literal["bpe", "unigram", "char", "word"],
        "kind of piece. bpe and unigram: learned; char: one character; word: the text between two spaces",
    ] = "bpe"
    size: Annotated[
        int,
        "number of pieces, including 4 special ones; per side if joint = false. 0: chosen from the text",
        Range(low=0, high=1_000_000),
    ] = 0
    joint: Annotated[bool, "one vocabulary for both sides"] = True
    byte_fallback: Annotated[bool, "write unknown characters as bytes"] = False
    # The default of SentencePiece, 0.9995, drops the digits of Multi30k and Tatoeba, which are rare.
    coverage: Annotated[
        float, "share of the characters that get a piece; 0.9995 for Chinese and Japanese", Range(low=0.98, high=1)
    ] = 1.0
    symbols: Annotated[tuple[str, ...], 'texts that always stay one piece, such as ["<2de>"]'] = ()
    sample: Annotated[Count, "learn from at most this many pairs, taken at even distances"] = 1_000_000

    def problems(self) -> Iterator[tuple[str, str]]:
        if 0 < self.size < 6:
            yield "size", f"must be 0 or at least 6, not {self.size}"
        if len(set(self.symbols)) < len(self.symbols):
            yield "symbols", "lists a symbol twice"
        if any(not symbol.strip() for symbol in self.symbols):
            yield "symbols", "has a blank symbol"
        if self.byte_fallback and self.type in ("char", "word"):
            yield "byte_fallback", f'needs type = "bpe" or "unigram"; type = "{self.type}" has no pieces for bytes'


# Keys that several families share.
Activation = Annotated[Literal["relu", "gelu", "swish"], "activation function of the feed-forward layer"]
Norm = Annotated[Literal["post", "pre"], "LayerNorm after each residual sum (post), or before each sublayer (pre)"]
Tie = Annotated[
    Literal["all", "target", "none"],
    "shared weights. all: both embeddings and the output; target: target embedding and output",
]
PositionsJoin = Annotated[
    Literal["add", "concat"],
    "input of the first layer from word vector e and position vector p: e + p (add), or W [e; p] + b (concat)",
]
MaxPositions = Annotated[Positions, "longest sentence in pieces, including the end mark"]
ExpertCount = Annotated[int, Range(low=0, high=10_000)]
ExpertsTop = Annotated[Count, "number of experts that each token goes through; must be below experts"]
ExpertsBalance = Annotated[Amount, "weight of the two training losses that keep the experts in equal use"]


@dataclass(frozen=True)
class Transformer:
    """[model] with family = "transformer": Vaswani et al. 2017, "Attention is all you need"."""

    family: Annotated[Literal["transformer"], "architecture of the model"] = "transformer"
    dim: Annotated[Width, "width of the model (d_model)"] = 256
    heads: Annotated[Count, "number of attention heads; must divide dim"] = 4
    ff: Annotated[Inner, "width of the feed-forward layer"] = 1024
    encoder_layers: Annotated[Layers, "number of encoder layers"] = 3
    decoder_layers: Annotated[Layers, "number of decoder layers"] = 3
    activation: Activation = "relu"
    norm: Norm = "pre"
    positions: Annotated[
        Literal["sinusoidal", "timing", "learned", "none"],
        "kind of position encoding. timing: the sinusoids of Marian and M2M-100; "
        "none: the encoder reads a bag of words",
    ] = "sinusoidal"
    first_position: Annotated[Whole, "with sinusoidal or timing: number of the first position. M2M-100 has 2"] = 0
    max_positions: MaxPositions = 1024
    tie: Tie = "all"
    dropout: Annotated[Share, "dropout on embeddings and on the output of each sublayer"] = 0.1
    attention_dropout: Annotated[Share, "dropout on attention weights"] = 0.0
    ff_dropout: Annotated[Share, "dropout inside the feed-forward layer"] = 0.0
    positions_join: PositionsJoin = "add"
    scale_embeddings: Annotated[bool, "multiply embeddings by the square root of dim, as in the paper"] = True
    embedding_norm: Annotated[bool, "LayerNorm of the sum of embedding and position, as in mBART"] = False
    output_bias: Annotated[bool, "add a bias to the output layer, as in Marian"] = False
    experts: Annotated[
        ExpertCount, "feed-forward networks of each layer, of which a token uses experts_top. 0: one, used by all"
    ] = 0
    experts_top: ExpertsTop = 2
    experts_balance: ExpertsBalance = 0.01

    attends: ClassVar[bool] = True

    @property
    def learned_positions(self) -> int:
        return self.max_positions if self.positions == "learned" else 0

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from _attention_problems(self)
        if self.first_position and self.positions not in ("sinusoidal", "timing"):
            yield "first_position", f'needs sinusoids, but positions = "{self.positions}"'
        yield from _expert_problems(self)


@dataclass(frozen=True)
class Rnn:
    """[model] with family = "rnn": Sutskever 2014; Bahdanau 2015; Luong 2015; Zhou 2016; Wu 2016, each with others."""

    family: Annotated[Literal["rnn"], "architecture of the model"] = "rnn"
    cell: Annotated[Literal["rnn", "gru", "lstm"], "recurrent cell; rnn is the plain cell with tanh"] = "lstm"
    dim: Annotated[Width, "width of the embeddings and states"] = 256
    encoder_layers: Annotated[Layers, "number of encoder layers"] = 1
    decoder_layers: Annotated[Layers, "number of decoder layers"] = 1
    directions: Annotated[
        Literal["forward", "both", "both_first", "interleaved"],
        "directions in which the encoder reads. both: each layer has both, each with half of dim; both_first: only the "
        "lowest layer has both (GNMT); interleaved: two columns of half of dim change direction with each layer "
        "(Deep-Att)",
    ] = "both"
    skip: Annotated[
        Literal["none", "residual", "fast_forward"],
        "connections around layers. residual: from the third layer on, the input is added to the output (GNMT); "
        "fast_forward: half of W x of a layer is also an input of the next layer (Deep-Att)",
    ] = "none"
    context: Annotated[
        Literal["start", "every", "mean"],
        "first state of the decoder: from the last encoder state. Each input: nothing more (start), also the last "
        "encoder state (every), also the mean of all encoder states (mean)",
    ] = "start"
    attention: Annotated[
        Literal["none", "plain_cosine", "cosine", "additive", "location", "general", "dot", "scaled_dot", "mlp"],
        "score function of the attention. none: no attention",
    ] = "additive"
    order: Annotated[
        Literal["before", "after", "bottom"],
        "attention before the recurrence, by the last state (Bahdanau; slower), after it, by the new state (Luong), or "
        "before it, by the last state of the lowest layer (GNMT, Deep-Att)",
    ] = "after"
    context_to_all: Annotated[bool, "give the attention context to all decoder layers, not only to the lowest"] = False
    span: Annotated[
        Literal["global", "monotonic", "predictive"],
        "source positions that attention sees: all, those near the target position, or those near a predicted position",
    ] = "global"
    radius: Annotated[Count, "with monotonic or predictive: positions on each side of the center"] = 10
    location_size: Annotated[Inner, "with attention = location: source positions that can get a score"] = 64
    projections: Annotated[bool, "project the states to queries, keys and values"] = False
    heads: Annotated[Count, "number of attention heads; must divide dim; 2 or more need projections = true"] = 1
    input_feeding: Annotated[bool, "add the last attention context to the next input of the decoder; slower"] = False
    hard: Annotated[bool, "attend only to the position with the largest weight (straight-through gradient)"] = False
    tie: Tie = "all"
    dropout: Annotated[Share, "dropout on embeddings, between layers and before the output"] = 0.1
    experts: Annotated[
        ExpertCount, "feed-forward networks before the highest layer of each side; a token uses experts_top. 0: none"
    ] = 0
    experts_ff: Annotated[Inner, "inner width of an expert"] = 1024
    experts_top: ExpertsTop = 2
    experts_balance: ExpertsBalance = 0.01

    max_positions: ClassVar[int] = 0  # not a key: a recurrent model reads sentences of any length
    learned_positions: ClassVar[int] = 0

    @property
    def attends(self) -> bool:
        return self.attention != "none"

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.directions != "forward" and self.dim % 2:
            yield "dim", f'must be even with directions = "{self.directions}", not {self.dim}'
        if self.skip == "fast_forward" and self.dim % 4:
            yield "dim", f'must be a multiple of 4 with skip = "fast_forward", not {self.dim}'
        if self.skip == "residual" and max(self.encoder_layers, self.decoder_layers) < 3:
            yield "skip", "residual connections begin at the third layer; set encoder_layers or decoder_layers to 3"
        yield from _expert_problems(self)
        if self.experts and min(self.encoder_layers, self.decoder_layers) < 2:
            yield "experts", "stand between two layers; set encoder_layers and decoder_layers to 2 or more"
        if self.experts and (self.directions == "interleaved" or self.skip == "fast_forward"):
            yield "experts", 'have no place beside directions = "interleaved" and skip = "fast_forward"'
        if self.attention == "none":
            for key, changed in {
                "order": self.order != "after",
                "context_to_all": self.context_to_all,
                "span": self.span != "global",
                "projections": self.projections,
                "heads": self.heads > 1,
                "input_feeding": self.input_feeding,
                "hard": self.hard,
            }.items():
                if changed:
                    yield key, 'needs attention, but attention = "none"'
        elif self.dim % self.heads:
            yield "heads", f"must divide dim = {self.dim}; {self.heads} does not"
        elif self.heads > 1 and not self.projections:
            yield "heads", f"{self.heads} heads need projections = true; without projections all heads are equal"
        if self.order != "after" and self.input_feeding:
            yield "input_feeding", f'needs order = "after"; with order = "{self.order}" the context is an input already'
        if self.order == "after" and self.context_to_all and self.attention != "none":
            yield (
                "context_to_all",
                'needs order = "before" or "bottom": with "after" the layers come before the context',
            )


@dataclass(frozen=True)
class Conv:
    """[model] with family = "conv": Gehring et al. 2017, "Convolutional sequence to sequence learning"."""

    family: Annotated[Literal["conv"], "architecture of the model"] = "conv"
    dim: Annotated[Width, "width of the model"] = 256
    kernel: Annotated[int, "number of positions that a convolution sees; must be odd", Range(low=1, high=999)] = 3
    encoder_layers: Annotated[Layers, "number of encoder layers"] = 4
    decoder_layers: Annotated[Layers, "number of decoder layers, each with attention"] = 3
    max_positions: MaxPositions = 1024
    tie: Tie = "all"
    dropout: Annotated[Share, "dropout on embeddings, inputs of convolutions and before the output"] = 0.1

    attends: ClassVar[bool] = True

    @property
    def learned_positions(self) -> int:
        return self.max_positions  # a convolutional model always learns its positions

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.kernel % 2 == 0:
            yield "kernel", _even_kernel(self.kernel)


@dataclass(frozen=True)
class ByteNet:
    """[model] with family = "bytenet": Kalchbrenner et al. 2016, "Neural machine translation in linear time"."""

    family: Annotated[Literal["bytenet"], "architecture of the model"] = "bytenet"
    dim: Annotated[Width, "width of the model; the convolutions have half of it"] = 256
    kernel: Annotated[int, "number of positions that a convolution reads; must be odd", Range(low=1, high=999)] = 3
    encoder_layers: Annotated[Layers, "number of residual blocks of the encoder"] = 10
    decoder_layers: Annotated[Layers, "number of residual blocks of the decoder"] = 10
    cycle: Annotated[
        int, "after this many blocks with dilations 1, 2, 4, ... the dilation is 1 again", Range(low=1, high=16)
    ] = 5
    unfold_ratio: Annotated[
        float, "positions of the encoder: unfold_ratio times the source pieces, plus unfold_extra", Range(1, 10)
    ] = 1.2
    unfold_extra: Annotated[int, "see unfold_ratio; the decoder sees zeros after these positions", Range(0, 10_000)] = 0
    tie: Tie = "all"
    dropout: Annotated[Share, "dropout on embeddings, after each block and before the output"] = 0.1

    max_positions: ClassVar[int] = 0  # not a key: convolutions read sentences of any length
    learned_positions: ClassVar[int] = 0
    attends: ClassVar[bool] = False

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.kernel % 2 == 0:
            yield "kernel", _even_kernel(self.kernel)
        if self.dim % 2:
            yield "dim", f"must be even, not {self.dim}: the convolutions have half the width"


def _even_kernel(kernel: int) -> str:
    return f"must be odd, not {kernel}: the encoder sees equally many positions on both sides"


@dataclass(frozen=True)
class DecoderOnly:
    """[model] with family = "decoder": Liu et al. 2018, one causal Transformer over source and target."""

    family: Annotated[Literal["decoder"], "architecture of the model"] = "decoder"
    dim: Annotated[Width, "width of the model (d_model)"] = 256
    heads: Annotated[Count, "number of attention heads; must divide dim"] = 4
    ff: Annotated[Inner, "width of the feed-forward layer"] = 1024
    layers: Annotated[Layers, "number of layers; source and target go through all of them"] = 6
    activation: Activation = "relu"
    norm: Norm = "pre"
    positions: Annotated[
        Literal["sinusoidal", "learned", "none"], "kind of position encoding; each side starts at 0"
    ] = "sinusoidal"
    max_positions: MaxPositions = 1024
    tie: Tie = "all"
    dropout: Annotated[Share, "dropout on embeddings and on the output of each sublayer"] = 0.1
    attention_dropout: Annotated[Share, "dropout on attention weights"] = 0.0
    ff_dropout: Annotated[Share, "dropout inside the feed-forward layer"] = 0.0
    positions_join: PositionsJoin = "add"

    attends: ClassVar[bool] = True

    @property
    def learned_positions(self) -> int:
        return self.max_positions if self.positions == "learned" else 0

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from _attention_problems(self)


def _attention_problems(model: Transformer | DecoderOnly) -> Iterator[tuple[str, str]]:
    if model.dim % model.heads:
        yield "heads", f"must divide dim = {model.dim}; {model.heads} does not"
    if model.dim % 2:
        yield "dim", f"must be even, not {model.dim}: each position is encoded as pairs of sine and cosine"
    if model.positions == "none" and model.positions_join == "concat":
        yield "positions_join", 'needs positions, but positions = "none"'


def _expert_problems(model: Transformer | Rnn) -> Iterator[tuple[str, str]]:
    if model.experts and model.experts_top >= model.experts:
        yield "experts_top", f"must be below experts = {model.experts}, not {model.experts_top}"


# One class per family; model/build.py builds a model from each. Every class has:
#   dim, tie
#   max_positions       the longest sentence in pieces that the model is made for; 0: any length
#   learned_positions   the number of learned position vectors, a hard limit on the length; 0: no limit
#   attends             whether the target attends to the source
Model = Transformer | Rnn | Conv | ByteNet | DecoderOnly
FAMILIES: dict[str, type[Model]] = {
    "transformer": Transformer,
    "rnn": Rnn,
    "conv": Conv,
    "bytenet": ByteNet,
    "decoder": DecoderOnly,
}


def not_exportable(model: Model) -> str:
    """The setting that neither CTranslate2 nor Hugging Face transformers can run; empty if there is none."""
    if not isinstance(model, Transformer):
        return f'model.family = "{model.family}"'
    return f"model.experts = {model.experts}" if model.experts else ""


@dataclass(frozen=True)
class Augment:
    """[train.augment]: the shares of training pairs of each epoch that are changed (data/augment.py)."""

    capitals: Annotated[Part, "share of pairs seen in capitals, on both sides"] = 0.0
    title_case: Annotated[Part, "share of pairs in which each word begins with a capital, on both sides"] = 0.0
    lower_case: Annotated[Part, "share of pairs with the source in lower case"] = 0.0
    no_final_mark: Annotated[Part, "share of pairs without the final mark, if both sides end with one"] = 0.0
    typos: Annotated[Part, "share of pairs with typos in the source, about one in each third word"] = 0.0

    def problems(self) -> Iterator[tuple[str, str]]:
        if (cases := round(self.capitals + self.title_case + self.lower_case, 9)) > 1:
            yield "capitals", f"capitals, title_case and lower_case are {cases:g} together; at most 1 is possible"


@dataclass(frozen=True)
class Train:
    """[train]: the training. It stops at the first limit among steps, epochs, tokens, minutes, flops and patience."""

    out: Annotated[Path | None, "folder of the run. Unset: runs/NAME"] = None
    auto: Annotated[
        bool,
        "choose the [model] and [train] keys that are not stated (docs/automatic.md); true if a recipe states none",
    ] = False
    seed: Annotated[int, "seed of initialization, shuffling, dropout and sampling", Range(low=0, high=10**9)] = 1

    steps: Annotated[Whole, "stop after this many updates. 0: no limit"] = 100_000
    epochs: Annotated[Amount, "stop after this many passes over the data. 0: no limit"] = 0.0
    tokens: Annotated[Whole, "stop after this many target tokens. 0: no limit"] = 0
    minutes: Annotated[Amount, "stop after this many minutes, including validation. 0: no limit"] = 0.0
    flops: Annotated[Amount, "stop after this many operations, 6 per weight and token. 0: no limit"] = 0.0
    patience: Annotated[Whole, "stop after this many validations without a new best. 0: no limit"] = 10

    batch_tokens: Annotated[
        int, "largest micro-batch: pairs times length of the longest side", Range(low=8, high=10**8)
    ] = 4096
    accumulate: Annotated[int, "number of micro-batches per update, over all processes", Range(low=1, high=100_000)] = 1
    max_length: Annotated[Whole, "leave out pairs with more pieces than this on a side. 0: keep all"] = 0

    optimizer: Annotated[
        Literal["adam", "adamw", "muon"],
        "adamw decouples the weight decay; muon updates matrices with Muon and the rest with AdamW",
    ] = "adam"
    beta1: Annotated[Share, "beta1 of Adam"] = 0.9
    beta2: Annotated[Share, "beta2 of Adam"] = 0.98
    epsilon: Annotated[float, "epsilon of Adam", Range(low=1e-15)] = 1e-9
    weight_decay: Annotated[Amount, "weight decay of matrices; biases and norms have none"] = 0.0
    clip: Annotated[Amount, "clip the gradient to this norm. 0: off"] = 0.0
    schedule: Annotated[
        Literal["inverse_sqrt", "cosine", "linear", "wsd", "constant"],
        "learning rate after the warm-up; cosine, linear and wsd reach 0 when training ends",
    ] = "inverse_sqrt"
    warmup: Annotated[Whole, "number of updates from 0 to the peak learning rate"] = 4000
    lr: Annotated[Amount, "peak learning rate. 0: scale * (dim * warmup)^-0.5, as in the paper"] = 0.0
    scale: Annotated[Amount, "factor of the learning rate when lr = 0"] = 1.0
    cooldown: Annotated[
        float,
        "with schedule = wsd: share of the training, at its end, in which the rate falls to 0",
        Range(low=0, high=1),
    ] = 0.2

    label_smoothing: Annotated[Share, "share of the target probability spread over the vocabulary"] = 0.1
    consistency: Annotated[
        Literal["none", "rdrop", "simcut"], "extra loss that keeps two noisy passes alike: R-Drop or SimCut"
    ] = "none"
    consistency_weight: Annotated[Amount, "weight of the consistency loss"] = 3.0
    cutoff: Annotated[Share, "with simcut: share of input tokens set to zero in the second pass"] = 0.05
    reward: Annotated[
        Literal["none", "gleu"], "maximize the expected GLEU of samples of the model (Wu et al. 2016); for fine-tuning"
    ] = "none"
    reward_samples: Annotated[int, "with reward: samples drawn for each sentence", Range(low=2, high=1000)] = 5
    reward_after: Annotated[Part, "with reward: share of the training that passes before the rewards begin"] = 0.0
    likelihood_weight: Annotated[Amount, "with reward: weight of the usual loss beside the reward"] = 0.017
    source_loss: Annotated[
        Amount, "with family = decoder: weight of the loss on the source, as a language model. 0: off"
    ] = 0.0
    subword_sampling: Annotated[Share, "rate of BPE-dropout, or alpha of unigram sampling. 0: off"] = 0.0
    augment: Augment = field(default_factory=Augment)

    ema: Annotated[Share, "decay of the moving average of the weights, which is validated and saved. 0: off"] = 0.0
    average: Annotated[
        Whole, "at the end, average this many last checkpoints and keep the average if it is better. 0: off"
    ] = 0

    valid_every: Annotated[Count, "updates between validations; a validation also saves a checkpoint"] = 1000
    valid_minutes: Annotated[Amount, "largest number of minutes between validations. 0: off"] = 0.0
    valid_lines: Annotated[Whole, "validate on this many lines, from the first. 0: all lines"] = 1000
    valid_beam: Annotated[Beam, "beam size of validation. 1: greedy"] = 1
    metric: Annotated[Literal["bleu", "chrf", "loss"], "the figure that decides which checkpoint is best"] = "bleu"
    keep: Annotated[Count, "number of last checkpoints to keep; the best checkpoint is always kept"] = 3
    log_every: Annotated[Count, "number of updates between two log entries"] = 50

    device: Annotated[Literal["auto", "cpu", "cuda", "mps", "xpu"], "device that computes"] = "auto"
    processes: Annotated[
        int, "CPU processes that share each batch, without torchrun. 0: automatic", Range(low=0, high=1024)
    ] = 0
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], "number format. auto: the fastest that works"] = (
        "auto"
    )
    compile: Annotated[bool, "use torch.compile: slow to start; meant for GPUs, but not measured there"] = False
    tf32: Annotated[bool, "use TF32 matrix products on GPUs"] = True
    pin_memory: Annotated[bool, "copy batches to a GPU from pinned memory"] = True
    checkpoint_activations: Annotated[
        bool, "keep only the inputs of each layer for the backward pass and compute the rest again; saves memory"
    ] = False
    shard: Annotated[
        bool, "each process keeps only a part of the weights and moments: for models that do not fit on one device"
    ] = False
    pad_to: Annotated[Whole, "pad lengths to a multiple of this. 0: 8 on GPUs and the like, 1 on a CPU"] = 0
    tensorboard: Annotated[bool, "also write curves for TensorBoard; needs nmt-cli[tensorboard]"] = False

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from ((f"augment.{key}", text) for key, text in self.augment.problems())
        for key, used in {"reward": self.reward != "none", "source_loss": self.source_loss}.items():
            if used and self.consistency != "none":
                yield key, f'cannot be combined with consistency = "{self.consistency}"'
        if self.shard and self.optimizer == "muon":
            yield "shard", 'cannot be combined with optimizer = "muon", which needs whole matrices; use "adamw"'
        if self.shard and self.reward != "none":
            yield "shard", f'cannot be combined with reward = "{self.reward}", which translates during a pass'
        if self.auto:  # nmt train completes the settings, and checks them then
            return
        if self.schedule != "inverse_sqrt" and not self.lr:
            yield "lr", f'must be set with schedule = "{self.schedule}", for example 1e-3'
        if self.schedule == "inverse_sqrt" and not self.warmup:
            yield "warmup", 'must be at least 1 with schedule = "inverse_sqrt"'
        budget = self.steps or self.epochs or self.tokens or self.minutes or self.flops
        if self.schedule in ("cosine", "linear", "wsd") and not budget:
            yield "steps", f'schedule = "{self.schedule}" needs an end: set steps, epochs, tokens, minutes or flops'
        if not (budget or self.patience):
            yield "steps", "training would never stop: set steps, epochs, tokens, minutes, flops or patience"


@dataclass(frozen=True)
class Translate:
    """[translate]: the defaults of `nmt translate` for the trained model."""

    beam: Annotated[Beam, "beam size: number of hypotheses in the search. 1: greedy"] = 5
    alpha: Annotated[Amount, "length penalty: score = sum(log p) / length^alpha"] = 1.0
    length_penalty: Annotated[
        Literal["power", "gnmt"],
        "what the score is divided by: length^alpha, or ((5 + length) / 6)^alpha (Wu et al. 2016)",
    ] = "power"
    coverage_penalty: Annotated[
        float,
        "beta of the coverage penalty, which is added to the score (Wu et al. 2016). 0: off",
        Range(low=0, high=10),
    ] = 0.0
    max_ratio: Annotated[float, "longest output: max_ratio times the source pieces, plus max_extra", Range(low=0.1)] = (
        2.0
    )
    max_extra: Annotated[Whole, "pieces of the longest output that do not depend on the source"] = 10


@dataclass(frozen=True)
class Recipe:
    """A whole experiment."""

    data: Data = field(default_factory=Data)
    vocab: Vocab = field(default_factory=Vocab)
    model: Model = field(default_factory=Transformer)
    train: Train = field(default_factory=Train)
    translate: Translate = field(default_factory=Translate)
    name: str = "recipe"  # the name of the recipe file; not a key
    stated: frozenset[str] = frozenset()  # the keys that a file or an override sets; not a key

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.model.tie == "all" and not self.vocab.joint:
            yield "model.tie", '"all" needs vocab.joint = true; with two vocabularies use "target" or "none"'
        if self.train.checkpoint_activations and isinstance(self.model, Rnn):
            yield "train.checkpoint_activations", "recurrent models cannot compute a layer again"
        if self.train.compile and isinstance(self.model, Rnn):
            yield "train.compile", "recurrent models are compiled in many small parts"
        if self.train.shard and not isinstance(self.model, Transformer | DecoderOnly):
            yield "train.shard", f'needs model.family = "transformer" or "decoder", not "{self.model.family}"'
        if self.train.subword_sampling and self.vocab.type in ("char", "word"):
            yield (
                "train.subword_sampling",
                f'needs pieces to cut in other ways; vocab.type = "{self.vocab.type}" has none',
            )
        if self.train.source_loss and self.model.family != "decoder":
            yield "train.source_loss", f'needs model.family = "decoder", not "{self.model.family}"'
        elif self.train.source_loss and not self.vocab.joint:
            yield "train.source_loss", "needs vocab.joint = true: the model writes both languages"
        if self.translate.coverage_penalty and not self.model.attends:
            yield "translate.coverage_penalty", "needs a model with attention"
        positions, most = self.model.max_positions, self.data.clean.max_tokens
        if 0 < positions <= most and not self.leaves_open("model.max_positions"):
            yield "model.max_positions", f"must be above data.clean.max_tokens = {most}, not {positions}"

    def leaves_open(self, name: str) -> bool:
        """Whether `nmt train` chooses this key, or takes it from the model of --from."""
        return self.train.auto and name not in self.stated

    @property
    def run_folder(self) -> Path:
        assert self.train.out is not None  # set by load_recipe
        return self.train.out

    @property
    def prepared_folder(self) -> Path:
        assert self.data.prepared is not None  # set by load_recipe
        return self.data.prepared

    @property
    def is_prepared(self) -> bool:
        return (self.prepared_folder / "meta.json").is_file()


@dataclass(frozen=True)
class Key:
    """One key of a recipe, as the dataclasses above declare it."""

    name: str
    type: Any
    doc: str
    range: Range | None
    default: Any


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The annotations of a class. Python would evaluate them for each recipe that a command reads."""
    return get_type_hints(kind, include_extras=True)


def keys_of(kind: type, prefix: str = "") -> Iterator[Key]:
    hints = _hints(kind)
    for item in dataclasses.fields(kind):
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint):
            yield from keys_of(hint, f"{prefix}{item.name}.")  # type: ignore[arg-type]
            continue
        base, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if types.NoneType in get_args(base):  # X | None: a recipe writes None by leaving the key out
            base = get_args(base)[0]
        doc = next((note for note in notes if isinstance(note, str)), "")
        limits = next((note for note in notes if isinstance(note, Range)), None)
        yield Key(prefix + item.name, base, doc, limits, item.default)
