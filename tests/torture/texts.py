"""Hostile text. A line in is a line out, and each line is translated as if it were alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from torture.bench import Bench, Case, Failure, judge

REPEATS = 250  # of each command
LINES = 12
PARTS = [
    "one", "two three", "nine.", "NINE EIGHT", "seven, six!", "0", "12,345.67", "1.2.3.4", "-5 °C", "{x}", "{{x}}",
    "%s", "%1$s", "%(n)d", "$HOME", "<b>", "</b>", '<a href="x y">', "<", ">", "&amp;", "&#x0A;",
    "https://a.b/c?d=e&f#g", "a@b.c", "`code x`", "```", "--force", "/usr/bin/x", "C:\\x", "file.tar.gz", "</s>",
    "<s>", "<pad>", "<unk>", "<0x0A>", "⁇", "▁", "▁▁", "@@", "\t", " ", "   ", "\u00a0", "\u200b", "\u200d",
    "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\r", "\x1b[31m", "\ufeff", "\ufffd", "\u202e", "\u0301", "e\u0301",
    "é", "ﬁ", "İ", "ß", "ǅ", "😀", "👩‍👩‍👧", "🇩🇪", "猫が好き。", "我喜欢", "ไทย", "नमस्ते", "مرحبا", "שלום", "\U000e0041",
    "\U0010ffff", "(", ")", "[", "]", "«", "»", "“", "…", "....", "!!!!!!", "a" * 300, "ab " * 100, "9" * 200,
    "1 " * 150, "-" * 100, "_", "'", '"', "\\n",
]  # fmt: skip
BROKEN = [b"\xff", b"\xfe\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xe2\x82", b"\xf4\x90\x80\x80", b"\x80", b"\x00"]
FORBIDDEN = "\r\x00\u2028\u2029\x85\x0b\x0c"  # characters that end a line somewhere

ENGINES = {name: ("translate", "one/run", "--engine", name, "--workers", "1") for name in ("torch", "ctranslate2")}


def make_line(chance: random.Random) -> str:
    if chance.random() < 0.1:
        return chance.choice(["", " ", "\t", "\u200b", "\u3000 "])
    if chance.random() < 0.05:
        return "".join(chr(chance.randrange(1, 0xD800)) for _ in range(30)).replace("\n", "")
    space = chance.choice([" ", "", " "])
    return space.join(chance.choice(PARTS) for _ in range(chance.randrange(1, 15)))


class Texts:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def lines(self, engine: str, lines: list[str]) -> tuple[str, list[str]]:
        result = self.bench.nmt(*ENGINES[engine], stdin="".join(line + "\n" for line in lines).encode())
        verdict, found = judge(result), result.out.decode().split("\n")[:-1]
        if verdict == "right" and len(found) != len(lines):
            raise Failure(f"{len(lines)} lines in, {len(found)} lines out")
        return verdict, found

    def translate(self, engine: str, chance: random.Random) -> str:
        """Other neighbors and another order give the same translations."""
        self.bench.fresh("one/run")
        lines = [make_line(chance) for _ in range(LINES)]
        verdict, found = self.lines(engine, lines)
        if verdict != "right":
            raise Failure("text is refused")
        for line, translation in zip(lines, found, strict=True):
            if set(translation) & set(FORBIDDEN):
                raise Failure(f"a character that ends a line, in the translation of {line!r}")
            if not line.strip() and translation:
                raise Failure("a blank line has a translation")
        order = chance.sample(range(LINES), LINES // 2)
        _, again = self.lines(engine, [lines[n] for n in order])
        if again != [found[n] for n in order]:
            wrong = next(n for n, text in zip(order, again, strict=True) if text != found[n])
            raise Failure(f"with other neighbors, {lines[wrong]!r} has another translation")
        return "right"

    def broken(self, engine: str, chance: random.Random) -> str:
        """Text that is not UTF-8, or has a NUL byte, is refused with the number of its line."""
        self.bench.fresh("one/run")
        lines = [make_line(chance).encode() for _ in range(LINES)]
        wrong = chance.randrange(LINES)
        lines[wrong] = lines[wrong][: chance.randrange(1 + len(lines[wrong]))].decode(
            errors="ignore"
        ).encode() + chance.choice(BROKEN)
        result = self.bench.nmt(*ENGINES[engine], stdin=b"".join(line + b"\n" for line in lines))
        verdict = judge(result, False)
        if f"line {wrong + 1}" not in result.err:
            raise Failure(f"line {wrong + 1} is not named: {result.err[-300:]}")
        return verdict

    def write(self, chance: random.Random) -> list[list[str]]:
        self.bench.fresh("one")
        sides = [[make_line(chance) for _ in range(200)] for _ in range(2)]
        for name, lines in zip(("h.en", "h.de"), sides, strict=True):
            (self.bench.place / name).write_bytes("".join(line + "\n" for line in lines).encode())
        return sides

    def prepare(self, chance: random.Random) -> str:
        """Twice the same bytes; every line is accounted for."""
        self.write(chance)
        words = (
            "prepare",
            "--source",
            "h.en",
            "--target",
            "h.de",
            "--set",
            f"vocab.size={chance.choice([300, 500, 1000])}",
        )
        words += ("--set", f"vocab.byte_fallback={chance.choice(['true', 'false'])}", "--set", "vocab.coverage=0.9")
        first = self.bench.nmt(*words, "--out", "new1")
        verdict = judge(first)
        if verdict == "right":
            judge(self.bench.nmt(*words, "--out", "new2"), True)
            ids = [sorted((self.bench.place / name).glob("*.ids")) for name in ("new1", "new2")]
            if not ids[0] or any(a.read_bytes() != b.read_bytes() for a, b in zip(*ids, strict=True)):
                raise Failure("the same text gives other data")
        return verdict

    def score(self, chance: random.Random) -> str:
        self.write(chance)
        result = self.bench.nmt("score", "h.en", "--ref", "h.de")
        return judge(result, b"BLEU" in result.out)


def cases(bench: Bench) -> Iterator[Case]:
    texts = Texts(bench)
    for number in range(REPEATS):
        for engine in ENGINES:
            yield Case("texts", f"translate, {engine} {number}", partial(texts.translate, engine))
            yield Case("texts", f"broken UTF-8, {engine} {number}", partial(texts.broken, engine))
        yield Case("texts", f"prepare {number}", texts.prepare)
        yield Case("texts", f"score {number}", texts.score)
