"""Options of `nmt translate` and of Translator.translate: their defaults for a model, and checks of combinations."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args, get_origin, get_type_hints

import numpy as np

from nmt_cli.errors import NmtError
from nmt_cli.search.contract import SearchOptions, options_of
from nmt_cli.search.quality import NEEDED, Quality, read_quality
from nmt_cli.store.folders import ModelFiles, ModelFolder
from nmt_cli.text.alignment import SPACE
from nmt_cli.text.lines import STDIN, check_stdin_once, check_text, normalize
from nmt_cli.text.spelling import Words
from nmt_cli.text.vocab import EOS, UNK
from nmt_cli.translate.glossary import Glossary

Below = Literal["empty", "copy"]


class ScoreOptions(TypedDict, total=False):
    """Keyword arguments of Translator.score, named as on the command line. None leaves the choice to the model."""

    alpha: float | None  # score = sum(log p) / length^alpha
    length_penalty: Literal["power", "gnmt"] | None  # gnmt: ((5 + length) / 6)^alpha takes the place of length^alpha
    coverage_penalty: float | None  # beta of the coverage penalty, which is added to the score; 0: off
    align: bool  # word alignments, from attention
    split: bool | None  # a line of several sentences goes sentence by sentence; None: as the model was trained
    batch_tokens: int  # source pieces of a batch; 0: the number that is fast for the engine


class TranslateOptions(ScoreOptions, total=False):
    """Keyword arguments of Translator.translate, in addition to those of ScoreOptions."""

    beam: int | None  # hypotheses kept; 1 is greedy search
    n_best: int  # translations of each line
    patience: float | None  # stop after patience x beam finished hypotheses; None: when no open hypothesis can win
    max_ratio: float | None  # longest output = max_ratio x source pieces + max_extra
    max_extra: int | None
    min_length: int  # pieces before the end mark
    no_repeat_ngram: int  # never repeat an n-gram of this many pieces; 0: off
    repetition_penalty: float  # above 1: pieces that were written before become less probable
    forbid: str | Iterable[str] | None  # never write the pieces of these texts
    sample: bool  # draw translations instead of searching for the best
    temperature: float  # with sample: below 1 is sharper
    top_k: int  # with sample: draw from the k most probable pieces; 0: all
    top_p: float  # with sample: draw from the fewest pieces whose probabilities reach this sum
    seed: int  # with sample: the random seed
    tokens: bool  # the log probability of each piece
    glossary: Path | str | Mapping[str, str] | None  # a TSV file, or {source term: target term}
    protect: bool  # restore placeholders, tags, URLs, emoji, numbers and unknown words that the model loses
    respell: bool  # correct typos in the source; on by default
    confidence: bool  # estimate how good each translation is; on by default
    at_least: float | None  # withhold translations with a lower confidence
    below: Below  # a withheld translation becomes an empty line, or a copy of the source
    generate: bool  # continue each line as a text of the source language, instead of translating it


@dataclass(frozen=True)
class Settings:
    """The options of one call, for one model and one engine."""

    search: SearchOptions
    batch_tokens: int  # rows x longest source of a batch
    longest_source: int  # pieces; a longer line is split
    positions: int = 0  # pieces of a text that the engine can read or write, the end mark included; 0: any number
    protect: bool = True
    align: bool = False
    tokens: bool = False
    glossary: Glossary | None = None
    split: bool = True  # translate sentence by sentence
    words: Words | None = None  # the words that the model knows; None: no typo is corrected
    known_cases: frozenset[str] = frozenset()  # "capitals", "title_case": a model that knows a case reads it as it is
    quality: Quality | None = None  # the estimates of the model; None: it has none
    confidence: bool = False  # estimate the confidence, too, which needs coverage
    at_least: float = 0.0  # withhold translations with a lower confidence
    copy_below: bool = False  # write the source in place of a withheld translation

    @property
    def coverage(self) -> bool:
        return self.confidence and self.quality is not None and self.quality.needs_coverage


def search_options(models: Sequence[ModelFolder], options: TranslateOptions) -> SearchOptions:
    """The search that the first model's recipe describes, changed by the options."""
    model = models[0]
    names = {field.name for field in fields(SearchOptions)}
    changes = {name: value for name, value in options.items() if name in names and value is not None}
    changes.setdefault("beam", max(model.recipe.translate.beam, options.get("n_best") or 1))
    forbidden = {UNK}  # the piece of unknown characters is never part of a translation
    forbid = options.get("forbid")
    for text in [forbid] if isinstance(forbid, str) else forbid or ():
        wanted = normalize(check_text(text, "a text of --forbid"), model.vocab.normalization)
        pieces = set(model.vocab.target.encode(wanted)) - {EOS, UNK, model.vocab.target.piece_to_id(SPACE)}
        if not pieces:
            raise NmtError(f"--forbid {text!r}: the model has no piece for it and never writes it", "leave it out")
        forbidden |= pieces
    search = replace(
        options_of(model.recipe),
        **changes,  # type: ignore[arg-type]
        max_length=min(filter(None, (one.recipe.model.max_positions for one in models)), default=0),  # 0: no limit
        forbidden=tuple(sorted(forbidden)),
    )
    if not search.sample and (search.temperature, search.top_k, search.top_p) != (1, 0, 1):
        raise NmtError("--temperature, --top-k and --top-p have an effect only with --sample", "add --sample")
    if search.generate:
        for each in models:
            if each.recipe.model.family != "decoder":
                problem = (
                    f'--generate needs a decoder-only model, not one with model.family = "{each.recipe.model.family}"'
                )
                raise NmtError(problem, 'train one with model.family = "decoder" and train.source_loss = 1')
            if not each.recipe.train.source_loss:
                raise NmtError("this model has not learned to continue a text", "train one with train.source_loss = 1")
    for name, used in (("--align", options.get("align")), ("--coverage-penalty", search.coverage_penalty)):
        if used and not model.recipe.model.attends:
            raise NmtError(f"this model has no attention for {name}", f"leave {name} out, or train one that attends")
    return search


