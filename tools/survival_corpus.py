"""Make tests/translate/survival.tsv: python tools/survival_corpus.py django-5.2.19.tar.gz sphinx-9.2.0.tar.gz ...

English lines with text that a translation must keep. They come from the documentation and the interface strings of
packages from PyPI: the source archives of Django 5.2.19, Sphinx 9.2.0, JupyterLab 4.6.6, click 8.5.1 (BSD licenses),
pytest 9.2.0, black 26.10.1, rich 15.0.0 (MIT license), and the wheel jupyterlab_language_pack_fr_fr 4.5.post3 (BSD).

A row has the kind of the line, the line, and then a kind and a text for everything that must survive. A pair of tags is
written with … for the text between them. A kind with fewer
than LINES lines is filled by rule: its INSERTED things are put into real lines that have nothing else to keep, and the
kind of such a row ends with a star. The patterns are not those of nmt_cli/translate/protect.py, which they measure.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

HEADER = """\
# Lines of the documentation and messages of these packages, chosen by tools/survival_corpus.py.
# BSD license: Django 5.2.19, Copyright (c) Django Software Foundation and individual contributors;
# Sphinx 9.2.0, Copyright (c) 2007-2026 by the Sphinx team; JupyterLab 4.6.6 and its French language pack 4.5.post3,
# Copyright (c) 2015-2026 Project Jupyter Contributors; click 8.5.1, Copyright 2014 Pallets.
# MIT license: pytest 9.2.0, Copyright (c) 2004 Holger Krekel and others; rich 15.0.0, Copyright (c) 2020 Will McGugan;
# black 26.10.1, Copyright (c) 2018 Łukasz Langa.
"""
OUT = Path(__file__).parents[1] / "tests/translate/survival.tsv"
LINES = 30  # of each kind
MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
# A text belongs to the first kind that matches it.
KINDS = {
    "code": r"``[^`\s](?:[^`]*[^`\s])?``|(?<![`\w>])`[^`<>\s](?:[^`<>]*[^`<>\s])?`(?![`_\w])",
    "pair": r"<([a-z]+)(?: [^<>\0]*)?>[^<>]*\w[^<>]*</\1>",  # of tags, with the text between them
    "URL": r"https?://[^\s<>\"'`()\[\]]*[\w/]",
    "e-mail": r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "tag": r"</?[A-Za-z][^<>]*>",
    "entity": r"&(?:#\d+|[a-z]+);",
    "braces": r"[$%]?\{+[^{}]*\}+",
    "percent": r"(?<![\d%\w])%(?:\(\w+\)|\d+\$)?[\d.]*[a-z](?![a-zA-Z])",
    "%1": r"(?<![\d%\w])%L?\d+(?![\w$.])",
    "$NAME": r"\$[A-Z_][A-Z0-9_]+",
    "option": r"(?<![\w-])--[a-z][a-z-]+[a-z]",
    "path": r"(?<![\w:/<.~])(?:~|\.{1,2})?/[a-z][\w-]*(?:/[\w.-]*\w)+/?|[A-Z]:\\[\w\\.]+\w",
    "file name": r"(?<![\w./@-])[\w-]+\.(?:py|txt|md|rst|toml|cfg|ini|html|json|ya?ml|css|js|tsx?|zip)\b(?![\w/])",
    "mention": r"(?<![\w&`(\[])[@#][A-Za-z]\w+(?![\w-])",
    "date": r"(?<![\w-])\d{4}-\d\d-\d\d(?![\w-])",
    "written date": rf"\b{MONTH} \d\d?, \d{{4}}\b|\b\d\d? {MONTH},? \d{{4}}\b",
    "version": r"(?<![\w.])v?\d+(?:\.\d+){2,}(?!\w|\.\d)",
    "size": r"(?<!\w)\d+[x×]\d+(?!\w)",
    "unit": r"(?<![\w.])\d+(?:\.\d+)? ?(?:[kKMG]i?B|bytes|bits|ms|px|km|cm|mm|kg|°C|%)(?!\w)",
    "emoji": "[\U0001f300-\U0001faff☀-➿][\U0001f300-\U0001faff\ufe0f\u200d]*",
    "number": r"(?<![\w.,:/#-])(?:\d{2,}|\d+[.,:]\d+)(?:[.,:]\d+)*(?![\w.,:/-]*\w)",
    "foreign word": r"\b\w*[^\W\x00-\xff]\w*\b",
}
INSERTED = {
    "pair": ["<b>", "<i>", '<a href="x">'],
    "e-mail": ["jane.doe@example.org", "help+fr@mail.example.com"],
    "entity": ["&nbsp;", "&amp;", "&#39;"],
    "braces": ["{name}", "{0}", "${HOME}", "{{count}}"],
    "percent": ["%s", "%d", "%1$s"],
    "%1": ["%1", "%L1", "%2"],
    "$NAME": ["$HOME", "$PATH", "$LANG"],
    "path": ["/etc/hosts", "~/.config/app", "./src/main", "C:\\Users\\Public"],
    "mention": ["@jane_doe", "#travel"],
    "date": ["2024-05-31", "1999-12-01"],
    "written date": ["March 14, 2021", "2 October 1869"],
    "size": ["1920x1080", "3×4"],
    "unit": ["10 km", "500 ms", "25 °C", "3.5 kg"],
    "emoji": ["😀", "👍🏽", "❤️", "🚀🚀"],
    "foreign word": ["Gdańsk", "Пушкин", "北京", "Erdoğan", "Ελλάδα"],
}
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
PROSE = re.compile(r"[A-Z`*@%<{$\[][^|]*[a-z]{2}.* .*[.!?:]$")
PATTERNS = {kind: re.compile(pattern) for kind, pattern in KINDS.items()}


def things(line: str) -> list[tuple[str, str]]:
    """(kind, text) of everything in a line that a translation must keep. Each character counts once."""
    found: list[tuple[int, str, str]] = []
    for kind, pattern in PATTERNS.items():
        for match in pattern.finditer(line):
            text = re.sub(r">[^<>]*<", ">…<", match[0]) if kind == "pair" else match[0]
            found.append((match.start(), kind, text))
        line = pattern.sub(lambda match: "\0" * len(match[0]), line)
    return [(kind, text) for _, kind, text in sorted(found)]


def sentences(text: str) -> Iterator[str]:
    """The sentences of the paragraphs of a page in reStructuredText or Markdown."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.strip("\n").splitlines()
        if lines and not re.match(r"\s|\.\.|::|```|\||#|[=~^-]{3}|>>>", lines[0]):
            body = re.sub(r"^[*-] +", "", " ".join(" ".join(lines).split()))
            yield from SENTENCE.split(body)


