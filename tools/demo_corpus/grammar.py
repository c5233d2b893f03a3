"""The grammar of the demo corpus: phrases and clauses, built in English and French at once.

corpus.py draws sentences with these functions; lexicon.py has the words. A Phrase has the properties that its neighbors
agree with (person, gender, number). A Clause has a subject, a verb and a tense; realize() puts it into words. French
words are joined as they are (de le ami, je ai). At the end spell() elides and contracts the whole sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

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
ELISION = re.compile(rf"\b(?:je|me|te|se|le|la|de|ne|que|ce) (?={lexicon.VOWEL})|\bsi (?=ils?\b)")
CONTRACTION = re.compile(r"\b(?:à|de) les? ")
CONTRACTED = {"à le ": "au ", "à les ": "aux ", "de le ": "du ", "de les ": "des "}


def spell(french: str) -> str:
    """Elide, then contract: 'de le ami' -> de l'ami, 'à le chat' -> au chat, 'parce que il' -> parce qu'il."""
    french = ELISION.sub(lambda match: match[0][:-2] + "'", french)
    return CONTRACTION.sub(lambda match: CONTRACTED[match[0]], french)


def sentence(phrase: Phrase, mark: str = ".") -> tuple[str, str]:
    en, fr = phrase.en, spell(phrase.fr)
    return en[0].upper() + en[1:] + mark, fr[0].upper() + fr[1:] + ("" if mark == "." else " ") + mark


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
    en, fr = noun.en[plural], noun.fr[plural]
    for adjective in reversed(adjectives):
        en = f"{adjective.en} {en}"
        fr = f"{fr} {adjective.fr[form]}" if adjective.place == "after" else f"{agree(adjective, form, fr)} {fr}"
    if isinstance(determiner, int):
        en = f"{lexicon.english_number(determiner)} {en}"
        fr = f"{lexicon.french_number(determiner, noun.feminine)} {fr}"
    elif owner:
        en, fr = f"{owner.en}'s {en}", f"{DETERMINERS['the'][form]} {fr} de {owner.fr}"
    else:
        en = words(english_determiner(determiner, plural, en, negation), en)
        before = bool(adjectives) and adjectives[0].place != "after"
        fr = f"{french_determiner(determiner, form, fr, before, negation)} {fr}"
    uses = tuple([(adjective.en, noun.en[0]) for adjective in adjectives])
    return Phrase(en, fr, ILS if plural else IL, form, noun.kinds, uses, noun.en[0])


PERSON = frozenset({"person", "adult"})


def pronoun(slot: int, form: int = MS, kinds: frozenset[str] = PERSON) -> Phrase:
    she = form in (FS, FP)
    en = ("I", "you", "it" if "person" not in kinds else "she" if she else "he", "we", "you", "they")[slot]
    fr = ("je", "tu", "elle" if she else "il", "nous", "vous", "elles" if she else "ils")[slot]
    return Phrase(en, fr, slot, form, kinds)


def clitic(slot: int, form: int = MS, thing: bool = False, dative: bool = False, noun: str = "") -> Phrase:
    """The object pronoun: I see him, je le vois; dative: I give him, je lui donne; no participle agrees with it."""
    she = form in (FS, FP)
    en = ("me", "you", "it" if thing else "her" if she else "him", "us", "you", "them")[slot]
    third = ("lui", "leur") if dative else ("la" if she else "le", "les")
    fr = ("me", "te", third[0], "nous", "vous", third[1])[slot]
    return Phrase(en, fr, slot, MS if dative else form, noun=noun)


def again(phrase: Phrase) -> Phrase:
    """The pronoun that replaces a phrase: la maison -> it, elle."""
    return pronoun(phrase.slot, phrase.form, phrase.kinds)


def both(one: Phrase, two: Phrase) -> Phrase:
    return Phrase(f"{one.en} and {two.en}", f"{one.fr} et {two.fr}", ILS, MP | (one.form & two.form), PERSON)


def join(one: Phrase, en: str, fr: str, two: Phrase) -> Phrase:
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


def french_verb(clause: Clause) -> str:
    """The verb with its pronoun and its negation: ne la vois pas, ne l'ai jamais vue, ne vais pas la voir."""
    verb, tense, slot = clause.verb, clause.tense, clause.subject.slot
    before = REFLEXIVE[slot] if verb.reflexive else clause.clitic.fr if clause.clitic else ""
    after = ""
    if tense in MODALS:
        finite = lexicon.conjugate(MODALS[tense])[slot]
        before, after = "", words(before, verb.fr)
    elif tense == "past" and "state" not in verb.traits:
        etre = verb.reflexive or verb.fr in lexicon.WITH_ETRE
        finite = lexicon.conjugate("être" if etre else "avoir")[slot]
        agrees = clause.subject if etre else clause.moved or clause.clitic
        after = lexicon.participle(verb.fr, agrees.form if agrees else MS)
    else:
        finite = lexicon.conjugate(verb.fr, FRENCH_TENSES.get(tense, "present"))[slot]
    ne = "ne" if clause.negation else ""
    return words(ne, before, finite, NEGATIONS[clause.negation], ADVERBS[clause.adverb], after)


def realize(clause: Clause, inverted: bool = False) -> Phrase:
    """The clause in words. inverted: the English auxiliary stands before the subject."""
    subject, verb, obj, pro = clause.subject, clause.verb, clause.obj, clause.clitic
    auxiliary, main = english_verb(verb, clause.tense, subject.slot, inverted or clause.negation == "not")
    negation = clause.negation
    if auxiliary == "can" and negation == "not" and not inverted:
        auxiliary, negation = "cannot", ""
    en = [auxiliary, subject.en] if inverted else [subject.en, auxiliary]
    en += [negation, clause.adverb, main, pro.en if pro else ""]
    fr = [subject.fr, french_verb(clause)]
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
    done = realize(clause, inverted=True)
    return Phrase(words(en, done.en), words(fr, "est-ce que", done.fr), uses=done.uses)


def command(clause: Clause) -> Phrase:
    """Eat the soup, let us eat the soup; in French, tu manges loses its s, but tu bois keeps it."""
    slot, verb = clause.subject.slot, clause.verb.en[0]
    done = realize(replace(clause, subject=Phrase("", "", slot)))
    fr = re.sub(r"^((?:ne )?\w+e)s\b", r"\1", done.fr) if slot == TU else done.fr
    lead = "let us" if slot == NOUS else "do" if clause.negation else ""
    return Phrase(words(lead, clause.negation, verb, clause.obj.en if clause.obj else ""), fr, uses=done.uses)


def predicate(adjective: Adjective, subject: Phrase, degree: tuple[str, str] = ("", "")) -> Phrase:
    """The adjective after 'is': very happy, très heureuse."""
    uses = ((adjective.en, subject.noun),) if subject.noun else ()
    return Phrase(words(degree[0], adjective.en), words(degree[1], adjective.fr[subject.form]), uses=uses)


def who(head: Phrase) -> Phrase:
    """The subject of a relative clause."""
    return Phrase("who" if "person" in head.kinds else "that", "qui", head.slot, head.form, head.kinds)


def with_relative(head: Phrase, clause: Clause) -> Phrase:
    """'the girl who reads', if the subject of the clause is who(head); otherwise 'the story that she read'."""
    if clause.subject.fr == "qui":
        done, en, fr = realize(clause), "", ""
    else:
        done, en, fr = realize(replace(clause, moved=head)), " that", " que"
    return replace(head, en=f"{head.en}{en} {done.en}", fr=f"{head.fr}{fr} {done.fr}", uses=head.uses + done.uses)
