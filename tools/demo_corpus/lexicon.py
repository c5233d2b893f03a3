"""The words of the demo corpus, English beside French, and the rules that make the forms of each word.

A table gives the dictionary form. An irregular form stands behind a slash (mouse/mice, beau/belle/bel; '=' for no
change at all). An underscore is a space. Nouns are listed by kinds. Adjectives and verbs list the kinds of noun that
they go with, so that nobody eats a house. grammar.py makes sentences of these words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

# The persons of a verb, and the forms of a noun or adjective, numbered 'feminine + 2 * plural'.
JE, TU, IL, NOUS, VOUS, ILS = range(6)
MS, FS, MP, FP = range(4)

# kinds: English, French, gender. Kinds say what a thing is, or what people do with it.
NOUN_TABLE = """
person adult gent                    : man/men homme m, king roi m
person adult lady                    : woman/women femme f, queen reine f
person child gent                    : boy garçon m
person child lady                    : girl fille f
person child                         : child/children enfant m
person adult job                     : student étudiant m, nurse infirmière f, artist artiste m, soldier soldat m
person adult job own                 : teacher professeur m, doctor médecin m
person adult job lady                : actress actrice f
person gent                          : hero héros m
person adult                         : neighbour voisin m, tourist touriste m
person adult kin own                 : friend ami m
person kin own one                   : mother mère f, father père m, grandmother grand-mère f
person kin own sibling               : brother frère m, sister sœur f, uncle oncle m, aunt tante f
animal pet hue                       : cat chat m, bird oiseau m, tortoise tortue f
animal pet                           : dog chien m, horse cheval m, rabbit lapin m, hamster hamster m
animal                               : mouse/mice souris f, cow vache f, goat chèvre f, duck canard m
animal                               : owl hibou/hiboux m, elephant éléphant m, squirrel écureuil m
animal wild                          : bear ours m, lion lion m, wolf/wolves loup m
food fruit feed sliced fresh         : apple pomme f
food fruit feed sliced               : pear poire f
food fruit sliced fresh              : tomato tomate f
food sliced                          : orange orange f, potato pomme_de_terre/pommes_de_terre f, onion oignon m
food fresh                           : strawberry fraise f, egg œuf m
food feed sliced                     : carrot carotte f
food                                 : lobster homard m
food made sliced                     : cake gâteau m
food made                            : sandwich sandwich m, omelette omelette f
mass meal feed made sliced fresh     : bread pain m
mass meal made warm                  : soup soupe f
mass meal origin sliced              : cheese fromage m
mass meal sliced                     : meat viande f
mass meal                            : rice riz m, honey miel m, chocolate chocolat m
mass meal fresh                      : fish poisson m
mass meal made                       : salad salade f, jam confiture f, ice_cream glace f
mass drink warm lapped               : water eau f
mass drink warm lapped fresh         : milk lait m
mass drink warm                      : coffee café m, tea thé m
mass drink origin                    : wine vin m, beer bière f
mass drink                           : orange_juice jus_d'orange m
text written origin portable printed : book livre m
text written portable                : letter lettre f
text origin portable printed         : newspaper journal m
text written                         : story histoire f, poem poème m, article article m
text note                            : message message m
text written origin printed          : novel roman m
thing portable                       : key clé f, umbrella parapluie m, knife/knives couteau m, jewel bijou/bijoux m
thing portable opened                : bag sac m, box boîte f, gift cadeau m
thing fragile washed                 : glass verre m, plate assiette f, cup tasse f
thing fragile portable               : toy jouet m, phone téléphone m, guitar guitare f
thing fragile                        : computer ordinateur m, clock horloge f, lamp lampe f
thing surface washed                 : table table f
thing surface                        : chair chaise f, bed lit m
art origin                           : painting tableau m
film origin                          : film film m
part hue opened washed               : door porte f
part opened washed fragile           : window fenêtre f
wear portable                        : hat chapeau m, coat manteau m, scarf/scarves écharpe f
wear washed                          : dress robe f, shirt chemise f, skirt jupe f
wear                                 : shoe chaussure f, uniform uniforme m
vehicle origin washed                : car voiture f
vehicle washed                       : bicycle vélo m
vehicle                              : boat bateau m
building in sold own                 : house maison f
building in seen                     : castle château m, church église f
building in at                       : hotel hôtel m, hospital hôpital m, library bibliothèque f
building at own                      : school école f, university université f
building at                          : station gare f
building in at seen museum           : museum musée m
site in at                           : restaurant restaurant m
site at                              : market marché m, beach plage f, cinema cinéma m, airport aéroport m
site in seen own                     : garden jardin m
site in seen                         : village village m
site in                              : park parc m, forest forêt f
room in washed own                   : kitchen cuisine f, bedroom chambre f
road in                              : street rue f
road                                 : bridge pont m
road water                           : river rivière f
water                                : lake lac m
tall seen                            : tower tour f
tall                                 : mountain montagne f, wall mur m
plant                                : tree arbre m
plant hue                            : flower fleur f
"""

# Third column: "before" or "after" the noun; "epithet": before the noun, and never after 'is'; "predicate": only there.
# Kinds that only adjectives have: 'very' for adjectives with degrees; 'colour' and 'nation' for adjectives that may be
# the second of two.
ADJECTIVE_TABLE = """
small            petit                    before     child animal thing part wear vehicle building site room food plant
big              grand                    before     animal thing part vehicle building site room plant
beautiful        beau/belle/bel           before     lady animal wear building art plant seen
handsome         beau/belle/bel           before     gent
pretty           joli                     before     lady wear plant seen room
old              vieux/vieille/vieil      before     adult animal thing part wear vehicle building text art film
young            jeune                    before     adult animal
new              nouveau/nouvelle/nouvel  epithet    job thing wear vehicle building text film
good             bon/bonne                epithet    job text film food meal drink
bad              mauvais                  epithet    job text film
long             long/longue              before     text film road
high             haut                     before     tall
green            vert                     after      colour hue thing wear vehicle fruit
red              rouge                    after      colour hue thing wear vehicle fruit
yellow           jaune                    after      colour hue thing wear vehicle fruit
blue             bleu                     after      colour hue thing wear vehicle
white            blanc/blanche            after      colour hue animal thing wear vehicle
black            noir                     after      colour animal thing wear vehicle
grey             gris                     after      colour animal thing wear vehicle
brown            marron/=                 after      colour animal thing wear vehicle
orange           orange/=                 after      colour thing wear vehicle
purple           violet/violette          after      colour thing wear
French           français                 after      nation adult origin
English          anglais                  after      nation adult origin
Spanish          espagnol                 after      nation adult origin
German           allemand                 after      nation adult origin
Italian          italien                  after      nation adult origin
American         américain                after      nation adult origin
intelligent      intelligent              after      very person animal
kind             gentil/gentille          after      very person
honest           honnête                  after      very person
brave            courageux                after      very person
happy            heureux                  after      very person
sad              triste                   after      very person
tired            fatigué                  after      very person animal
rich             riche                    after      very adult
shy              timide                   after      very person
active           actif                    after      very person animal
curious          curieux                  after      very person animal
loyal            loyal                    after      very adult pet
famous           célèbre                  after      very job art film museum
dangerous        dangereux                after      very wild
interesting      intéressant              after      very text art film museum
delicious        délicieux                after      food meal
fresh            frais/fraîche            after      very fresh
hot              chaud                    after      very warm
cold             froid                    after      very warm
expensive        cher                     after      very wear vehicle
clean            propre                   after      very washed
dirty            sale                     after      very washed
modern           moderne                  after      very building art
glad             content                  predicate  very person
proud            fier                     predicate  very person
sick             malade                   predicate  very person animal
ready            prêt                     predicate  person
alone            seul                     predicate  person animal
late             en_retard/=              predicate  very person
angry            en_colère/=              predicate  very person
"""

# Third column: the kinds of object. Then the traits:
#   state    English uses the simple present; the French past is the imperfect
#   sense    English uses the simple present
#   event    has no present tense: it is over too soon
#   once     is never a habit
#   known    the object is known already (the, my)
#   gain     the object is not owned yet
#   generic  the object may be a whole kind (cats)
#   animal   animals do it too; beast: animals do it to objects of their own
# The other traits say what may follow: a place, a person, an hour.
VERB_TABLE = """
eat/ate                      manger        food,meal                                             place
drink/drank                  boire         drink                                                 place
read/read                    lire          text                                                  place
write/wrote                  écrire        written,note                                          place
buy/bought                   acheter       thing,wear,vehicle,printed,food,meal,drink            gain
sell/sold                    vendre        thing,wear,vehicle,sold,food,pet
have/had                     avoir         pet,thing,wear,vehicle,sibling                        state
want                         vouloir       pet,thing,wear,vehicle,food,meal,drink                state
like                         aimer         animal,food,meal,drink,wear,seen,art,film,text        state generic
love                         adorer        animal,food,meal,drink,wear,seen,art,film,text        state generic
hate                         détester      food,meal,drink,wear,art,film                         state generic
prefer/preferred/preferring  préférer      animal,food,meal,drink,wear,art,text                  state generic
see/saw                      voir          person,animal,building,plant,tall,road,vehicle        sense
look_at                      regarder      person,animal,plant,art,seen,tall,road,water,vehicle  once
look_for                     chercher      person,pet,portable                                   place once
follow                       suivre        person,animal                                         once
know/knew                    connaître     person                                                state
help                         aider         person                                                place
call                         appeler       person
wait_for                     attendre      person                                                place
listen_to                    écouter       person
invite                       inviter       person
understand/understood        comprendre    text,person                                           sense known
meet/met                     rencontrer    person                                                event place
open                         ouvrir        opened
close                        fermer        opened                                                known
clean                        nettoyer      washed,room                                           known
wash                         laver         washed
break/broke                  casser        fragile                                               event
lose/lost                    perdre        portable                                              event
find/found                   trouver       portable,pet                                          event place
forget/forgot/forgetting     oublier       portable                                              event
take/took                    prendre       portable                                              once
wear/wore                    porter        wear
put_on/put/putting           mettre        wear
draw/drew                    dessiner      animal,plant,building                                 place
paint                        peindre       animal,plant,part,tall
watch                        regarder      film                                                  place
make/made                    faire         made                                                  place gain
cut/cut/cutting              couper        sliced
choose/chose                 choisir       wear,printed,food,vehicle                             gain once
finish                       finir         written,made                                          known once
start                        commencer     written                                               known once
visit                        visiter       seen
give/gave                    donner        thing,text,food                                       gift
show                         montrer       thing,text,art                                        gift
send/sent                    envoyer       written,note                                          gift
sleep/slept                  dormir        -                                                     inside animal
play                         jouer         -                                                     outside animal
run/ran/running              courir        -                                                     outside animal
walk                         marcher       -                                                     outside animal
rest                         se_reposer    -                                                     inside animal
work                         travailler    -                                                     place
sing/sang                    chanter       -                                                     place
dance                        danser        -                                                     place
cry                          pleurer       -                                                     place once
laugh                        rire          -                                                     with
smile                        sourire       -
speak/spoke                  parler        -                                                     with
swim/swam/swimming           nager         -                                                     water
get_up/got/getting           se_lever      -                                                     hour
wake_up/woke                 se_réveiller  -                                                     hour
go_to_bed/went               se_coucher    -                                                     hour
leave/left                   partir        -                                                     hour
go_out/went                  sortir        -                                                     with
arrive                       arriver       -                                                     arrival once
go/went                      aller         -                                                     to
come_back/came               revenir       -                                                     from
come_from/came               venir         -                                                     state home
live                         habiter       -                                                     state city
travel/travelled/travelling  voyager       -                                                     country
stay                         rester        -                                                     place
fall/fell                    tomber        -                                                     event outside
eat/ate                      manger        feed                                                  beast place
drink/drank                  boire         lapped                                                beast
see/saw                      voir          person,animal                                         beast sense
look_at                      regarder      person,animal                                         beast once
follow                       suivre        person,animal                                         beast place once
"""

# The six persons of the present, the participle, the stem of the future.
IRREGULAR_TABLE = """
avoir       ai        as        a        avons       avez       ont          eu       aur
être        suis      es        est      sommes      êtes       sont         été      ser
aller       vais      vas       va       allons      allez      vont         allé     ir
vouloir     veux      veux      veut     voulons     voulez     veulent      voulu    voudr
pouvoir     peux      peux      peut     pouvons     pouvez     peuvent      pu       pourr
devoir      dois      dois      doit     devons      devez      doivent      dû       devr
savoir      sais      sais      sait     savons      savez      savent       su       saur
dire        dis       dis       dit      disons      dites      disent       dit      dir
faire       fais      fais      fait     faisons     faites     font         fait     fer
croire      crois     crois     croit    croyons     croyez     croient      cru      croir
voir        vois      vois      voit     voyons      voyez      voient       vu       verr
lire        lis       lis       lit      lisons      lisez      lisent       lu       lir
écrire      écris     écris     écrit    écrivons    écrivez    écrivent     écrit    écrir
boire       bois      bois      boit     buvons      buvez      boivent      bu       boir
prendre     prends    prends    prend    prenons     prenez     prennent     pris     prendr
comprendre  comprends comprends comprend comprenons  comprenez  comprennent  compris  comprendr
mettre      mets      mets      met      mettons     mettez     mettent      mis      mettr
dormir      dors      dors      dort     dormons     dormez     dorment      dormi    dormir
partir      pars      pars      part     partons     partez     partent      parti    partir
sortir      sors      sors      sort     sortons     sortez     sortent      sorti    sortir
venir       viens     viens     vient    venons      venez      viennent     venu     viendr
revenir     reviens   reviens   revient  revenons    revenez    reviennent   revenu   reviendr
ouvrir      ouvre     ouvres    ouvre    ouvrons     ouvrez     ouvrent      ouvert   ouvrir
courir      cours     cours     court    courons     courez     courent      couru    courr
rire        ris       ris       rit      rions       riez       rient        ri       rir
sourire     souris    souris    sourit   sourions    souriez    sourient     souri    sourir
suivre      suis      suis      suit     suivons     suivez     suivent      suivi    suivr
connaître   connais   connais   connaît  connaissons connaissez connaissent  connu    connaîtr
peindre     peins     peins     peint    peignons    peignez    peignent     peint    peindr
envoyer     envoie    envoies   envoie   envoyons    envoyez    envoient     envoyé   enverr
"""

# The stem before a silent ending: j'achète, but nous achetons.
STRONG_STEM = {
    "acheter": "achèt",
    "appeler": "appell",
    "lever": "lèv",
    "nettoyer": "nettoi",
    "préférer": "préfèr",
    "espérer": "espèr",
}
WITH_ETRE = {"aller", "venir", "revenir", "arriver", "partir", "rester", "sortir", "tomber"}  # and all reflexives

# An h that blocks elision: le héros, la haute tour. Every other h is mute: l'homme, l'hôtel.
ASPIRATED = ("héros", "hibou", "hamster", "homard", "haut")
VOWEL = rf"(?!onze\b|huit\b|{'|'.join(ASPIRATED)})[aeiouyàâéèêîôœhAEIOUÉ]"

MEN = ["Paul", "Luc", "Pierre", "Thomas", "Louis", "Antoine", "Adrien", "Éric"]
WOMEN = ["Marie", "Claire", "Julie", "Sophie", "Léa", "Anne", "Alice", "Inès"]
CITY_TABLE = (
    "Paris Lyon Rome Madrid Amsterdam Athens/Athènes London/Londres Brussels/Bruxelles Geneva/Genève Venice/Venise"
)
# Feminine countries stand without an article (en Italie, d'Italie), the others with one (au Canada, des États-Unis).
COUNTRY_TABLE = (
    "France Italy/Italie Spain/Espagne Germany/Allemagne England/Angleterre Canada/le_Canada Japan/le_Japon "
    "Portugal/le_Portugal Brazil/le_Brésil the_United_States/les_États-Unis"
)
DAY_TABLE = (
    "Monday/lundi Tuesday/mardi Wednesday/mercredi Thursday/jeudi Friday/vendredi Saturday/samedi Sunday/dimanche"
)
# 'She is a lawyer': French has no article here, so these words agree like adjectives.
JOB_TABLE = "lawyer/avocat student/étudiant musician/musicien baker/boulanger journalist/journaliste dentist/dentiste"
# 'She is hungry': French says 'she has hunger'.
FEELING_TABLE = "hungry/faim thirsty/soif cold/froid afraid/peur sleepy/sommeil right/raison wrong/tort"

NUMBER_TABLE = (
    "zero/zéro one/un two/deux three/trois four/quatre five/cinq six/six seven/sept eight/huit nine/neuf ten/dix "
    "eleven/onze twelve/douze thirteen/treize fourteen/quatorze fifteen/quinze sixteen/seize seventeen/dix-sept "
    "eighteen/dix-huit nineteen/dix-neuf"
)
TEN_TABLE = (
    "twenty/vingt thirty/trente forty/quarante fifty/cinquante sixty/soixante seventy/soixante eighty/quatre-vingt "
    "ninety/quatre-vingt"
)


# eq=False: each entry is one object, compared and hashed by identity.


@dataclass(frozen=True, eq=False)
class Noun:
    en: tuple[str, str]  # singular, plural
    fr: tuple[str, str]
    feminine: bool
    kinds: frozenset[str]


@dataclass(frozen=True, eq=False)
class Adjective:
    en: str
    fr: tuple[str, ...]  # MS, FS, MP, FP
    before_vowel: str  # MS before a vowel: bel, nouvel, vieil
    place: str
    kinds: frozenset[str]


@dataclass(frozen=True, eq=False)
class Verb:
    en: tuple[str, ...]  # eat, eats, ate, eating
    fr: str  # the infinitive, without 'se'
    reflexive: bool = False
    objects: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()


def english_s(word: str) -> str:
    """The plural of a noun and the third person of a verb: cats, churches, stories, goes, plays."""
    if re.search(r"(s|x|sh|ch|o)$", word):
        return word + "es"
    return re.sub(r"(?<![aeiou])y$", "ie", word) + "s"


def english_verb(cell: str) -> tuple[str, ...]:
    """'eat/ate' or 'get_up/got/getting' -> base, third person, past, -ing, each followed by its particle."""
    head, *irregular = cell.split("/")
    base, *particle = head.split("_")
    third = "has" if base == "have" else english_s(base)
    past = irregular[0] if irregular else re.sub("e$", "", re.sub(r"(?<![aeiou])y$", "i", base)) + "ed"
    ing = irregular[1] if len(irregular) > 1 else re.sub("(?<!e)e$", "", base) + "ing"
    return tuple(" ".join((form, *particle)) for form in (base, third, past, ing))


def english_article(word: str) -> str:
    """a or an, by the sound that follows: a uniform, an honest man."""
    return "an" if re.match("(?!uni)[aeiouAEI]|hon(?!ey)", word) else "a"


def begins_with_vowel(french: str) -> bool:
    return re.match(VOWEL, french) is not None


@cache
def pluralize(word: str) -> str:
    """chats, chevaux, gâteaux, souris."""
    if word[-1] in "sx":
        return word
    return word[:-1] + "ux" if word.endswith("al") else word + ("x" if word.endswith("eau") else "s")


def feminize(word: str) -> str:
    """verte, rouge, heureuse, active, chère, italienne."""
    for ending, form in (("e", "e"), ("eux", "euse"), ("f", "ve"), ("er", "ère"), ("en", "enne")):
        if word.endswith(ending):
            return word.removesuffix(ending) + form
    return word + "e"


@cache
def participle(infinitive: str, form: int = MS) -> str:
    """The past participle, agreed: mangé, mangée, mangés, mangées; pris, prise, pris, prises."""
    if infinitive in IRREGULAR:
        word = IRREGULAR[infinitive][6]
    else:
        word = infinitive[:-2] + {"er": "é", "ir": "i", "re": "u"}[infinitive[-2:]]
    word += "e" * (form % 2)
    return pluralize(word) if form >= MP else word


@cache
def conjugate(infinitive: str, tense: str = "present") -> tuple[str, ...]:
    """The six persons of the present, the imperfect or the future."""
    stem, ending = infinitive[:-2], infinitive[-2:]
    strong = STRONG_STEM.get(infinitive, stem)
    if tense == "imperfect":
        # The corpus uses the imperfect of states only. "nous mangions" would need another stem than "je mangeais".
        root = "ét" if infinitive == "être" else conjugate(infinitive)[NOUS].removesuffix("ons")
        return tuple(root + end for end in ("ais", "ais", "ait", "ions", "iez", "aient"))
    if tense == "future":
        root = infinitive.removesuffix("e")
        if infinitive in IRREGULAR:
            root = IRREGULAR[infinitive][7]
        elif not infinitive.endswith("érer"):  # j'achèterai, but je préférerai
            root = strong + root[len(stem) :]
        return tuple(root + end for end in ("ai", "as", "a", "ons", "ez", "ont"))
    if infinitive in IRREGULAR:
        return IRREGULAR[infinitive][:6]
    if ending == "er":
        soft = stem + "e" if stem.endswith("g") else re.sub("c$", "ç", stem)  # nous mangeons, nous commençons
        return (strong + "e", strong + "es", strong + "e", soft + "ons", stem + "ez", strong + "ent")
    ends = ("is", "is", "it", "issons", "issez", "issent") if ending == "ir" else ("s", "s", "", "ons", "ez", "ent")
    return tuple(stem + end for end in ends)


def english_number(n: int) -> str:
    if n < 20:
        return NUMBERS[n][0]
    return TENS[n // 10 - 2][0] + ("-" + NUMBERS[n % 10][0] if n % 10 else "")


def french_number(n: int, feminine: bool = False) -> str:
    """vingt et une pommes, soixante et onze, quatre-vingts, quatre-vingt-un."""
    if n < 20:
        word = NUMBERS[n][1]
    else:
        unit = n % 20 if n >= 60 else n % 10  # from 60 on, units go up to 19: soixante-dix-neuf
        link = " et " if unit in (1, 11) and n < 80 else "-"
        word = TENS[n // 10 - 2][1] + (link + NUMBERS[unit][1] if unit else "s" if n == 80 else "")
    return word + "e" if feminine and word.endswith("un") else word


def _rows(table: str) -> list[list[str]]:
    return [row.split() for row in table.strip().splitlines()]


def _nouns(row: str) -> list[Noun]:
    kinds, _, entries = row.partition(":")
    nouns = []
    for entry in entries.split(","):
        en, fr, gender = entry.split()
        one, _, many = en.replace("_", " ").partition("/")
        un, _, des = fr.replace("_", " ").partition("/")
        forms = (one, many or english_s(one)), (un, des or pluralize(un))
        nouns.append(Noun(*forms, gender == "f", frozenset(kinds.split())))
    return nouns


def _adjective(en: str, fr: str, place: str, *kinds: str) -> Adjective:
    he, *irregular = fr.replace("_", " ").split("/")
    if irregular == ["="]:
        return Adjective(en, (he,) * 4, he, place, frozenset(kinds))
    she = irregular[0] if irregular else feminize(he)
    forms = (he, she, pluralize(he), pluralize(she))
    return Adjective(en, forms, irregular[1] if len(irregular) > 1 else he, place, frozenset(kinds))


def _verb(en: str, fr: str, objects: str, *traits: str) -> Verb:
    kinds = frozenset(objects.replace("-", "").split(","))
    return Verb(english_verb(en), fr.removeprefix("se_"), fr.startswith("se_"), kinds - {""}, frozenset(traits))


def pairs(table: str) -> list[tuple[str, str]]:
    cells = (cell.replace("_", " ").partition("/") for cell in table.split())
    return [(en, fr or en) for en, _, fr in cells]


IRREGULAR = {infinitive: tuple(forms) for infinitive, *forms in _rows(IRREGULAR_TABLE)}
NOUNS = {noun.en[0]: noun for row in NOUN_TABLE.strip().splitlines() for noun in _nouns(row)}
ADJECTIVES = {adjective.en: adjective for adjective in (_adjective(*row) for row in _rows(ADJECTIVE_TABLE))}
ALL_VERBS = [_verb(*row) for row in _rows(VERB_TABLE)]
VERBS = {verb.en[0]: verb for verb in ALL_VERBS if "beast" not in verb.traits}
JOBS = [_adjective(en, fr, "predicate") for en, fr in pairs(JOB_TABLE)]
CITIES, COUNTRIES, DAYS, NUMBERS, TENS = map(pairs, (CITY_TABLE, COUNTRY_TABLE, DAY_TABLE, NUMBER_TABLE, TEN_TABLE))
FEELINGS = dict(pairs(FEELING_TABLE))