def lines_of(archive: Path) -> Iterator[str]:
    """English lines: sentences of the documentation, and the keys of catalogs of messages."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in sorted(name for name in wheel.namelist() if name.endswith(".json")):
                yield from json.loads(wheel.read(name))
        return
    with tarfile.open(archive) as source:
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            if re.search(r"/tests?/|/testing/|LICENSE", member.name) or not (file := source.extractfile(member)):
                continue
            if re.search(r"/(docs?/.*|[A-Z]+)\.(rst|md|txt)$", member.name):
                yield from sentences(file.read().decode("utf-8", "replace"))
            elif member.name.endswith("/locale/en/LC_MESSAGES/django.po"):
                for quoted in re.findall(r'^msgid ((?:".*"\n)+)', file.read().decode(), re.MULTILINE):
                    yield "".join(json.loads(part) for part in quoted.splitlines())


def main(archives: list[str]) -> None:
    chosen = random.Random(1)
    every = [line for archive in archives for line in lines_of(Path(archive))]
    messages = [
        line
        for line in every
        if 20 <= len(line) <= 200 and line.isprintable() and PROSE.match(line) and "::" not in line
    ]
    lines = sorted(set(messages))
    chosen.shuffle(lines)
    found = {line: things(line) for line in lines}
    lines = [line for line in lines if not any("\0" in text for _, text in found[line])]  # one thing inside another
    plain = [line for line in lines if not found[line] and 6 < line.count(" ") < 25]
    drawn: dict[str, str] = {}
    for kind in KINDS:
        real = [line for line in lines if line not in drawn and kind in dict(found[line]) and len(found[line]) < 6]
        drawn.update(dict.fromkeys(real[:LINES], kind))
        texts = INSERTED.get(kind, [])
        for n in range(LINES - len(real) if texts else 0):
            words = plain.pop().split(" ")
            at, text = chosen.randrange(1, len(words) - 1), texts[n % len(texts)]
            if kind == "pair":
                words[at : at + 2] = [f"{text}{words[at]} {words[at + 1]}</{text[1]}>"]
            else:
                words.insert(at, text)
            drawn[" ".join(words)] = f"{kind}*"
    drawn.update(dict.fromkeys(plain[: 2 * LINES], "plain"))
    with OUT.open("w", encoding="utf-8") as file:
        file.write(HEADER)
        for line, kind in drawn.items():
            file.write("\t".join([kind, line, *(part for thing in things(line) for part in thing)]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
