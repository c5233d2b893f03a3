"""A toy corpus of distinct pairs: numbers spelled digit by digit in English and German."""

from __future__ import annotations

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ZAHLEN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


def corpus(lines: int, first: int = 0) -> tuple[str, str]:
    """Distinct pairs: numbers spelled digit by digit."""
    numbers = range(first, first + lines)
    english = "".join(" ".join(NUMBERS[int(d)] for d in str(n)) + ".\n" for n in numbers)
    german = "".join(" ".join(ZAHLEN[int(d)] for d in str(n)) + ".\n" for n in numbers)
    return english, german
