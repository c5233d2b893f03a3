"""The grammar of the demo corpus: phrases and clauses, built in English and French at once.

corpus.py draws sentences with these functions; lexicon.py has the words. A Phrase has the properties that its neighbors
agree with (person, gender, number). A Clause has a subject, a verb and a tense; realize() puts it into words. French
words are joined as they are (de le ami, je ai). At the end spell() elides and contracts the whole sentence.

Words that translate each other carry the same mark: "cat⟦7⟧", "chat⟦7⟧". A mark with a question mark is a possible
link, every other mark is a sure link. Marks stay at the ends of words, so that the rules of spelling can see how a word
begins. At the end bare() removes the marks, and links() turns them into a word alignment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import count

from demo_corpus import lexicon
from demo_corpus.lexicon import FP, FS, IL, ILS, MP, MS, NOUS, TU, Adjective, Noun, Verb

Use = tuple[str, str]  # two words that occur together: (green, cat), (eat, apple)


@dataclass(frozen=True, slots=True)
class Phrase:
    """A part of a sentence in both languages, with the properties that its neighbors agree with."""

    en: str
    fr: str
    slot: int = IL  # the person of the verb
    form: int = MS
    kinds: frozenset[str] = frozenset()
    uses: tuple[Use, ...] = ()
    noun: str = ""


@dataclass(frozen=True, slots=True)
class Clause:
    """A subject and its predicate. realize() puts a clause into words."""

    subject: Phrase
    verb: Verb
    tense: str = "present"  # present habit plain past future near later can must want hope
    obj: Phrase | None = None
    negation: str = ""  # not, never, no longer
    adverb: str = ""  # often, always
    clitic: Phrase | None = None  # the pronoun before the French verb: je le vois, je lui donne
    rest: Phrase | None = None
    moved: Phrase | None = None  # an object before the verb (the apple that ...); the participle agrees with it


# --- Marks ----------------------------------------------------------------------------------------------------------

MARK = re.compile(r"⟦(\d+)(\??)⟧")
MARKS = r"(?:⟦\d+\??⟧)*"  # the marks of a word
SMALL_WORDS = frozenset(["a", "en", "à", "de", "le", "la", "les", "the", "on"])
_numbers = count()


def mark(possible: bool = False) -> str:
    """A new mark."""
    return f"⟦{next(_numbers)}{'?' * possible}⟧"


def with_mark(text: str, *marks: str) -> str:
    """The text with marks behind each word."""
    return " ".join([word + "".join(marks) for word in text.split()])


def link(en: str, fr: str) -> tuple[str, str]:
    """Two texts that translate each other. All their words are possible links. If a side is a single word, it is a sure
    link of the main word of the other side: potato, pomme de terre; a lawyer, avocate."""
    english, french = en.split(), fr.split()
    if not english or not french:
        return en, fr
    if len(english) == len(french) == 1:
        sure = mark()
        return en + sure, fr + sure
    possible = mark(possible=True)
    sides = [[word + possible for word in side] for side in (english, french)]
    if 1 in (len(english), len(french)):
        sure = mark()
        for side, words_of_side in zip(sides, (english, french), strict=True):
            main = next((n for n, word in enumerate(words_of_side) if word not in SMALL_WORDS), 0)
            side[main] += sure
    return " ".join(sides[0]), " ".join(sides[1])


def bare(text: str) -> str:
    return MARK.sub("", text)


def links(en: str, fr: str) -> str:
    """The alignment of two marked sentences in the Pharaoh format, sure and possible: "0-0 1-1 2?1". Spaces divide the
    words."""
    sources: dict[tuple[str, str], list[int]] = {}
    for i, word in enumerate(en.split()):
        for found in MARK.findall(word):
            sources.setdefault(found, []).append(i)
    strengths: dict[tuple[int, int], str] = {}
    for j, word in enumerate(fr.split()):
        for number, possible in MARK.findall(word):
            for i in sources.get((number, possible), ()):
                if strengths.get((i, j)) != "-":
                    strengths[i, j] = possible or "-"
    return " ".join(f"{i}{strength}{j}" for (i, j), strength in sorted(strengths.items()))


# --- Phrases ------------------------------------------------------------------------------------------------------

DETERMINERS = {  # MS, FS, MP, FP
    "the": ("le", "la", "les", "les"),
    "": ("le", "la", "les", "les"),  # a whole kind: I like cats
    "a": ("un", "une", "", ""),
    "some": ("de le", "de la", "des", "des"),
    "no": ("de",) * 4,
    "a lot of": ("beaucoup de",) * 4,
    "how many": ("combien de",) * 4,
    "which": ("quel", "quelle", "quels", "quelles"),
    "all the": ("", "", "tous les", "toutes les"),
    "this": ("ce", "cette", "ces", "ces"),
    "my": ("mon", "ma", "mes", "mes"),
    "your": ("ton", "ta", "tes", "tes"),
    "his": ("son", "sa", "ses", "ses"),
    "her": ("son", "sa", "ses", "ses"),
    "our": ("notre", "notre", "nos", "nos"),
    "your (vous)": ("votre", "votre", "vos", "vos"),
    "their": ("leur", "leur", "leurs", "leurs"),
}
BEFORE_VOWEL = {"ce": "cet", "ma": "mon", "ta": "ton", "sa": "son"}
ELISION = re.compile(rf"\b(je|me|te|se|le|la|de|ne|que|ce)({MARKS}) (?={lexicon.VOWEL})|\b(si)({MARKS}) (?=ils?\b)")
CONTRACTION = re.compile(rf"\b(à|de)({MARKS}) (les?)({MARKS}) ")
CONTRACTED = {"à le": "au", "à les": "aux", "de le": "du", "de les": "des"}


def spell(french: str) -> str:
    """Elide, then contract: 'de le ami' -> de l'ami, 'à le chat' -> au chat, 'parce que il' -> parce qu'il."""
    french = ELISION.sub(lambda match: f"{(match[1] or match[3])[:-1]}'{match[2] or match[4] or ''}", french)
    return CONTRACTION.sub(lambda match: f"{CONTRACTED[f'{match[1]} {match[3]}']}{match[2]}{match[4]} ", french)


def marked_sentence(phrase: Phrase, final: str = ".") -> tuple[str, str]:
    """English and French with marks and with the final punctuation mark. French '?' and '!' are words of their own."""
    en, fr, end = phrase.en, spell(phrase.fr), mark(possible=final == ".")
    return en[0].upper() + en[1:] + final + end, fr[0].upper() + fr[1:] + ("" if final == "." else " ") + final + end


def sentence(phrase: Phrase, final: str = ".") -> tuple[str, str]:
    en, fr = marked_sentence(phrase, final)
    return bare(en), bare(fr)


def words(*parts: str) -> str:
    return " ".join(filter(None, parts))


def agree(adjective: Adjective, form: int, following: str) -> str:
    """An adjective before its noun: bel oiseau, beau héros, belle orange."""
    vowel = form == MS and lexicon.begins_with_vowel(following)
    return adjective.before_vowel if vowel else adjective.fr[form]


def french_determiner(determiner: str, form: int, following: str, adjective: bool, negation: str) -> str:
    article = DETERMINERS[determiner][form]
    if determiner in ("a", "some") and negation:
        return "de"  # je n'ai pas de chat
    if article == "des" and adjective:
        return "de"  # de petits chats
    return BEFORE_VOWEL[article] if article in BEFORE_VOWEL and lexicon.begins_with_vowel(following) else article


def english_determiner(determiner: str, plural: bool, following: str, negation: str) -> str:
    if determiner == "a":
        return lexicon.english_article(following)
    if determiner == "some" and negation:
        return "any" if negation == "not" else ""  # I do not eat any bread, I never eat bread
    return {"this": "these" if plural else "this", "your (vous)": "your"}.get(determiner, determiner)


def noun_phrase(
    noun: Noun,
    determiner: str | int = "the",
    *adjectives: Adjective,
    plural: bool = False,
    negation: str = "",
    owner: Phrase | None = None,
) -> Phrase:
    """'a small green cat', 'three cats', 'Anne's cat'; negation: the negation of its verb."""
    plural = plural or isinstance(determiner, int)
    form = noun.feminine + 2 * plural
    en, fr = link(noun.en[plural], noun.fr[plural])
    for adjective in reversed(adjectives):
        after = adjective.place == "after"
        adjective_en, adjective_fr = link(adjective.en, adjective.fr[form] if after else agree(adjective, form, fr))
        en, fr = f"{adjective_en} {en}", f"{fr} {adjective_fr}" if after else f"{adjective_fr} {fr}"
    if isinstance(determiner, int):
        number = link(lexicon.english_number(determiner), lexicon.french_number(determiner, noun.feminine))
        en, fr = f"{number[0]} {en}", f"{number[1]} {fr}"
    elif owner:
        owned = mark(possible=True)
        en, fr = f"{owner.en}'s{owned} {en}", f"{DETERMINERS['the'][form]}{owned} {fr} de{owned} {owner.fr}"
    else:
        before = bool(adjectives) and adjectives[0].place != "after"
        article = french_determiner(determiner, form, fr, before, negation)
        english = english_determiner(determiner, plural, en, negation)
        if english:
            pairs = (
                zip(english.split(), article.split(), strict=True) if determiner == "all the" else [(english, article)]
            )
            english, article = map(" ".join, zip(*(link(*pair) for pair in pairs), strict=True))
        else:  # les chats, cats
            generic = mark(possible=True)
            en, article = with_mark(en, generic), with_mark(article, generic)
        en, fr = words(english, en), f"{article} {fr}"
    uses = tuple([(adjective.en, noun.en[0]) for adjective in adjectives])
    return Phrase(en, fr, ILS if plural else IL, form, noun.kinds, uses, noun.en[0])