def quality_of(models: Sequence[ModelFolder]) -> Quality | None:
    """The estimates of the model. An ensemble has none: its log p is not that of the model that was calibrated."""
    return read_quality(ModelFiles(models[0].path).quality) if len(models) == 1 else None


def check_quality(models: Sequence[ModelFolder], quality: Quality | None, options: TranslateOptions) -> None:
    """Refuse --at-least if there are no estimates."""
    if options.get("at_least") is not None and quality is None:
        reason = f"{models[0].path} has no quality.json" if len(models) == 1 else "an ensemble has none"
        hint = f"leave --at-least out; nmt train writes the file at its end, if it has {NEEDED}"
        raise NmtError(f"--at-least needs a confidence, and {reason}", hint)


# What a value may be if its hint has this type, and how a message calls it. The numbers of numpy are numbers, too.
_KINDS: dict[object, tuple[Any, str]] = {
    bool: ((bool, np.bool_), "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    Path: (os.PathLike, "a path"),
    Mapping: (Mapping, "a dict"),
    Iterable: (Iterable, "a list"),
}
_hints = cache(get_type_hints)


def check_types(options: Mapping[str, object], owner: object) -> None:
    """Refuse values that do not fit the type hints of their owner. A Literal is checked with its choices."""
    hints = _hints(owner)
    for name, value in options.items():
        kinds = [get_origin(kind) or kind for kind in get_args(hints[name]) or (hints[name],)]
        known = [_KINDS[kind] for kind in kinds if kind in _KINDS]
        fits = isinstance(value, tuple(types for types, _ in known)) and (bool in kinds or not isinstance(value, bool))
        if known and not fits:
            expected = " or ".join(words for _, words in known)
            problem = f"--{name.replace('_', '-')} must be {expected}, not {value!r:.80}"
            raise NmtError(problem, "nmt translate --help explains the options")


def check_options(options: TranslateOptions, has_prefix: bool) -> None:
    """Refuse wrong values of options, and options that contradict each other, on the command line and in Python."""
    check_types({name: value for name, value in options.items() if value is not None}, TranslateOptions)
    at_least, below, glossary = options.get("at_least"), options.get("below") or "empty", options.get("glossary")
    if at_least is not None and not 0 <= at_least <= 1:
        raise NmtError(f"--at-least must be from 0 to 1, not {at_least}", "80 % is 0.8")
    if below not in get_args(Below):
        raise NmtError(
            f"--below must be empty or copy, not {below}", "copy writes the source of a withheld translation"
        )
    if below != "empty" and at_least is None:
        raise NmtError("--below has an effect only with --at-least", "add --at-least, such as --at-least 0.8")
    if (options.get("batch_tokens") or 0) < 0:
        raise NmtError(f"--batch-tokens must be 0 or more, not {options['batch_tokens']}", "0: a number that is fast")
    if options.get("generate") and (has_prefix or glossary or options.get("align") or at_least is not None):
        named = "a prefix, --glossary, --align or --at-least"
        raise NmtError(f"--generate cannot be combined with {named}", "leave these options out")
    if isinstance(glossary, Mapping):
        for text in chain.from_iterable(glossary.items()):
            check_text(text, "a term of the glossary")


def check_command(
    form: str,
    score_only: bool,
    target: Path | None,
    options: TranslateOptions,
    prefix_file: Path | None,
    inputs: Sequence[Path],
) -> None:
    """Refuse options of the command line that contradict each other, before any file is read."""
    check_options(options, prefix_file is not None)
    n_best, align, tokens, glossary = (options.get(name) for name in ("n_best", "align", "tokens", "glossary"))
    searching = prefix_file or glossary or options.get("forbid") or options.get("sample") or n_best != 1
    if score_only and (searching or options.get("generate") or options.get("at_least") is not None):
        named = "--prefix-file, --glossary, --forbid, --sample, --n-best, --generate or --at-least"
        raise NmtError(f"--score-only cannot be combined with {named}", "leave these options out")
    if target is not None and not score_only:
        raise NmtError("--target names translations to score, but --score-only is missing", "add --score-only")
    if form == "text" and (n_best != 1 or align):
        name = "--align" if n_best == 1 else f"--n-best {n_best}"
        raise NmtError(f"{name} does not fit on one line of text", "add --format jsonl or --format tsv")
    if form != "jsonl" and tokens:
        raise NmtError("--tokens needs --format jsonl", "add --format jsonl")
    check_stdin_once([*(inputs or [STDIN]), prefix_file, target, glossary if isinstance(glossary, Path) else None])
