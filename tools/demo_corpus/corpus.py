"""The demo corpus: English-French sentence pairs from a small grammar.

Each English sentence has exactly one French translation, so a small model can learn the corpus in a minute, and each
difference from the reference is a real mistake. Where English leaves a choice, these rules decide:

- 'you' is tu. It is vous only if the sentence addresses somebody politely (Sir, Madam, please) or two people.
- 'they' and 'it' have the gender of the noun that they replace. 'they' without such a noun is ils.
- I, you, me, us and 'the teacher' are masculine.
- A past action is the passé composé, a past state is the imperfect.
- French '?' and '!' follow a plain space. Print uses a no-break space, which looks the same and is easily lost.

From top to bottom: the words that may be drawn, the Speaker who draws sentences at random, the splits. grammar.py
makes sentences of words, lexicon.py lists the words.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

from demo_corpus import lexicon
from demo_corpus.grammar import (
    BE,
    BE_NOW,
    BE_PAST,
    HAVE_BE,
    PERSON,
    STATE,
    Clause,
    Phrase,
    Use,
    again,
    ask,
    bare,
    both,
    clitic,
    command,
    join,
    link,
    links,
    mark,
    marked_sentence,
    noun_phrase,
    predicate,
    pronoun,
    realize,
    who,
    with_relative,
    words,
)  # fmt: skip
from demo_corpus.lexicon import (
    ADJECTIVES,
    ALL_VERBS,
    CITIES,
    COUNTRIES,
    FS,
    IL,
    ILS,
    JE,
    MP,
    MS,
    NOUNS,
    NOUS,
    TU,
    VERBS,
    VOUS,
    Adjective,
    Noun,
    Verb,
)  # fmt: skip

T = TypeVar("T")

TRAIN, HELD_OUT = 20_000, 500  # sentence pairs: TRAIN in train, HELD_OUT in dev and in test
SHARE_APART = 0.04  # the share of all word pairs (Use) that train never shows together
MIN_COUNT = 5  # train has each word of dev and test at least this often
WORD = re.compile(r"[\w-]+'?")


# --- What may be drawn --------------------------------------------------------------------------------------------


def nouns_of(*kinds: str) -> list[Noun]:
    return [noun for noun in NOUNS.values() if noun.kinds.intersection(kinds)]


@cache
def adjectives_of(kinds: frozenset[str], *places: str) -> list[Adjective]:
    return [adjective for adjective in ADJECTIVES.values() if adjective.place in places and adjective.kinds & kinds]


def verbs(names: str) -> list[Verb]:
    return [VERBS[name.replace("_", " ")] for name in names.split()]


OBJECTS = {verb: nouns_of(*verb.objects) for verb in ALL_VERBS}
BEFORE = {noun: adjectives_of(noun.kinds, "before", "epithet") for noun in NOUNS.values()}
AFTER = {noun: adjectives_of(noun.kinds, "after") for noun in NOUNS.values()}
SECOND = {noun: [a for a in after if a.kinds & {"colour", "nation"}] for noun, after in AFTER.items()}
QUALITY = {noun: [a for a in after if "very" in a.kinds and a.en != "tired"] for noun, after in AFTER.items()}
NAMES = [Phrase(*link(name, name), IL, MS, PERSON | {"gent"}) for name in lexicon.MEN]
NAMES += [Phrase(*link(name, name), IL, FS, PERSON | {"lady"}) for name in lexicon.WOMEN]
PEOPLE, ANIMALS, BUILDINGS, SURFACES = map(nouns_of, ("person", "animal", "building", "surface"))
INSIDE, AT, WATER, CARRIED = map(nouns_of, ("in", "at", "water", "portable"))
OUTSIDE = [NOUNS[name] for name in ("garden", "park", "forest", "village", "street")]
STRANGERS = [noun for noun in PEOPLE if "kin" not in noun.kinds]
SOUGHT = nouns_of("portable", "person", "animal")
EATEN = nouns_of("food", "meal", "drink")
SHOWN = [noun for noun in NOUNS.values() if "mass" not in noun.kinds]
DESCRIBED = [noun for noun in NOUNS.values() if AFTER[noun] and not noun.kinds & {"person", "animal"}]
OWNED = frozenset({"own", "pet", "thing", "wear", "vehicle", "text", "food", "meal", "drink", "art", "part"})

TRANSITIVE = [verb for verb in VERBS.values() if verb.objects and "gift" not in verb.traits]
WHAT = [verb for verb in TRANSITIVE if "person" not in verb.objects and not verb.traits & {"known", "generic"}]
WHERE = [verb for verb in VERBS.values() if verb.traits & {"place", "outside", "inside", "to", "city"}]
WHEN = [verb for verb in VERBS.values() if verb.traits & {"hour", "arrival"}]
ORDERS = [verb for verb in TRANSITIVE if not verb.traits & {"state", "sense", "event"}]
FIRST = verbs("arrive come_back leave get_up wake_up go_out finish find meet buy call")
NEXT = verbs(
    "eat drink read write buy watch make sing dance play sleep rest work walk swim go visit call help invite clean "
    "wash give show send open draw paint smile cry leave go_out go_to_bed travel"
)
ACQUIRE = verbs("buy find choose take make see")
THEN = verbs("eat drink read wash cut give show sell wear open close draw paint break lose forget")
JUDGE = verbs("like buy choose")
JUDGED = {verb: [noun for noun in OBJECTS[verb] if QUALITY[noun]] for verb in JUDGE}
TREATED = {verb: [noun for noun in OBJECTS[verb] if any(noun in OBJECTS[then] for then in THEN)] for verb in ACQUIRE}
VERBS_OF = {noun.en[0]: [verb for verb in TRANSITIVE if noun in OBJECTS[verb]] for noun in NOUNS.values()}
NOBODY = Phrase("", "")
NAME = re.compile("|".join(lexicon.MEN + lexicon.WOMEN))
THINK, SAY, KNOW, BELIEVE, HOPE = (
    Verb(lexicon.english_verb(en), fr, traits=STATE)
    for en, fr in lexicon.pairs("think/penser say/dire know/savoir believe/croire hope/espérer")
)
# Verbs and the states that explain them: somebody eats because somebody is hungry.
MOTIVES = [
    (VERBS[verb], state)
    for verb, state in lexicon.pairs(
        "eat/hungry drink/thirsty sleep/tired sleep/sick rest/tired rest/sick go_to_bed/sleepy go_to_bed/tired "
        "cry/sad cry/afraid cry/alone smile/happy laugh/happy sing/happy dance/happy run/afraid leave/late help/kind "
        "invite/kind give/kind call/alone leave/rain come_back/rain"
    )
]
ANIMAL_MOTIVES = [
    (verb, state)
    for verb in ALL_VERBS
    if verb.traits & {"animal", "beast"}
    for motivated, state in MOTIVES
    if motivated.en == verb.en
]
# States and the verbs that cause them: somebody is sad because somebody lost a key.
MOODS = {
    "happy": verbs("find meet visit buy go"),
    "glad": verbs("find meet finish see"),
    "proud": verbs("finish write paint make help"),
    "sad": verbs("lose break fall"),
    "angry": verbs("lose break forget wait_for"),
    "tired": verbs("work run walk dance clean travel swim"),
}
BAD = [ADJECTIVES[name] for name in ("cold", "dirty", "expensive", "dangerous")]
DEGREES = [("very", "très"), ("really", "vraiment"), ("too", "trop")]
AROUND = [("near", "près de"), ("behind", "derrière"), ("in front of", "devant")]
FEELINGS = list(lexicon.FEELINGS)
COUNTS = (2, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 20, 21)
AGES = (*range(2, 22), 25, 30, 32, 40, 50, 60, 61, 70, 71, 80, 81, 90, 95)
PLAINLY = ("", "")  # no negation, no adverb
PRONOUNS = [(JE, MS), (TU, MS), (IL, MS), (IL, FS), (NOUS, MP), (ILS, MP)]

# Determiners for each role of a noun: singular, plural, mass. 'own' becomes my, her, Anne's, ...; 0 a number.
ROLES: dict[str, tuple[list[str | int], list[str | int], list[str | int]]] = {
    "the": (["the"], ["the"], ["the"]),
    "kin": (["own"], ["own"], []),
    "known": (["the", "the", "this", "own"], ["the", "the", "this", "own", "all the"], ["the", "this", "own"]),
    "new": (["a"], ["some", "some", "a lot of", 0], ["some", "a lot of"]),
    "shown": (["a", "a", "the", "own"], ["the", "own", "own"], []),
    "object": (["a", "a", "a", "the", "this", "own"], ["some", "some", "the", "this", "own", "a lot of", 0, 0],
               ["some", "some", "some", "the", "own", "a lot of"]),
    "generic": (["the", "this", "own"], ["", "", "the", "this"], ["", "", "the", "this"]),
    "habit": (["a", "own"], ["some", "some", "a lot of", 0], ["some", "some", "a lot of"]),
    "not": (["a", "a", "the", "this", "own"], ["some", "some", "the", "this", "own"], ["some", "some", "the", "own"]),
    "never": (["own"], ["some"], ["some"]),
    "no longer": (["the", "own"], ["some"], ["some"]),
}  # fmt: skip

# The tenses of each kind of verb. Two more tenses are used only in subordinate clauses: 'plain' is the simple present
# after 'if'; 'later' is the simple present after 'when', where French uses the future.
TENSES = {
    "home": ["present"],
    "state": ["present"] * 6 + ["past"] * 3 + ["future"],
    "sense": ["present"] * 3 + ["past"] * 4 + ["future", "near", "can"],
    "event": ["past"] * 5 + ["future"] * 2 + ["near"],
    "action": ["present", "past", "habit", "future"] * 4 + ["near"] * 3 + ["can", "must", "want"] * 2 + ["hope"],
    "once": ["present", "past", "future"] * 4 + ["near"] * 3 + ["can", "must", "want"] * 2,
    "animal": ["present", "past"] * 4 + ["habit", "near", "future"] * 2,  # an action of an animal
}
SIMPLE = ("present", "past", "near", "future")
SIMPLE_TENSES = {kind: [tense for tense in tenses if tense in SIMPLE] for kind, tenses in TENSES.items()}
PAST, FUTURE, NOW, HABIT = map(lexicon.pairs, (
    "yesterday/hier this_morning/ce_matin last_week/la_semaine_dernière",
    "tomorrow/demain this_evening/ce_soir next_week/la_semaine_prochaine",
    "now/maintenant today/aujourd'hui",
    "every_day/tous_les_jours in_the_morning/le_matin in_the_evening/le_soir",
))  # fmt: skip
ON_DAYS = [(f"on {en}", fr) for en, fr in lexicon.DAYS]
HABIT += [(f"every {en}", f"tous les {fr}s") for en, fr in lexicon.DAYS]
TIMES = {"past": PAST + ON_DAYS, "present": NOW, "habit": HABIT}
AHEAD = FUTURE + ON_DAYS  # times for every other tense
WEATHER = {
    "present": [("it is raining", "il pleut"), ("it is snowing", "il neige")],
    "plain": [("it rains", "il pleut"), ("it snows", "il neige")],
    "later": [("it rains", "il pleuvra"), ("it snows", "il neigera")],
    "past": [("it was raining", "il pleuvait"), ("it was snowing", "il neigeait")],
}


@cache
def verb_kind(verb: Verb) -> str:
    return next((kind for kind in ("home", "state", "sense", "event", "once") if kind in verb.traits), "action")


@cache
def verbs_told(tense: str, animal: bool) -> list[Verb]:
    """The verbs of people, or of animals, that can have this tense. '': any tense."""
    kinds = [kind for kind in TENSES if tense in TENSES[kind]]
    fits = [verb for verb in ALL_VERBS if tense == "" or verb_kind(verb) in kinds]
    return [verb for verb in fits if (verb.traits & {"animal", "beast"} if animal else "beast" not in verb.traits)]


class Speaker:
    """Draws sentences. Only random() is called: Python promises to keep its sequence, but not that of other methods."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random
        sorts = (
            (32, self.statement), (14, self.question), (10, self.reported), (12, self.reason), (8, self.condition),
            (12, self.relative), (6, self.sequel), (5, self.contrast), (4, self.order),
        )  # fmt: skip
        self.sorts = [sort for weight, sort in sorts for _ in range(weight)]

    def sentence(self) -> tuple[str, str, tuple[Use, ...]]:
        """English, French, and the word pairs that occur together."""
        en, fr, uses = self.marked()
        return bare(en), bare(fr), uses

    def marked(self) -> tuple[str, str, tuple[Use, ...]]:
        """A sentence with the marks of grammar.py. No name occurs twice in a sentence."""
        while True:
            phrase, final = self.pick(self.sorts)()
            named = NAME.findall(phrase.en)
            if len(named) == len(set(named)):
                return (*marked_sentence(phrase, final), phrase.uses)

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    # Phrases: people, things, places, times.

    def adjectives(self, noun: Noun, sober: bool) -> tuple[Adjective, ...]:
        """No adjective, one, or one on each side. sober: none that the rest of the sentence could contradict."""
        if self.chance(0.5) or ("kin" in noun.kinds and "adult" not in noun.kinds):
            return ()
        if BEFORE[noun] and (sober or self.chance(0.5)):
            first = self.pick(BEFORE[noun])
            return (first, self.pick(SECOND[noun])) if SECOND[noun] and not sober and self.chance(0.4) else (first,)
        return () if sober or not AFTER[noun] else (self.pick(AFTER[noun]),)

    def thing(
        self, noun: Noun, role: str = "known", owner: Phrase | None = None, negation: str = "", sober: bool = False
    ) -> Phrase:
        """A noun with its adjectives and a determiner that fits its role."""
        plural = self.chance(0.35) and not noun.kinds & {"mass", "one"}
        role = "kin" if "kin" in noun.kinds and role != "new" else role
        determiner = self.pick(ROLES[role][2 if "mass" in noun.kinds else plural])
        keeper = None
        if determiner == 0:
            determiner = self.pick(COUNTS)
        elif determiner == "own":
            determiner = self.possessive(None if "kin" in noun.kinds and owner is NOBODY else owner)
            determiner = determiner if noun.kinds & OWNED else "the"
            keeper = self.pick(NAMES) if determiner != "the" and self.chance(0.2) else None
        adjectives = self.adjectives(noun, sober)
        return noun_phrase(noun, determiner, *adjectives, plural=plural, negation=negation, owner=keeper)

    def possessive(self, owner: Phrase | None) -> str:
        if owner is None or "animal" in owner.kinds:
            return self.pick(("my", "my", "our", "your", "his", "her", "their"))
        if owner is NOBODY:
            return "the"
        return ("my", "your", "her" if owner.form == FS else "his", "our", "your (vous)", "their")[owner.slot]

    def person(self, subject: Phrase | None = None, inner: bool = False, sober: bool = False) -> Phrase:
        """A pronoun or a named person. inner: not 'they', which would refer to people named before."""
        if self.chance(0.3):
            return pronoun(*self.pick(PRONOUNS[:-1] if inner else PRONOUNS))
        return self.named(subject, sober)

    def named(self, subject: Phrase | None = None, sober: bool = False) -> Phrase:
        """One name, two names, a friend's name, or a noun such as teacher or brother."""
        dice, one, two = self.random(), self.pick(NAMES), self.pick(NAMES)
        if dice > 0.6:
            return self.thing(self.pick(PEOPLE), owner=subject, sober=sober)
        if dice > 0.53:
            (my, friend), (mon, ami) = zip(
                link("my", "mon"), link("friend", "amie" if one.form == FS else "ami"), strict=True
            )
            return replace(one, en=f"{my} {friend} {one.en}", fr=f"{mon} {ami} {one.fr}")
        return both(one, two) if dice > 0.45 else one

    def actor(self, sober: bool = False) -> Phrase:
        return self.thing(self.pick(ANIMALS), sober=sober) if self.chance(0.15) else self.person(sober=sober)

    def same_or_other(self, subject: Phrase) -> Phrase:
        return again(subject) if self.chance(0.5) else self.person(subject, inner=True, sober=True)

    def time(self, tense: str) -> Phrase:
        return Phrase(*link(*self.pick(TIMES.get(tense, AHEAD))))

    def at(self, nouns: Sequence[Noun], *prepositions: tuple[str, str]) -> Phrase:
        """A preposition and a place: in the garden, dans le jardin."""
        noun, (en, fr) = self.pick(nouns), self.pick(prepositions)
        phrase = noun_phrase(noun, "the", *(self.adjectives(noun, sober=True) if self.chance(0.3) else ()))
        return join(Phrase(*link(en, fr)), "", "", phrase)

    def where(self, outside: bool = False) -> Phrase:
        dice = self.random()
        if dice < 0.2:
            return self.at(BUILDINGS, *AROUND)
        if dice < 0.5 and not outside:
            return self.at(AT, ("at", "à"))
        return self.at(OUTSIDE if outside else INSIDE, ("in", "dans"))

    def abroad(self, en: str, fr: str, places: Sequence[tuple[str, str]] = (*CITIES, *COUNTRIES)) -> Phrase:
        """to Paris, à Paris; in Italy, en Italie; from Canada, du Canada (here still 'de le Canada')."""
        place = self.pick(places)
        if fr == "à" and place in COUNTRIES and " " not in place[1]:
            fr = "en"
        if en:
            return join(Phrase(*link(en, fr)), "", "", Phrase(*link(*place)))
        of = mark(possible=True)  # comes from Paris: 'from' belongs to the verb
        there, la = link(*place)
        return Phrase(there + of, f"{fr}{of} {la}")

    def with_person(self, en: str, fr: str, subject: Phrase) -> Phrase:
        friend = self.named(subject)
        while " et " in bare(friend.fr):  # 'à Paul et à Marie' would need its own rule
            friend = self.named(subject)
        return join(Phrase(*link(en, fr)), "", "", friend)

    def hour(self) -> Phrase:
        n = 1 + int(self.random() * 11)
        number = link(lexicon.english_number(n), lexicon.french_number(n, feminine=True))
        (at, clock), (to, heures) = zip(link("at", "à"), link("o'clock", f"heure{'s' if n > 1 else ''}"), strict=True)
        return Phrase(f"{at} {number[0]} {clock}", f"{to} {number[1]} {heures}")

    def complement(self, verb: Verb, subject: Phrase) -> Phrase | None:
        """The complement of the verb: a destination, an origin, a receiver; or a place, a companion, an hour."""
        traits, site = verb.traits, self.chance(0.5)
        if "to" in traits:
            return self.at(AT, ("to", "à")) if site else self.abroad("to", "à")
        if "from" in traits:
            return self.at(AT, ("from", "de")) if site else self.abroad("from", "de")
        if "home" in traits:
            return self.abroad("", "de")
        if "city" in traits:
            return self.abroad("in", "à")
        if "gift" in traits:
            return self.with_person("to", "à", subject)
        if self.chance(0.55):
            return None
        if traits & {"place", "outside"}:
            return self.where(outside="outside" in traits or "animal" in subject.kinds)
        if "inside" in traits:
            return self.at(OUTSIDE if "animal" in subject.kinds else INSIDE, ("in", "dans"))
        if "arrival" in traits:
            return self.at(AT, ("at", "à")) if site else self.abroad("in", "à")
        if "country" in traits:
            return self.abroad("in", "à", COUNTRIES)
        if "water" in traits:
            return self.at(WATER, ("in", "dans"))
        if "with" in traits:
            return self.with_person("with", "avec", subject)
        return self.hour() if "hour" in traits else None

    # Clauses: actions and descriptions.

    def clause(
        self,
        subject: Phrase,
        tense: str = "",
        verb: Verb | None = None,
        inner: bool = False,
        manner: tuple[str, str] | None = None,
    ) -> Clause:
        """An action. inner: in a subordinate clause. manner: negation and adverb; with it, the clause has no date."""
        animal = "animal" in subject.kinds
        verb = verb or self.pick(verbs_told(tense, animal))
        kind = verb_kind(verb)
        tense = tense or self.pick(TENSES["animal" if animal and kind == "action" else kind])
        negation, adverb = manner or self.manner(kind, tense)
        negation = "" if bare(subject.en).startswith("all the") else negation  # 'all the boys do not' is ambiguous
        if negation == "never" and verb.en[0] == verb.en[2] and tense == "past":
            negation = "not"  # 'they never read' would be both past and present
        obj = pro = rest = when = None
        if verb.objects:
            obj, pro = self.target(verb, subject, tense, negation, inner)
        if "gift" in verb.traits and self.chance(0.4):
            pro = self.clitic(subject, inner or negation not in ("", "not"), dative=True)
        if pro is None or "gift" not in verb.traits:
            rest = self.complement(verb, subject)
        dated = manner is None and kind in ("action", "once", "event") and negation in ("", "not")
        dated = dated and not ("hour" in verb.traits and tense == "present")  # not 'now at eight o'clock'
        if dated and (not adverb if tense == "habit" else self.chance(0.3)):
            when = self.time(tense)
        rest = join(rest, "", "", when) if rest and when else rest or when
        return Clause(subject, verb, tense, obj, negation, adverb, pro, rest)

    def manner(self, kind: str, tense: str) -> tuple[str, str]:
        """Negation and adverb."""
        if tense == "habit":
            return self.pick((("never", ""), ("", "often"), ("", "always"), ("", ""), ("", ""), ("no longer", "")))
        if tense == "hope" or self.chance(0.84):
            return "", ""
        if (kind, tense) == ("state", "present"):
            return self.pick(("not", "not", "no longer")), ""
        return self.pick(
            ("not", "not", "not", "never" if tense == "past" and kind in ("action", "event") else "not")
        ), ""

    def target(
        self, verb: Verb, subject: Phrase, tense: str, negation: str, inner: bool
    ) -> tuple[Phrase | None, Phrase | None]:
        """The object, either as a phrase or as a pronoun."""
        if "person" in verb.objects and "animal" not in subject.kinds and self.chance(0.5):
            pro = self.clitic(subject, inner) if self.chance(0.55) else None
            return (None, pro) if pro else (self.named(subject), None)
        noun = self.pick(OBJECTS[verb])
        if "generic" in verb.traits or "known" in verb.traits:
            role = "generic" if "generic" in verb.traits else "known"
        elif "sibling" in noun.kinds and verb is VERBS["have"]:
            role = "new"
        else:
            role = negation or ("habit" if tense == "habit" else "object")
        owner = NOBODY if "gain" in verb.traits else subject  # nobody buys a thing of their own
        return self.thing(noun, role, owner, negation, sober="known" in verb.traits), None

    def clitic(self, subject: Phrase, inner: bool, dative: bool = False) -> Phrase | None:
        """An object pronoun: not the subject itself, and in a subordinate clause not 'them', which would be unclear."""
        slot, form = self.pick(((JE, MS), (TU, MS), (IL, MS), (IL, FS), (NOUS, MP), (ILS, MP)))
        if {slot, subject.slot} <= {JE, NOUS} or {slot, subject.slot} <= {TU, VOUS} or (inner and slot == ILS):
            return None
        return clitic(slot, form, dative=dative)

    def state(self, subject: Phrase, name: str, tense: str, negation: str = "") -> Clause:
        """Somebody is hungry (a faim) or tired (est fatigué)."""
        if name in lexicon.FEELINGS and subject.kinds & {"person", "animal"}:  # but of the soup: est froide
            return Clause(subject, HAVE_BE, tense, negation=negation, rest=Phrase(*link(name, lexicon.FEELINGS[name])))
        adjective = ADJECTIVES[name]
        degree = self.pick(DEGREES[:2]) if "very" in adjective.kinds and not negation and self.chance(0.3) else ("", "")
        return Clause(subject, BE, tense, negation=negation, rest=predicate(adjective, subject, degree))

    def description(self, subject: Phrase | None = None, tense: str = "") -> Clause:
        """A description that does not contradict the adjectives that the subject already has."""
        if subject is None:
            noun = self.pick(ANIMALS if self.chance(0.3) else DESCRIBED)
            subject = self.person(sober=True) if self.chance(0.5) else self.thing(noun, sober=True)
        told = tense or self.pick(("present",) * 6 + ("past",) * 2 + ("future",))
        negation = self.pick(("not", "not", "never", "no longer")) if self.chance(0.18) else ""
        negation = "" if bare(subject.en).startswith("all the") else negation
        if "person" in subject.kinds and self.chance(0.25):
            return self.state(subject, self.pick(FEELINGS), told, negation)
        places = ("after", "predicate") if subject.uses else ("after", "predicate", "before")
        adjective = self.pick(adjectives_of(subject.kinds, *places))
        if adjective.kinds & {"nation", "colour"}:  # permanent: 'was green' and 'is never Italian' are odd
            if tense not in ("", "present"):
                return self.description(subject, tense)
            told, negation = "present", "not" if negation else ""
        if told != "present" or "person" not in subject.kinds:
            negation = "not" if negation else ""
        return self.state(subject, adjective.en, told, negation)

    def located(self) -> Phrase:
        """The key is on the table; there is a key on the table; there is no key on the table."""
        dice, tense = self.random(), self.pick(("present", "present", "past"))
        if dice < 0.3:
            noun, place = self.pick(CARRIED), self.at(SURFACES, ("on", "sur"), ("under", "sous"))
        elif dice < 0.5:
            noun, place = self.pick(EATEN), self.at([NOUNS["kitchen"]], ("in", "dans"))
        elif dice < 0.75:
            noun, place = self.pick(ANIMALS), self.where(outside=True)
        else:
            noun, place = self.pick(STRANGERS), self.where()
        if self.chance(0.5):
            return realize(Clause(self.thing(noun), BE, tense, rest=place))
        empty = self.chance(0.2)
        what = noun_phrase(noun, "no", plural="mass" not in noun.kinds) if empty else self.thing(noun, "new")
        be, has = link(*((BE_NOW[what.slot], "a") if tense == "present" else (BE_PAST[what.slot], "avait")))
        there, no = mark(possible=True), mark(possible=True)
        fr = words(f"il{there}", f"ne{no}" if empty else "", f"y{there}", has, f"pas{no}" if empty else "")
        start = Phrase(f"there{there} {be}{no}", fr)
        return join(start, "", "", join(what, "", "", place))

    def presented(self, what: Phrase) -> Phrase:
        """This is my brother, c'est mon frère; these are my sisters, ce sont mes sœurs."""
        this = Phrase(*link("this" if what.slot == IL else "these", "ce"), what.slot)
        return realize(
            Clause(this, BE, negation="not" if self.chance(0.15) and " not " not in bare(what.en) else "", rest=what)
        )

    def identity(self) -> Phrase:
        """Marie is a lawyer, est avocate; Paul is twenty-one years old, a vingt et un ans."""
        subject, tense = self.person(sober=True), self.pick(("present", "present", "past", "future"))
        if self.chance(0.6) and not subject.uses:
            age = self.pick(AGES)
            number = Phrase(*link(lexicon.english_number(age), lexicon.french_number(age)))
            rest = join(number, "", "", Phrase(*link("years old", "ans")))
            return realize(Clause(subject, HAVE_BE, tense, rest=rest))
        job = self.pick(lexicon.JOBS)
        en = f"a {job.en}" if subject.slot in (JE, TU, IL) else lexicon.english_s(job.en)
        return realize(Clause(subject, BE, tense, rest=Phrase(*link(en, job.fr[subject.form]))))

    # Sentences, each with its final punctuation mark.

    def statement(self) -> tuple[Phrase, str]:
        dice = self.random()
        if dice < 0.12:  # Yesterday, ...
            clause = self.clause(self.actor(), self.pick(("past", "future", "near")), manner=PLAINLY)
            done = realize(clause)
            return (done if verb_kind(clause.verb) == "state" else join(self.time(clause.tense), ",", ",", done)), "."
        if dice < 0.58:
            return realize(self.clause(self.actor())), "."
        if dice < 0.8:
            return realize(self.description()), "."
        if dice < 0.88:
            return self.located(), "."
        return (self.presented(self.thing(self.pick(SHOWN), "shown")) if dice < 0.93 else self.identity()), "."

    def reported(self) -> tuple[Phrase, str]:
        """Paul thinks that ...; do you think that ...?"""
        subject, verb = self.person(), self.pick((THINK, SAY, KNOW, BELIEVE, HOPE))
        tense = self.pick(("future", "near")) if verb is HOPE else ""
        inner = self.same_or_other(subject)
        if verb is not HOPE and self.chance(0.25):
            what = self.reason(self.person(subject, inner=True, sober=True))[0]
        elif self.chance(0.25):
            what = realize(self.description(inner, tense))
        else:
            what = realize(self.clause(inner, tense, self.pick(NEXT) if verb is HOPE else None, inner=True))
        clause = Clause(subject, verb, rest=join(Phrase(*link("that", "que")), "", "", what))
        if verb is not HOPE and subject.slot != JE and self.chance(0.2):
            return ask(clause), "?"
        return realize(clause), "."

    def reason(self, subject: Phrase | None = None) -> tuple[Phrase, str]:
        dice, subject = self.random(), subject or self.person(inner=True, sober=True)
        if dice < 0.4:  # Paul is sad because he lost his key
            mood = self.pick(tuple(MOODS))
            other = again(subject) if mood in ("tired", "proud") else self.same_or_other(subject)
            main = self.state(subject, mood, "present")
            why = realize(self.clause(other, "past", self.pick(MOODS[mood]), inner=True, manner=PLAINLY))
        elif dice < 0.75 or subject.slot == ILS:  # the cat is sleeping because it is tired
            subject = self.thing(self.pick(ANIMALS), sober=True) if self.chance(0.2) else subject
            verb, state = self.pick(ANIMAL_MOTIVES if "animal" in subject.kinds else MOTIVES)
            tense, negation = self.pick(("present", "near", "past")), "not" if self.chance(0.2) else ""
            main = self.clause(subject, tense, verb, manner=(negation, ""))
            then = "past" if tense == "past" else "present"
            if state == "rain":
                why = Phrase(*link(*self.pick(WEATHER[then])))
            else:
                why = realize(self.state(again(subject), state, then, negation))
        else:  # I did not buy the dress because it was too expensive: 'it' and 'cher' are feminine, like 'robe'
            verb = self.pick(JUDGE)
            noun = self.pick(JUDGED[verb])
            what, adjective = self.thing(noun, "known", NOBODY, sober=True), self.pick(QUALITY[noun])
            tense, bad = "present" if verb is VERBS["like"] else "past", adjective in BAD
            main = Clause(subject, verb, tense, what, "not" if bad else "")
            it = replace(again(what), noun=what.noun)
            rest = predicate(adjective, it, self.pick(DEGREES) if bad else ("", ""))
            why = realize(Clause(it, BE, tense, rest=rest))
        return join(realize(main), " because", " parce que", why), "."

    def condition(self) -> tuple[Phrase, str]:
        """If it rains, ...; when Anne arrives, ... (French: arrivera); when it snows, I often ..."""
        en, fr, tense, told = self.pick(
            (("if", "si", "plain", "future"), ("when", "quand", "later", "future"), ("when", "quand", "plain", "habit"))
        )
        if told == "habit" or self.chance(0.2):
            first, then = Phrase(*link(*self.pick(WEATHER[tense]))), self.person()
        else:
            subject = self.person(inner=True)
            first = realize(self.clause(subject, tense, self.pick(FIRST), inner=True, manner=PLAINLY))
            then = self.same_or_other(subject)
        manner = self.pick((("", "often"), ("", "always"), ("never", ""))) if told == "habit" else PLAINLY
        main = realize(self.clause(then, told, self.pick(NEXT), inner=True, manner=manner))
        first = join(Phrase(*link(en, fr)), "", "", first)
        if self.chance(0.7) or bare(then.fr) in ("il", "elle", "ils", "elles"):  # a pronoun comes after its noun
            return join(first, ",", ",", main), "."
        return join(main, "", "", first), "."

    def simple_tense(self, verb: Verb) -> str:
        return self.pick(SIMPLE_TENSES[verb_kind(verb)])

    def relative(self) -> tuple[Phrase, str]:
        """The girl who is reading is tired; this is the book that Anne read."""
        if self.chance(0.5):
            head = self.thing(self.pick(STRANGERS if self.chance(0.7) else ANIMALS), "the", sober=True)
            clause = self.clause(who(head), self.pick(("present", "past", "near", "want")), inner=True, manner=PLAINLY)
        else:
            verb = self.pick(TRANSITIVE)
            noun = self.pick([noun for noun in OBJECTS[verb] if "kin" not in noun.kinds])
            head = self.thing(noun, "the", sober=True)
            negation = "not" if self.chance(0.1) else ""
            clause = Clause(self.person(inner=True), verb, self.simple_tense(verb), negation=negation)
        whole, dice = with_relative(head, clause), self.random()
        if dice < 0.2 or not adjectives_of(head.kinds, "after", "predicate"):
            return self.presented(whole), "."
        if dice < 0.4:
            verb = self.pick([verb for verb in VERBS_OF[head.noun] if verb is not clause.verb])
            return realize(Clause(self.person(), verb, self.simple_tense(verb), whole)), "."
        return realize(self.description(whole)), "."

    def sequel(self) -> tuple[Phrase, str]:
        """Anne bought some apples and she washed them: 'them' is feminine, and so is 'lavées'."""
        subject, first, but = self.person(), self.pick(ACQUIRE), self.chance(0.3)
        noun = self.pick(TREATED[first])
        second = self.pick([verb for verb in THEN if noun in OBJECTS[verb]])
        obj = self.thing(noun, "object", NOBODY if "gain" in first.traits else subject)
        it = clitic(obj.slot, obj.form, thing=True, noun=obj.noun)
        rest = self.complement(second, subject) if "gift" in second.traits else None
        main = realize(Clause(subject, first, "past", obj))
        then = Clause(again(subject), second, self.pick(("past", "near")), None, "not" if but else "", "", it, rest)
        return join(main, ", but" if but else " and", ", mais" if but else " et", realize(then)), "."

    def contrast(self) -> tuple[Phrase, str]:
        """Paul likes cats, but he hates cheese; Anne is reading while Luc is singing."""
        subject, like, hate = self.person(), VERBS["like"], VERBS["hate"]
        if self.chance(0.4):
            nouns, verb = (self.pick(OBJECTS[like]), self.pick(OBJECTS[hate])), self.pick((like, hate))
            liked, hated = (noun_phrase(noun, "", plural="mass" not in noun.kinds) for noun in nouns)
            then = Clause(again(subject), verb, obj=hated, negation="not" if verb is like else "")
            if liked.noun != hated.noun:
                return join(realize(Clause(subject, like, obj=liked)), ", but", ", mais", realize(then)), "."
        tense, en, fr = self.pick(
            (("present", " while", " pendant que"), ("past", " and", " et"), ("future", " and", " et"))
        )
        other = self.named(subject)
        one, two = (realize(self.clause(actor, tense, self.pick(NEXT), True, PLAINLY)) for actor in (subject, other))
        return join(one, en, fr, two), "."

    def order(self) -> tuple[Phrase, str]:
        """Close the door! Let us eat the cake! Please open the window."""
        you, verb = Phrase("", "", self.pick((TU, VOUS, NOUS)), kinds=PERSON), self.pick(ORDERS)
        obj = self.thing(self.pick(OBJECTS[verb]), "known", you)
        done = command(Clause(you, verb, "plain", obj, "not" if self.chance(0.2) else ""))
        if you.slot == VOUS:
            please, plait = link("please", "s'il vous plaît")
            return Phrase(f"{please} {done.en}", f"{done.fr}, {plait}", uses=done.uses), "."
        return done, "!"

    def addressed(self) -> tuple[Phrase, Phrase]:
        """The person addressed, and the right 'you': tu for one name, vous for two names, Sir or Madam."""
        one, two, dice = self.pick(NAMES), self.pick(NAMES), self.random()
        if dice < 0.2:
            return Phrase(*link("Madam", "Madame")), pronoun(VOUS, FS)
        if dice < 0.4:
            return Phrase(*link("Sir", "Monsieur")), pronoun(VOUS, MS)
        if dice < 0.8:
            return one, pronoun(TU, one.form)
        return both(one, two), pronoun(VOUS, both(one, two).form)

    def question(self) -> tuple[Phrase, str]:
        dice = self.random()
        if dice < 0.1:  # Qui lit ce livre ?
            return realize(self.clause(Phrase(*link("who", "qui"), kinds=PERSON), manner=PLAINLY)), "?"
        if dice < 0.18:  # Où est le chat ?
            what = self.thing(self.pick(SOUGHT))
            where, be = (
                Phrase(*link("where", "où")),
                Phrase(*link(BE_NOW[what.slot], lexicon.conjugate("être")[what.slot])),
            )
            return join(where, "", "", join(be, "", "", what)), "?"
        if self.chance(0.3):
            title, subject = self.addressed()
            return join(title, ",", ",", self.asked(subject)), "?"
        subject = self.person()
        return self.asked(pronoun(TU) if subject.slot == JE or self.chance(0.35) else subject), "?"

    def asked(self, subject: Phrase) -> Phrase:
        dice = self.random()
        if dice < 0.2:
            return ask(self.description(subject))
        if dice < 0.4:
            return ask(self.clause(subject, manner=PLAINLY))
        if dice < 0.55:
            clause = self.clause(subject, self.pick(("present", "past", "near", "want")))
            clause = self.state(subject, self.pick(tuple(MOODS)), "present") if dice < 0.45 else clause
            return ask(clause, *link("why", "pourquoi"))
        if dice < 0.7:
            en, fr, verbs = self.pick((("where", "où", WHERE), ("when", "quand", WHEN)))
            verb = self.pick(verbs)
            tense = self.simple_tense(verb) if en == "where" else self.pick(("past", "near", "future"))
            return ask(replace(self.clause(subject, tense, verb, manner=PLAINLY), rest=None), *link(en, fr))
        verb = self.pick(WHAT)
        noun, clause = self.pick(OBJECTS[verb]), Clause(subject, verb, self.simple_tense(verb))
        if dice < 0.85 or noun.kinds & {"mass", "kin"}:
            return ask(clause, *link("what", "que"))
        determiner = "how many" if self.chance(0.5) else "which"
        plural = determiner == "how many" or self.chance(0.35)
        what = noun_phrase(noun, determiner, *self.adjectives(noun, sober=True), plural=plural)
        done = ask(replace(clause, moved=what), what.en, what.fr)
        return replace(done, uses=done.uses + what.uses)