PERSON = frozenset({"person", "adult"})


def pronoun(slot: int, form: int = MS, kinds: frozenset[str] = PERSON) -> Phrase:
    she = form in (FS, FP)
    en = ("I", "you", "it" if "person" not in kinds else "she" if she else "he", "we", "you", "they")[slot]
    fr = ("je", "tu", "elle" if she else "il", "nous", "vous", "elles" if she else "ils")[slot]
    return Phrase(*link(en, fr), slot, form, kinds)


def clitic(slot: int, form: int = MS, thing: bool = False, dative: bool = False, noun: str = "") -> Phrase:
    """The object pronoun: I see him, je le vois; dative: I give him, je lui donne; no participle agrees with it."""
    she = form in (FS, FP)
    en = ("me", "you", "it" if thing else "her" if she else "him", "us", "you", "them")[slot]
    third = ("lui", "leur") if dative else ("la" if she else "le", "les")
    fr = ("me", "te", third[0], "nous", "vous", third[1])[slot]
    return Phrase(*link(en, fr), slot, MS if dative else form, noun=noun)


def again(phrase: Phrase) -> Phrase:
    """The pronoun that replaces a phrase: la maison -> it, elle."""
    return pronoun(phrase.slot, phrase.form, phrase.kinds)


def both(one: Phrase, two: Phrase) -> Phrase:
    en, fr = link("and", "et")
    return Phrase(f"{one.en} {en} {two.en}", f"{one.fr} {fr} {two.fr}", ILS, MP | (one.form & two.form), PERSON)


