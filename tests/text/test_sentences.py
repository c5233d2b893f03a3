"""Splitting text into sentences."""

from __future__ import annotations

import pytest
import sentencex
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.text.sentences import split_sentences

# A bar marks the places of cuts.
CASES = [
    ("en", "The cat sleeps. |Two dogs run!  |Where? |Here"),
    ("en", "three men walk. |two dogs run."),
    ("en", "THE MAN IS TALL. |THE WOMAN IS NOT."),
    ("en", "Dr. Smith paid $3.50 to J. R. Tolkien. |He left."),
    ("en", "He works at Acme Inc. in the U.S. and sleeps at 5 p.m. every day. |Good."),
    ("en", "Python 3.11.2 is out, e.g. for us, i.e. you. |Wait… what? |No."),
    ("en", "Then... he came back. |Hm."),
    ("en", '"Really?" she asked. |He said "Go home." |She left.'),
    ("en", "1. Open the file. |2. Close it. |3. Sleep."),
    ("en", "See https://example.org/a.b?c=1. |Write to a.b@example.org. |Call `os.path.join()`. |Done."),
    ("en", "What?! |No!! |Yes."),
    ("de", "Am 3. Oktober ist z. B. frei. |Das ist u. a. gut. |Dr. Meier kommt."),
    ("fr", "M. Dupont est là, avec M. Adams. |Où va-t-il ? |Là-bas !"),
    ("ru", "Он род. в 1990 году. |Привет!"),
    ("zh", "你好。|我叫王小明。|你呢？|我很好！"),
    ("ja", "今日はいい天気です。|行きましょう。"),
    ("jpn_Jpan", "今日はいい天気です。|行きましょう。"),
    ("hi", "यह एक वाक्य है। |यह दूसरा है।"),
    ("ar", "هل أنت بخير؟ |نعم، أنا بخير. |شكرا."),
    ("el", "Τι κάνεις; |Καλά είμαι."),
    ("", "Hello there. |How are you?"),
    ("no-such-language", "Hello there. |How are you?"),
]


@pytest.mark.parametrize(("language", "marked"), CASES)
def test_sentences_end_where_a_reader_sees_their_end(language, marked):
    assert split_sentences(marked.replace("|", ""), language) == marked.split("|")


def test_sentencex_gets_slices_of_a_long_text_without_spaces(monkeypatch):
    """It takes quadratic time for such a text. A slice ends with a sentence, and its quote."""
    seen = []
    segment = sentencex.segment
    monkeypatch.setattr(sentencex, "segment", lambda language, text: [seen.append(text), *segment(language, text)][1:])
    sentences = ["他说：「我叫王小明，今年二十岁。」", "你呢？！", "我很好！"]
    assert split_sentences("".join(2000 * sentences), "zh") == 2000 * sentences
    assert max(map(len, seen)) < 1100 and len(seen) > 20


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.sampled_from(["en", "de", "zh", "ar", "th", ""]))
def test_sentences_of_any_text_join_to_the_text(text, language):
    sentences = split_sentences(text, language)
    assert "".join(sentences) == text and all(sentences)
