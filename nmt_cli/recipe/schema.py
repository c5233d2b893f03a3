"""Every key of a recipe: its type, range, default and meaning. Nothing else declares them.

`nmt recipes --keys` and docs/recipe.md are printed from these dataclasses. recipe/load.py reads recipe files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Range:
    """Limits of a number, both included unless `open_high`."""

    low: float | None = None
    high: float | None = None
    open_high: bool = False

    def problem(self, value: float) -> str | None:
        if self.low is not None and value < self.low:
            return f"must be at least {self.low:g}, not {value:g}"
        if self.high is not None and (value > self.high or (self.open_high and value == self.high)):
            return f"must be {'below' if self.open_high else 'at most'} {self.high:g}, not {value:g}"
        return None


POSITIVE = Range(low=1)
NOT_NEGATIVE = Range(low=0)
PROBABILITY = Range(low=0, high=1, open_high=True)


@dataclass(frozen=True)
class Corpus:
    """Parallel text: two files of equal length, or one TSV file with the source in the first column."""

    source: Path
    target: Path | None = None

    def __str__(self) -> str:
        return str(self.source) if self.target is None else f"{self.source} + {self.target}"


@dataclass(frozen=True)
class Clean:
    """[data.clean]: which pairs of the training corpora are dropped. Every rule is counted in the report."""

    empty: Annotated[bool, "a side is blank"] = True
    max_tokens: Annotated[int, "a side has more pieces than this; 0: off", NOT_NEGATIVE] = 250
    max_ratio: Annotated[float, "one side has this many times the pieces of the other, +5; 0: off", NOT_NEGATIVE] = 3.0
    identical: Annotated[bool, "both sides are the same text"] = True
    wrong_script: Annotated[bool, "most letters are not of the language's script; needs the languages"] = True
    duplicates: Annotated[bool, "the same pair came before"] = True
    overlap: Annotated[bool, "source or target also stands in valid or test"] = True


@dataclass(frozen=True)
class Data:
    """[data]: the corpora and where the prepared data go. A corpus is ["a.en", "a.de"] or "both.tsv"."""

    source_lang: Annotated[str, "language code, as en; chooses the script rule and the tokeniser of BLEU"] = ""
    target_lang: Annotated[str, "language code, as de"] = ""
    folder: Annotated[Path | None, "folder that the files below are in; unset: the recipe's"] = None
    train: Annotated[tuple[Corpus, ...], "training corpora; plain, .gz, .xz, .zst; - is standard input"] = ()
    valid: Annotated[tuple[Corpus, ...], "validation corpora, never cleaned"] = ()
    test: Annotated[tuple[Corpus, ...], "test corpora, never cleaned"] = ()
    hold_out: Annotated[int, "with no valid: so many training pairs, a tenth at most, become it", NOT_NEGATIVE] = 1000
    prepared: Annotated[Path | None, "folder of the prepared data; unset: data/NAME"] = None
    normalize: Annotated[Literal["nfc", "nfkc", "none"], "Unicode normalisation, before anything else"] = "nfc"
    clean: Clean = field(default_factory=Clean)


@dataclass(frozen=True)
class Vocab:
    """[vocab]: SentencePiece."""

    reuse: Annotated[Path | None, "take the vocabulary of this run, model or prepared folder instead"] = None
    type: Annotated[Literal["bpe", "unigram"], "how pieces are learnt"] = "bpe"
    size: Annotated[int, "pieces, special ones included; of each side if not joint", Range(low=6)] = 8000
    joint: Annotated[bool, "one vocabulary for both sides"] = True
    byte_fallback: Annotated[bool, "spell unknown characters as bytes"] = False
    # SentencePiece's own default of 0.9995 loses the digits of Multi30k and Tatoeba: rare, but not dispensable.
    coverage: Annotated[
        float, "share of the text's characters that get a piece; 0.9995 for Chinese, Japanese", Range(low=0.9, high=1)
    ] = 1.0
    symbols: Annotated[tuple[str, ...], 'pieces never split, such as ["<2de>"]'] = ()
    sample: Annotated[int, "learn from this many pairs at most, spread evenly", POSITIVE] = 1_000_000

    def problems(self) -> Iterator[tuple[str, str]]:
        if len(set(self.symbols)) < len(self.symbols):
            yield "symbols", "lists a symbol twice"
        if any(not symbol.strip() for symbol in self.symbols):
            yield "symbols", "has a blank symbol"


@dataclass(frozen=True)
class Transformer:
    """[model] with family = "transformer": Vaswani et al. 2017, "Attention is all you need"."""

    family: Annotated[Literal["transformer"], "architecture"] = "transformer"
    dim: Annotated[int, "width of the model, d_model", Range(low=2)] = 256
    heads: Annotated[int, "attention heads; must divide dim", POSITIVE] = 4
    ff: Annotated[int, "width of the feed-forward layer", POSITIVE] = 1024
    encoder_layers: Annotated[int, "layers of the encoder", POSITIVE] = 3
    decoder_layers: Annotated[int, "layers of the decoder", POSITIVE] = 3
    activation: Annotated[Literal["relu", "gelu", "swish"], "of the feed-forward layer"] = "relu"
    norm: Annotated[Literal["post", "pre"], "LayerNorm after each residual sum (paper), or before each part"] = "pre"
    positions: Annotated[Literal["sinusoidal", "learned"], "position encoding"] = "sinusoidal"
    max_positions: Annotated[int, "longest sentence in pieces, end mark included", Range(low=2)] = 1024
    tie: Annotated[Literal["all", "target", "none"], "which of the two embeddings and the output are one"] = "all"
    dropout: Annotated[float, "on embeddings and on the output of each part", PROBABILITY] = 0.1
    attention_dropout: Annotated[float, "on attention weights", PROBABILITY] = 0.0
    ff_dropout: Annotated[float, "inside the feed-forward layer", PROBABILITY] = 0.0

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from _attention_problems(self.dim, self.heads)


@dataclass(frozen=True)
class Rnn:
    """[model] with family = "rnn": Sutskever et al. 2014; Bahdanau et al. 2015; Luong et al. 2015."""

    family: Annotated[Literal["rnn"], "architecture"] = "rnn"
    cell: Annotated[Literal["rnn", "gru", "lstm"], "recurrence; rnn is the plain one, with tanh"] = "lstm"
    dim: Annotated[int, "width of embeddings and states", Range(low=2)] = 256
    encoder_layers: Annotated[int, "layers of the encoder", POSITIVE] = 1
    decoder_layers: Annotated[int, "layers of the decoder", POSITIVE] = 1
    bidirectional: Annotated[bool, "read the source in both directions, each with half of dim"] = True
    context: Annotated[
        Literal["start", "every"], "the encoder's last state begins the decoder, or is also part of its every input"
    ] = "start"
    attention: Annotated[
        Literal["none", "cosine", "additive", "location", "general", "dot", "scaled_dot", "mlp"],
        "score of a source position, or no attention",
    ] = "additive"
    span: Annotated[
        Literal["global", "monotonic", "predictive"], "look at all positions, or near the target's own, or a predicted"
    ] = "global"
    radius: Annotated[int, "monotonic, predictive: positions on each side of the centre", POSITIVE] = 10
    location_size: Annotated[int, "location: source positions that can be scored", POSITIVE] = 64
    projections: Annotated[bool, "project states to queries, keys and values"] = False
    heads: Annotated[int, "attention heads; more than one need projections; must divide dim", POSITIVE] = 1
    input_feeding: Annotated[bool, "what was last attended to is part of the next input; slower"] = False
    tie: Annotated[Literal["all", "target", "none"], "which of the two embeddings and the output are one"] = "all"
    dropout: Annotated[float, "on embeddings, between layers and before the output", PROBABILITY] = 0.1

    @property
    def max_positions(self) -> int:
        return 0  # no limit: a recurrence counts no positions

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.bidirectional and self.dim % 2:
            yield "dim", f"must be even with bidirectional = true, not {self.dim}"
        if self.attention == "none":
            for key, changed in {
                "span": self.span != "global",
                "projections": self.projections,
                "heads": self.heads > 1,
                "input_feeding": self.input_feeding,
            }.items():
                if changed:
                    yield key, 'is of attention, and attention = "none"'
        elif self.dim % self.heads:
            yield "heads", f"must divide dim = {self.dim}, and {self.heads} does not"
        elif self.heads > 1 and not self.projections:
            yield "heads", f"{self.heads} of them need projections = true, or they would all be alike"


@dataclass(frozen=True)
class Conv:
    """[model] with family = "conv": Gehring et al. 2017, "Convolutional sequence to sequence learning"."""

    family: Annotated[Literal["conv"], "architecture"] = "conv"
    dim: Annotated[int, "width of the model", Range(low=2)] = 256
    kernel: Annotated[int, "positions that a convolution sees; odd", POSITIVE] = 3
    encoder_layers: Annotated[int, "layers of the encoder", POSITIVE] = 4
    decoder_layers: Annotated[int, "layers of the decoder, each with attention", POSITIVE] = 3
    max_positions: Annotated[int, "longest sentence in pieces, end mark included", Range(low=2)] = 1024
    tie: Annotated[Literal["all", "target", "none"], "which of the two embeddings and the output are one"] = "all"
    dropout: Annotated[float, "on embeddings, on the input of each convolution, before the output", PROBABILITY] = 0.1

    @property
    def positions(self) -> str:
        return "learned"

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.kernel % 2 == 0:
            yield "kernel", f"must be odd, not {self.kernel}: the encoder sees as much on the left as on the right"


@dataclass(frozen=True)
class DecoderOnly:
    """[model] with family = "decoder": Liu et al. 2018, one causal Transformer over source and target."""

    family: Annotated[Literal["decoder"], "architecture"] = "decoder"
    dim: Annotated[int, "width of the model, d_model", Range(low=2)] = 256
    heads: Annotated[int, "attention heads; must divide dim", POSITIVE] = 4
    ff: Annotated[int, "width of the feed-forward layer", POSITIVE] = 1024
    layers: Annotated[int, "layers, which both sides go through", POSITIVE] = 6
    activation: Annotated[Literal["relu", "gelu", "swish"], "of the feed-forward layer"] = "relu"
    norm: Annotated[Literal["post", "pre"], "LayerNorm after each residual sum, or before each part"] = "pre"
    positions: Annotated[Literal["sinusoidal", "learned"], "position encoding; each side counts from 0"] = "sinusoidal"
    max_positions: Annotated[int, "longest sentence in pieces, end mark included", Range(low=2)] = 1024
    tie: Annotated[Literal["all", "target", "none"], "which of the two embeddings and the output are one"] = "all"
    dropout: Annotated[float, "on embeddings and on the output of each part", PROBABILITY] = 0.1
    attention_dropout: Annotated[float, "on attention weights", PROBABILITY] = 0.0
    ff_dropout: Annotated[float, "inside the feed-forward layer", PROBABILITY] = 0.0

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from _attention_problems(self.dim, self.heads)


def _attention_problems(dim: int, heads: int) -> Iterator[tuple[str, str]]:
    if dim % heads:
        yield "heads", f"must divide dim = {dim}, and {heads} does not"
    if dim % 2:
        yield "dim", f"must be even, not {dim}: positions are pairs of sine and cosine"


# One class per family; `build_model` in model/build.py and FAMILIES here list them. Each has dim, tie and
# max_positions, the longest sentence that it can read or write; 0: any.
Model = Transformer | Rnn | Conv | DecoderOnly
FAMILIES: dict[str, type[Model]] = {"transformer": Transformer, "rnn": Rnn, "conv": Conv, "decoder": DecoderOnly}


@dataclass(frozen=True)
class Train:
    """[train]: how the model is trained. Stops at whichever of steps, epochs, tokens, minutes, patience comes first."""

    out: Annotated[Path | None, "folder of the run; unset: runs/NAME"] = None
    seed: Annotated[int, "of initialisation, shuffling, dropout and sampling", Range(low=0, high=10**9)] = 1

    steps: Annotated[int, "stop after this many updates; 0: no limit", NOT_NEGATIVE] = 100_000
    epochs: Annotated[float, "... passes over the data", NOT_NEGATIVE] = 0.0
    tokens: Annotated[int, "... target tokens", NOT_NEGATIVE] = 0
    minutes: Annotated[float, "... minutes of training, validation included", NOT_NEGATIVE] = 0.0
    flops: Annotated[float, "... floating-point operations: 6 for each weight and token", NOT_NEGATIVE] = 0.0
    patience: Annotated[int, "... validations in a row without a new best; 0: never", NOT_NEGATIVE] = 10

    batch_tokens: Annotated[int, "rows x longest side of a micro-batch, at most", Range(low=8)] = 4096
    accumulate: Annotated[int, "micro-batches to an update, shared among all processes", POSITIVE] = 1
    max_length: Annotated[int, "training pairs with more pieces on a side are left out; 0: none", NOT_NEGATIVE] = 0

    optimizer: Annotated[
        Literal["adam", "adamw", "muon"],
        "adamw decouples weight decay; muon: for matrices, adamw for the rest",
    ] = "adam"
    beta1: Annotated[float, "of Adam", PROBABILITY] = 0.9
    beta2: Annotated[float, "of Adam", PROBABILITY] = 0.98
    epsilon: Annotated[float, "of Adam", Range(low=1e-15)] = 1e-9
    weight_decay: Annotated[float, "on matrices; not on biases and norms", NOT_NEGATIVE] = 0.0
    clip: Annotated[float, "largest norm of the gradient; 0: off", NOT_NEGATIVE] = 0.0
    schedule: Annotated[
        Literal["inverse_sqrt", "cosine", "linear", "wsd", "constant"],
        "rate after the warm-up; cosine, linear, wsd end with the budget",
    ] = "inverse_sqrt"
    warmup: Annotated[int, "steps from 0 to the peak", NOT_NEGATIVE] = 4000
    lr: Annotated[float, "peak learning rate; 0: the paper's, scale * (dim * warmup)^-0.5", NOT_NEGATIVE] = 0.0
    scale: Annotated[float, "factor on the paper's rate", NOT_NEGATIVE] = 1.0
    cooldown: Annotated[float, "wsd: share of the budget that cools down to 0", Range(low=0, high=1)] = 0.2

    label_smoothing: Annotated[float, "share of the probability spread over the vocabulary", PROBABILITY] = 0.1
    consistency: Annotated[
        Literal["none", "rdrop", "simcut"], "second noisy pass, drawn to the first: R-Drop, SimCut"
    ] = "none"
    consistency_weight: Annotated[float, "weight of that term", NOT_NEGATIVE] = 3.0
    cutoff: Annotated[float, "simcut: share of the input tokens zeroed in the second pass", PROBABILITY] = 0.05
    subword_sampling: Annotated[float, "BPE-dropout rate, or alpha of unigram sampling; 0: off", PROBABILITY] = 0.0

    ema: Annotated[
        float, "decay of the moving average of the weights that is validated and kept; 0: off", PROBABILITY
    ] = 0.0
    average: Annotated[
        int, "at the end, average this many last checkpoints if that is better; 0: off", NOT_NEGATIVE
    ] = 0

    valid_every: Annotated[int, "validate and save every so many updates", POSITIVE] = 1000
    valid_minutes: Annotated[float, "... or minutes, whichever is first; 0: off", NOT_NEGATIVE] = 0.0
    valid_lines: Annotated[int, "measure on the first so many lines; 0: all", NOT_NEGATIVE] = 1000
    valid_beam: Annotated[int, "beam of that translation", POSITIVE] = 1
    metric: Annotated[Literal["bleu", "chrf", "loss"], "what best means"] = "bleu"
    keep: Annotated[int, "last checkpoints to keep, beside the best", POSITIVE] = 3
    log_every: Annotated[int, "updates between lines of the log", POSITIVE] = 50

    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], "where to compute"] = "auto"
    processes: Annotated[int, "that share a batch on a CPU without torchrun; 0: as many as help", NOT_NEGATIVE] = 0
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], "auto: the fastest that passes a trial"] = "auto"
    compile: Annotated[bool, "torch.compile: slow to start; for GPUs, where it was not measured"] = False
    tf32: Annotated[bool, "TF32 matrix products on GPUs"] = True
    pin_memory: Annotated[bool, "batches go to a GPU from pinned memory"] = True
    tensorboard: Annotated[bool, "curves for TensorBoard too; needs nmt-cli[tensorboard]"] = False

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.schedule != "inverse_sqrt" and not self.lr:
            yield "lr", f'is needed with schedule = "{self.schedule}", as 1e-3'
        if self.schedule == "inverse_sqrt" and not self.warmup:
            yield "warmup", 'must be at least 1 with schedule = "inverse_sqrt"'
        budget = self.steps or self.epochs or self.tokens or self.minutes or self.flops
        if self.schedule in ("cosine", "linear", "wsd") and not budget:
            yield "steps", f'or epochs, tokens or minutes: schedule = "{self.schedule}" has to know where it ends'
        if not (budget or self.patience):
            yield "steps", "nothing would ever stop the training: set steps, epochs, tokens, minutes or patience"


@dataclass(frozen=True)
class Translate:
    """[translate]: defaults of `nmt translate` for the trained model."""

    beam: Annotated[int, "hypotheses kept; 1: greedy", POSITIVE] = 5
    alpha: Annotated[float, "length penalty: score = sum(log p) / length^alpha", NOT_NEGATIVE] = 1.0
    max_ratio: Annotated[float, "longest output, as a multiple of the source's pieces, +10", Range(low=0.1)] = 2.0


@dataclass(frozen=True)
class Recipe:
    """A whole experiment."""

    data: Data = field(default_factory=Data)
    vocab: Vocab = field(default_factory=Vocab)
    model: Model = field(default_factory=Transformer)
    train: Train = field(default_factory=Train)
    translate: Translate = field(default_factory=Translate)
    name: str = "recipe"  # of the file; not a key

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.model.tie == "all" and not self.vocab.joint:
            yield "model.tie", '"all" needs vocab.joint = true; with two vocabularies use "target" or "none"'
        if 0 < self.model.max_positions <= self.data.clean.max_tokens:
            yield (
                "model.max_positions",
                f"must be above data.clean.max_tokens = {self.data.clean.max_tokens}, not {self.model.max_positions}",
            )

    @property
    def run_folder(self) -> Path:
        assert self.train.out is not None  # set by load_recipe
        return self.train.out

    @property
    def learned_positions(self) -> int:
        """How many the model has; 0, if it makes as many as it needs."""
        return self.model.max_positions if getattr(self.model, "positions", "") == "learned" else 0

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


def keys_of(kind: type, prefix: str = "") -> Iterator[Key]:
    hints = get_type_hints(kind, include_extras=True)
    for item in dataclasses.fields(kind):
        hint = hints[item.name]
        if dataclasses.is_dataclass(hint):
            yield from keys_of(hint, f"{prefix}{item.name}.")  # type: ignore[arg-type]
            continue
        base, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        doc = next((note for note in notes if isinstance(note, str)), "")
        limits = next((note for note in notes if isinstance(note, Range)), None)
        yield Key(prefix + item.name, base, doc, limits, item.default)