def join(one: Phrase, en: str, fr: str, two: Phrase) -> Phrase:
    """Two phrases with words between them, which may begin with a comma: ' because', ', but'."""
    comma = re.match(",? ?", en)[0]  # type: ignore[index]
    linked = link(en.removeprefix(comma), fr.removeprefix(comma))
    en, fr = comma + linked[0], comma + linked[1]
    return Phrase(f"{one.en}{en} {two.en}", f"{one.fr}{fr} {two.fr}", uses=one.uses + two.uses)


# --- Clauses ------------------------------------------------------------------------------------------------------

NEGATIONS = {"": "", "not": "pas", "never": "jamais", "no longer": "plus"}
ADVERBS = {"": "", "often": "souvent", "always": "toujours"}
MODALS = {"near": "aller", "can": "pouvoir", "must": "devoir", "want": "vouloir", "hope": "espérer"}
FRENCH_TENSES = {"past": "imperfect", "future": "future", "later": "future"}  # all others: present
BE_NOW = ("am", "are", "is", "are", "are", "are")
BE_PAST = ("was", "were", "was", "were", "were", "were")
REFLEXIVE = ("me", "te", "se", "nous", "vous", "se")
STATE = frozenset({"state"})
BE = Verb(("be", "is", "was", "being"), "être", traits=STATE)
HAVE_BE = Verb(("be", "is", "was", "being"), "avoir", traits=STATE)  # to be hungry, to be twenty years old