# --- The splits ---------------------------------------------------------------------------------------------------


def kept_apart(speaker: Speaker) -> set[Use]:
    """Word pairs that train never shows together: some adjectives with some nouns, some verbs with some objects."""
    uses = [(adjective.en, noun.en[0]) for noun in NOUNS.values() for adjective in BEFORE[noun] + AFTER[noun]]
    uses += [(verb.en[0], noun.en[0]) for verb in VERBS.values() for noun in OBJECTS[verb]]
    return {use for use in uses if speaker.chance(SHARE_APART)} - {("green", "cat"), ("like", "cat")}


Pair = tuple[str, str]


def distinct(speaker: Speaker) -> Iterator[tuple[Pair, Pair, tuple[Use, ...]]]:
    """An endless stream of sentence pairs, bare and marked. No sentence occurs twice in either language."""
    seen: set[str] = set()
    while True:
        *marked, uses = speaker.marked()
        en, fr = map(bare, marked)
        if en not in seen and fr not in seen:
            seen.update((en, fr))
            yield (en, fr), (marked[0], marked[1]), uses


def frequent(texts: Sequence[str]) -> set[str]:
    return {word for word, count in Counter(WORD.findall(" ".join(texts))).items() if count >= MIN_COUNT}


def consists_of(text: str, known: set[str]) -> bool:
    return known.issuperset(WORD.findall(text))