def english_verb(verb: Verb, tense: str, slot: int, split: bool) -> tuple[str, str]:
    """The auxiliary and the verb. split: they are separated, by 'not' or by the subject of a question."""
    base, third, past, ing = verb.en
    if tense in ("can", "must", "future"):
        return ("will" if tense == "future" else tense), base
    if tense == "near":
        return BE_NOW[slot], f"going to {base}"
    if base == "be":
        return (BE_PAST if tense == "past" else BE_NOW)[slot], ""
    if tense == "past":
        return ("did", base) if split else ("", past)
    if tense == "present" and not verb.traits & {"state", "sense"}:
        return BE_NOW[slot], ing
    if tense in ("want", "hope"):
        base, third = f"{tense} to {base}", f"{tense}s to {base}"
    if split:
        return ("does" if slot == IL else "do"), base
    return "", (third if slot == IL else base)


@dataclass(frozen=True, slots=True)
class VerbMarks:
    """The marks of the words of a verb. Each English word of the verb is a possible link of each French word."""

    group: str  # of all words of the verb
    meaning: str  # read, lire: is reading, lit; did read, a lu; will read, lira
    modal: str  # can, pouvoir; want, vouloir; going, aller
    denial: str  # not, pas
    ne: str  # not, ne

    @staticmethod
    def new(can_not: bool) -> VerbMarks:
        return VerbMarks(mark(possible=True), mark(), mark(), mark(possible=can_not), mark(possible=True))


def marked_english_verb(auxiliary: str, main: str, tense: str, marks: VerbMarks) -> tuple[str, str]:
    """The auxiliary and the verb with marks: is going⟦modal⟧ to read⟦meaning⟧, can⟦modal⟧ read⟦meaning⟧."""
    phrase = [word + marks.group for word in main.split()]
    if tense in ("near", "want", "hope") and len(phrase) > 2:
        phrase[0] += marks.modal
        phrase[2] += marks.meaning
    elif phrase:
        phrase[0] += marks.meaning
    if auxiliary:
        of_auxiliary = marks.modal if tense in ("can", "must") else "" if main else marks.meaning
        auxiliary += marks.group + of_auxiliary
    return auxiliary, " ".join(phrase)


def french_verb(clause: Clause, marks: VerbMarks) -> str:
    """The verb with its pronoun and its negation: ne la vois pas, ne l'ai jamais vue, ne vais pas la voir."""
    verb, tense, slot = clause.verb, clause.tense, clause.subject.slot
    itself = REFLEXIVE[slot] + marks.group
    before = itself if verb.reflexive else clause.clitic.fr if clause.clitic else ""
    after = ""
    if tense in MODALS:
        finite = lexicon.conjugate(MODALS[tense])[slot] + marks.group + marks.modal
        before, after = "", words(before, verb.fr + marks.group + marks.meaning)
    elif tense == "past" and "state" not in verb.traits:
        etre = verb.reflexive or verb.fr in lexicon.WITH_ETRE
        finite = lexicon.conjugate("être" if etre else "avoir")[slot] + marks.group
        agrees = clause.subject if etre else clause.moved or clause.clitic
        after = lexicon.participle(verb.fr, agrees.form if agrees else MS) + marks.group + marks.meaning
    else:
        finite = lexicon.conjugate(verb.fr, FRENCH_TENSES.get(tense, "present"))[slot] + marks.group + marks.meaning
    ne = "ne" + marks.ne if clause.negation else ""
    return words(ne, before, finite, with_mark(NEGATIONS[clause.negation], marks.denial), clause.adverb, after)


def realize(clause: Clause, inverted: bool = False) -> Phrase:
    """The clause in words. inverted: the English auxiliary stands before the subject."""
    subject, verb, obj, pro = clause.subject, clause.verb, clause.obj, clause.clitic
    auxiliary, main = english_verb(verb, clause.tense, subject.slot, inverted or clause.negation == "not")
    can_not = auxiliary == "can" and clause.negation == "not" and not inverted
    marks = VerbMarks.new(can_not)
    auxiliary, main = marked_english_verb("cannot" if can_not else auxiliary, main, clause.tense, marks)
    negation = with_mark(clause.negation, marks.denial, marks.ne)
    if can_not:
        auxiliary, negation = auxiliary + marks.denial + marks.ne, ""
    often, souvent = link(clause.adverb, ADVERBS[clause.adverb])
    en = [auxiliary, subject.en] if inverted else [subject.en, auxiliary]
    en += [negation, often, main, pro.en if pro else ""]
    fr = [subject.fr, french_verb(replace(clause, adverb=souvent), marks)]
    uses = subject.uses
    for piece in (obj, clause.rest):
        if piece:
            en.append(piece.en)
            fr.append(piece.fr)
            uses += piece.uses
    for target in (obj, pro, clause.moved):
        if target and target.noun:
            uses += ((verb.en[0], target.noun),)
    return Phrase(words(*en), words(*fr), uses=uses)


def ask(clause: Clause, en: str = "", fr: str = "") -> Phrase:
    """A question, with or without an interrogative: est-ce que tu dors, qu'est-ce que tu lis."""
    done, asked = realize(clause, inverted=True), mark(possible=True)  # est-ce que, does
    auxiliary, _, rest = done.en.partition(" ")
    return Phrase(
        words(en, auxiliary + asked, rest), words(fr, with_mark("est-ce que", asked), done.fr), uses=done.uses
    )


def command(clause: Clause) -> Phrase:
    """Eat the soup, let us eat the soup; in French, tu manges loses its s, but tu bois keeps it."""
    done = realize(replace(clause, subject=Phrase("", "", clause.subject.slot)))
    en, fr = done.en, done.fr
    if clause.subject.slot == TU:
        fr = re.sub(rf"^((?:ne{MARKS} )?\w+e)s\b", r"\1", fr)
    elif clause.subject.slot == NOUS:
        en = words("let us", re.sub(rf"^do{MARKS} ", "", en))
    return Phrase(en, fr, uses=done.uses)


def predicate(adjective: Adjective, subject: Phrase, degree: tuple[str, str] = ("", "")) -> Phrase:
    """The adjective after 'is': very happy, très heureuse."""
    uses = ((adjective.en, subject.noun),) if subject.noun else ()
    (very, happy), (tres, heureuse) = zip(link(*degree), link(adjective.en, adjective.fr[subject.form]), strict=True)
    return Phrase(words(very, happy), words(tres, heureuse), uses=uses)


def who(head: Phrase) -> Phrase:
    """The subject of a relative clause."""
    return Phrase(*link("who" if "person" in head.kinds else "that", "qui"), head.slot, head.form, head.kinds)


def with_relative(head: Phrase, clause: Clause) -> Phrase:
    """'the girl who reads', if the subject of the clause is who(head); otherwise 'the story that she read'."""
    if bare(clause.subject.fr) == "qui":
        joined = join(head, "", "", realize(clause))
    else:
        joined = join(head, " that", " que", realize(replace(clause, moved=head)))
    return replace(head, en=joined.en, fr=joined.fr, uses=joined.uses)