def demo_corpus(seed: int = 1) -> dict[str, list[Pair]]:
    """The splits train, dev and test as (English, French) pairs. No sentence occurs twice in either language.

    Every second pair of dev and test has a word pair that train never shows together. Train has every word of dev and
    test at least MIN_COUNT times. So dev and test measure how a model combines words, not which words it knows.
    """
    return {split: [pair for pair, _ in pairs] for split, pairs in splits(seed).items()}


def alignment(seed: int = 1) -> list[str]:
    """The word alignment of each pair of the test split."""
    return [links(*marked) for _, marked in splits(seed)["test"]]


@cache
def splits(seed: int) -> dict[str, list[tuple[Pair, Pair]]]:
    """The pairs of each split, bare and marked."""
    speaker = Speaker(seed)
    apart, pairs = kept_apart(speaker), distinct(speaker)
    train: list[tuple[Pair, Pair]] = []
    novel: list[tuple[Pair, Pair]] = []
    while len(train) < TRAIN:
        pair, marked, uses = next(pairs)
        (train if apart.isdisjoint(uses) else novel).append((pair, marked))

    known = [frequent(texts) for texts in zip(*(pair for pair, _ in train), strict=True)]
    plain: list[tuple[Pair, Pair]] = []
    novel = [entry for entry in novel if all(map(consists_of, entry[0], known))]
    while min(len(plain), len(novel)) < HELD_OUT:
        pair, marked, uses = next(pairs)
        if all(map(consists_of, pair, known)):
            (plain if apart.isdisjoint(uses) else novel).append((pair, marked))
    mixed = [entry for couple in zip(plain, novel, strict=False) for entry in couple]
    return {"train": train, "dev": mixed[:HELD_OUT], "test": mixed[HELD_OUT : 2 * HELD_OUT]}
