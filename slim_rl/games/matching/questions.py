"""What a message asks for, as a shy partner reads it: it answers only what it is asked.

What the writer does not say to the partner is left out first: thoughts, quotations, tables. The rest is cut into
clauses. A clause that asks for scores gives the pairs of the names next to each other in it. A clause that suggests an
assignment ("should we put Ava on BLEU?") asks for a decision instead. An ambiguous clause asks for nothing: a shy
partner does not guess. Of languages other than English, it knows the commonest requests without a question mark.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby, product
from typing import Literal, NamedTuple

from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS, Mention, find_mentions

Pair = tuple[int, int]
"""A reviewer and a paper, by index."""


def _vocabulary(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _words(pattern: str) -> re.Pattern[str]:
    """`pattern`, written over several lines, between word boundaries and in any case."""
    return re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE | re.VERBOSE)


_THOUGHT = re.compile(r"<(think\w*)>.*?(?:</\1>|\Z)|\A.*</think\w*>", re.IGNORECASE | re.DOTALL)
_QUOTATION = re.compile(r""""[^"\n]*"|(?<!\w)'(?:[^'\n]|\b'\b)*'(?!\w)""")
_TABLE_ROW = re.compile(r"^.*\|.*\|.*$", re.MULTILINE)
_EMPHASIS = re.compile(r"[*`]+(?=\S)|(?<=\S)[*`]+")
_PUNCTUATION = str.maketrans({"\u2019": "'", "\u2018": "'", "\u3002": ". ", "\u3001": ", "}) | str.maketrans(
    dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d", '"') | dict.fromkeys("\u2013\u2014", " - ")
)
_SCRIPT_CHANGE = re.compile(r"(?<=[\u3040-\u9fff])(?=[A-Za-z])|(?<=[A-Za-z])(?=[\u3040-\u9fff])")
# "Ava - BLEU: ?" and "a ? for Ava" show a cell without a number; these marks ask nothing. Nor does "BLEU ?" next to
# "Electra 40".
_BLANK = re.compile(
    r"(?:(?<=[:=,(\[_])\s*[\[(_]?|\b(?P<verb>is|are|an?|as|with)\s+)\?+|(?<=\s)\?+(?=\s+[a-z])", re.IGNORECASE
)
_SPACED_MARK = re.compile(r"(?<=\s)\?+")
_TOLD_CELL = re.compile(rf"\b(?:{'|'.join([*SHORT_PAPERS, *' '.join(REVIEWERS).split()])})\W{{0,4}}\d", re.IGNORECASE)

_SENTENCE_END = re.compile(
    rf"(?<=[.!?])\s+|\s+/\s+(?!(?:{'|'.join(SHORT_PAPERS)})\b)|\s*(?:\n|<br\s*/?>)\s*(?:\d+[.)]\s)?|;\s*", re.IGNORECASE
)

# What begins a question in the middle of a sentence.
_OPENS = _words(r"""
    (?:what|how) (?:'?s)? [ ]about
    | (?:what|how|who|where) [ ] (?:is|are|was|does|do|did|would|can|could)
    | (?:what|how|who|where) 's | hows | whats | how[ ](?:high|good|well|strong)
    | (?:what|which) [ ] (?:\w+[ ])? (?:score|value|rating|number|info|information|data)s?
        (?:[ ](?:do|does|can|would)[ ]\w+)?
    | (?:what|which) [ ] (?:paper|reviewer|people)s?
    | (?:do|did|would|could|can|will|have) [ ] (?:you|u|ya)
    | (?:can|could|may) [ ]i[ ] (?:get|have|ask|know|see|hear)
    | (?:please[ ])? (?:tell|give|send|show|remind) [ ]me | (?:do[ ])?let[ ]me[ ]know
""")
# What begins a request in the middle of a sentence.
_REQUESTS = _words(r"""
    (?:(?:i|we) (?:'d|[ ]would)? (?:[ ](?:also|still|really|just))? | would)
        [ ] (?:need|want|like|love|appreciate|find[ ]it)
        (?= [^,:]{0,60} \b (?:know|hear|learn|ask|your|(?:score|value|rating|number|info|information)s?) \b)
    | (?:i|we) (?:'m|[ ]am|[ ]was|'re|[ ]are)? (?:[ ]also|[ ]still)?
        [ ] (?:wonder|wondering|curious|asking|looking[ ]for|hoping[ ](?:you|to)|interested[ ]in|waiting)
    | (?:kindly|please) [ ] (?:\w+[ ])? (?:share|provide|reveal|list|report|state|specify|return)
""")
# A clause with one of these words that speaks of a score asks for it, if it is not one of _RECALLS.
_WANTS = _words(r"""
    please | pls | plz | kindly | grateful | appreciate | help(?:s|ful)? | useful | (?:nice|good|great)[ ]to[ ](?:know|hear|have|see|learn|get) | scores?[ ]needed | ask | asking
    | question | request(?:s|ing)? | require | (?:is|are)[ ]needed | (?:need|want) (?![ ](?:some|to[ ](?!know|ask|hear|learn|see|get|have))) | (?:would|'d) [ ] (?:like|love) | happy[ ]to | interested
    | curious | wonder | hoping | looking | (?:a)?waiting | possible | share | tell | reveal | disclose | state | show
    | double-check | bitte | m\u00f6chte | por[ ]favor | gustar\u00eda | quiero | voudrais | aimerais
""")
# A clause that begins with this is a question, with or without a question mark.
_BEGINS = re.compile(
    r"""\W* (?: (?:and|but|so(?![ ](?:is|are|does|did)\b)|also|or|then|now|well) \b \W*
              | (?:ok|okay|hi|hello|hey|please|kindly|thanks|great|cool|sry|sorry|pls|plz) \b \W* )*
    (?: what (?![ ]i\b|[ ]an?\b) | how | who | whose | where | which[ ](?:reviewer|paper|one)
    | is | are | does | did | any | anything
    | tell | gimme | give[ ](?!\w+[ ]to\b) | share | provide | report | list | need[ ](?:your|.*score)
    | inform | reveal | awaiting | (?:ask|asking|looking|waiting)[ ](?:about|for)
    | request(?:ing)? | bitte | sag | nenne? | dime | donne | dis | ich[ ](?:brauche|m\u00f6chte) | necesito | quisiera | j'ai[ ]besoin
    ) \b | .* (?: \u8bf7 | \u544a\u8bc9 | [\u60f3\u8981]\u77e5\u9053 | \u591a\u5c11 | \u6559\u3048\u3066 )""",
    re.IGNORECASE | re.VERBOSE,
)
# The topic of a question, before the question: "For BLEU, what do you have on Ava?"
_TOPIC = re.compile(
    r"\W*(?:and |also |so )*(?:for|as for|about|on|regarding|concerning|between|with regards? to)\b"
    r"(?! (?:me|my|now|us)\b)",
    re.IGNORECASE,
)
# What was asked or told before, may be asked, or need not be told is not asked for.
_RECALLS = _words(r"""
    (?:you|i) (?:'ve|[ ]have)? (?:[ ](?:just|already|earlier))* [ ] (?:asked|told|said|mentioned)
    | did[ ]you[ ](?:just[ ])?ask | (?:thanks?|thank[ ]you) [ ]for | feel[ ]free | ask[ ]me
    | (?:let[ ]me[ ]know|tell[ ]me) [ ]if[ ]you (?:'d|[ ]would)? [ ](?:need|want|like)
    | (?:no|not|never|\w+n't) [ ] (?:\w+[ ])? (?:need|have[ ]to|ask|want) | later
""")
_OFFERS = _words(r"(?:i|we) \b (?: (?!\byou\b) [^,.?] )* \b (?:share|tell|give|provide|show|send|offer|gave)")

_SCORE = _words(r"""
    (?:score|value|rating|number|point|info|information|data|stat|expertise)s?
    | wert | punktzahl | punt[ua]\w+ | \u5206\u6570 | \u8bc4\u5206 | \u5f97\u5206
    | how[ ](?:good|well|strong|high)
""")
# Words of assigning and agreeing.
_SUGGESTS = _words(r"""
    put(?:ting|s)? | plac(?:e|ed|ing) | assign(?:ed|ing|s)? | mov(?:e|ed|ing) | leav(?:e|es|ing) | left[ ]with
    | (?:lock|keep|propos|reject|select|settl|slot|stay|stick|swap|switch|agree|accept)\w*
    | bring | choose | why | take[ns]? | took | best[ ](?:choice|option) | fill[ ](?!in\b|me\b|the[ ]gap) | picked | pick | toss
    | instead | maybe | perhaps | possibly | let'?s (?![ ](?:fill|see|check|compare|exchange|share|start|talk)\b) | should | shall
    | go(?:es|ing)? [ ] (?:with|for|to|on) | give[ ]\w+[ ]to | have[ ]\w+[ ](?:do|be|review)
    | (?:can|could|may|might|must|are|if) [ ]we | (?:can|could|may) [ ]i[ ] (?:tell|give|send|share)
    | (?:can|could) [ ] (?:he|she|they) [ ] (?:go|be|do)
    | (?:ok|okay|happy|fine|cool|you[ ]good) [ ]with
    | (?:it|that|this) [ ] (?:be[ ])? (?:ok|okay|fine|alright|possible (?![ ](?:for[ ]you[ ])?to[ ](?:get|know|see|hear|learn|share)\b))
    | would[ ]you[ ](?:like|prefer|want) | (?:do|did)[ ]you[ ](?:want|prefer|need)
    | (?<!how[ ]) (?:does|do|would|will|could|might) \b [^?]{0,60} \b works?
    | confirm (?! [^?]* (?:score|value|number))
    | de[ ]acuerdo | deber\u00eda | te[ ]parece | d'accord | passt | in[ ]ordnung
    | \w* (?: \u540c\u610f | \u5efa\u8bae | \u53ef\u4ee5\u5417 ) \w*
""")
_SEEKS_APPROVAL = re.compile(
    r"(?:\b(?:ok|okay|alright|fine|agreed|deal|good idea|right|correct|works?|sounds? good|help)|, good)\W*$",
    re.IGNORECASE,
)
# "I think Ava would be good for SWAG?" is a statement in spite of its question mark.
_STATES = re.compile(
    r"\W*(?:(?:and|but|so|also|ok|okay|well|yes|yeah|no|then)\b\W*)*(?:i|my|here)\b"
    r"|.*\bi (?:have|got|guess|think|believe)\b",
    re.IGNORECASE,
)
# "Who is good at BLEU besides Ava?" does not ask about Ava.
_EXCLUDES = re.compile(
    r"\b(?:besides|except(?: for)?|(?:other|rather) than|apart from|aside from|outside(?: of)?|instead of|not"
    r"|(?:any|some|every|no)\s?(?:one|body)\b.{0,60}\bthan)\W*$",
    re.IGNORECASE,
)

# "I have 57 for Ava on BLEU, what about you?" A clause of only these words asks about the names before it, if one of
# them points there.
_ECHO_WORDS = _vocabulary(
    "a about and any anything board both but can could do does end for from get give got happen has have help her higher his"
    " how i info information is it know let look looks me mind number numbers of on one or out please provide same"
    " score scores see share show side so tell telling that the them there these this those to value values what whats"
    " who with would you your yours better s"
)
_POINTS = _vocabulary("it number one same score telling value that them there these this those who you your yours")
_POINTS_TO_ONE = _vocabulary("it one that there this")
_POINTS_TO_SEVERAL = _vocabulary("both them these those")
_MAY_POINT_TO_SEVERAL = _vocabulary("numbers scores values who")
# "And for GloVe?" A clause of only names and these words continues the question before it.
_FOLLOW_UP_WORDS = _vocabulary(
    "a about also and any as at do does concerning for have her his how in info is namely on or paper regarding respect s same score scores"
    " specifically the their then to too well what with you"
)
# "Score for Ava on BLEU." A clause of only names and these words asks, if it speaks of a score.
_BARE_WORDS = _vocabulary(
    "a again also an and for in it its next now of on or paper papers question reviewer reviewers s same score scores"
    " the then to value values your"
)
_LISTED_WORDS = _BARE_WORDS | _FOLLOW_UP_WORDS | {"unknown"}
_ASKS_BARE = _words(r"scores? | values? | same[ ]question | next")
# A request that lists the pairs below it or in the next clause.
_ANNOUNCES = _words(
    r"following | below | these | those | (?:one|a[ ]few|some)[ ](?:\w+[ ])?(?:score|value|number|cell|pair)s?"
)
_OPINION = _words("think|feel|opinion|looks?|sounds?")
_PERSON = _words("he|she|they|his|her|him|their|them")
_PLACE = _words("(?:that|this|the[ ]same)[ ](?:paper|one)|it|(?<!is[ ])there")


@lru_cache(maxsize=4096)
def asks_something(text: str) -> bool:
    """Whether the message asks for anything at all, a score or not."""
    return any(clause.asks for clause in read_clauses(text, len(REVIEWERS)))


def asked_cells(text: str, size: int) -> list[Pair]:
    """The cells (reviewer, paper) whose scores the message asks for, in order, without duplicates.

    Args:
        size: reviewers on the board; names that are not in play are passed over.
    """
    return list(dict.fromkeys(pair for clause in read_clauses(text, size) for pair in clause.pairs))


class Clause(NamedTuple):
    """A clause of a message."""

    text: str
    asks: bool
    """Whether it asks for anything at all."""
    pairs: tuple[Pair, ...]
    """The pairs whose scores it asks for."""


class _Topic(NamedTuple):
    """What the clause before was about."""

    mentions: Sequence[Mention] = ()
    said: Literal["asked", "stated", "suggested"] = "stated"
    numbers: bool = False
    """Whether it told numbers, or that they are unknown."""
    first: bool = True
    """Whether the clause before it named nobody."""
    bare: bool = False
    """Whether it was only a name: "BLEU:"."""


@lru_cache(maxsize=4096)
def read_clauses(text: str, size: int) -> tuple[Clause, ...]:
    """The clauses of a message on a board of `size` reviewers, in order."""
    read, topic, listing = [], _Topic(), False
    for clause in _clauses(text):
        mentions = _included(clause, find_mentions(clause, size))
        rest, kinds = _rest(clause, mentions), {mention.kind for mention in mentions}
        asks = _asks(clause)
        continued = topic.said == "asked" or (asks and topic.bare)
        follows = continued and bool(topic.mentions) and len(kinds) == 1 and rest <= _FOLLOW_UP_WORDS
        bare = len(kinds) == 2 and rest <= _BARE_WORDS and _ASKS_BARE.search(clause) is not None
        asks = asks or follows or bare or ((bool(mentions) or clause.endswith(":")) and _wants(clause))
        pairs: tuple[Pair, ...] = ()
        if _suggests(clause) or (asks and _assigns(clause, mentions)):
            topic, listing = _Topic(mentions, "suggested"), False
        else:
            listing = listing and bool(mentions) and rest <= _LISTED_WORDS
            for_scores = listing or (asks and not _states(clause))
            if for_scores:
                mentions = _completed(clause, rest, mentions, topic, follows)
                pairs = tuple(named_pairs(mentions, clause))
                listing = listing or clause.endswith(":") or (not mentions and _ANNOUNCES.search(clause) is not None)
            head = len(kinds) == 1 and rest <= _FOLLOW_UP_WORDS
            numbers = any(word == "unknown" or word.isdecimal() for word in rest)
            topic = _Topic(mentions, "asked" if for_scores else "stated", numbers, not topic.mentions, head)
        read.append(Clause(clause, asks, pairs))
    return tuple(read)


@lru_cache(maxsize=4096)
def _clauses(text: str) -> tuple[str, ...]:
    """The clauses of a message: its sentences, cut where a question begins inside one."""
    text = re.sub(r"[^\S\n]+", " ", _addressed(text))
    return tuple(clause for sentence in _SENTENCE_END.split(text) for clause in _cut(sentence) if clause)


def _addressed(text: str) -> str:
    """What a message says to the partner, in plain characters."""
    text = unicodedata.normalize("NFKC", _THOUGHT.sub("", text)).translate(_PUNCTUATION).strip()
    if text[:1] == text[-1:] == '"' and text.count('"') == 2:
        text = text.strip('"')
    text = _QUOTATION.sub(
        lambda quoted: quoted[0] if len(quoted[0].split()) < 4 and "?" not in quoted[0] else " ",
        _TABLE_ROW.sub("", text),
    )
    text = _BLANK.sub(r"\g<verb> unknown", _SCRIPT_CHANGE.sub(" ", _EMPHASIS.sub("", text)))
    return _SPACED_MARK.sub("unknown", text) if _TOLD_CELL.search(text) else text


def _cut(sentence: str) -> Iterator[str]:
    start = 0
    for opening in sorted((*_OPENS.finditer(sentence), *_REQUESTS.finditer(sentence)), key=re.Match.start):
        head = sentence[start : opening.start()].rstrip()
        # Without a question mark, "I know what is best" is not a question.
        cuts = "?" in sentence or re.search(r"(?:[-,:]|\b(?:and|but|so))$", head)
        if cuts and re.search(r"\w", head) and not _TOPIC.match(head):
            yield head
            start = opening.start()
    yield sentence[start:].strip()


def _asks(clause: str) -> bool:
    opening, recalled = _OPENS.search(clause), _RECALLS.search(clause)
    if recalled and not (opening and opening.start() < recalled.start()):
        return False
    if "?" in clause or _BEGINS.match(clause) or re.search(r"\bplease\W*$", clause, re.IGNORECASE):
        return True
    starts = opening is not None and (not re.search(r"\w", clause[: opening.start()]) or bool(_TOPIC.match(clause)))
    return starts or _REQUESTS.search(clause) is not None


def _wants(clause: str) -> bool:
    """Whether a clause asks for a score in the form of a statement: "It would help to know your score for..."."""
    return bool(_SCORE.search(clause) and _WANTS.search(clause)) and not (
        _RECALLS.search(clause) or _OFFERS.search(clause)
    )


def _suggests(clause: str) -> bool:
    """Whether a clause suggests an assignment rather than asking for scores."""
    if _SEEKS_APPROVAL.search(clause):
        return True
    suggestion, score = _SUGGESTS.search(clause), _SCORE.search(clause)
    # "What score would Ava get if we put her on BLEU?" still asks for a score.
    return suggestion is not None and (score is None or suggestion.start() < score.start())


def _assigns(clause: str, mentions: Sequence[Mention]) -> bool:
    """Whether a clause lists the pairs of an assignment: "Ava on BLEU, Daniel on GloVe, Sofia on Electra?"."""
    return not _SCORE.search(clause) and len(_runs(mentions)) > (3 if _OPINION.search(clause) else 5)


def _states(clause: str) -> bool:
    return bool(_STATES.match(clause)) and not (_OPENS.search(clause) or _REQUESTS.search(clause) or _wants(clause))


def _runs(mentions: Sequence[Mention]) -> list[list[Mention]]:
    """Consecutive mentions of the same kind, grouped."""
    return [list(run) for _, run in groupby(mentions, key=lambda mention: mention.kind)]


def _included(clause: str, mentions: list[Mention]) -> list[Mention]:
    """The mentions without those that the clause excludes ("besides Ava")."""
    return [mention for run in _runs(mentions) if not _EXCLUDES.search(clause[: run[0].start]) for mention in run]


def _rest(clause: str, mentions: Sequence[Mention]) -> set[str]:
    """The words of a clause outside of its names, and its numbers."""
    for mention in reversed(mentions):
        clause = clause[: mention.start] + " " + clause[mention.end :]
    return set(re.findall(r"[^\W\d_]+|\d+", clause.lower()))


def _completed(clause: str, rest: set[str], mentions: list[Mention], topic: _Topic, follows: bool) -> Sequence[Mention]:
    """The mentions of a clause that asks, with the names that it takes from the clause before.

    An echo ("and you?") takes the pair, a follow-up ("and for GloVe?") or a pronoun ("how is she on BLEU?") a name.
    """
    if not mentions:
        # After several pairs, "and you?" asks for others, too.
        one = len(topic.mentions) == 2 and (topic.first or bool(rest & _POINTS_TO_ONE))
        several = topic.first and bool(
            rest & _POINTS_TO_SEVERAL or (rest & _MAY_POINT_TO_SEVERAL and not topic.numbers)
        )
        points = (one and rest & _POINTS) or several
        echoes = points and topic.said != "suggested" and rest <= _ECHO_WORDS
        return topic.mentions if echoes else []
    kinds = {mention.kind for mention in mentions}
    pronoun = _PLACE if "reviewer" in kinds else _PERSON
    if len(kinds) == 1 and (follows or pronoun.search(clause)):
        others = [run for run in _runs(topic.mentions) if run[0].kind not in kinds]
        return [*others[-1], *mentions] if others else mentions
    return mentions


def named_pairs(mentions: Sequence[Mention], clause: str) -> Iterator[Pair]:
    """Pairs from each run of names and the next run; an odd last run goes with the run before it."""
    runs = _runs(mentions)
    couples = [(runs[i], runs[i + 1]) for i in range(0, len(runs) - 1, 2)]
    if len(runs) > 1 and len(runs) % 2:
        couples.append((runs[-2], runs[-1]))
    for couple in couples:
        reviewers, papers = couple if couple[0][0].kind == "reviewer" else reversed(couple)
        matched = "respectively" in clause.lower() and len(reviewers) == len(papers)
        for reviewer, paper in zip(reviewers, papers, strict=True) if matched else product(reviewers, papers):
            yield reviewer.index, paper.index


@lru_cache(maxsize=4096)
def told_numbers(text: str, size: int) -> tuple[tuple[Pair, str], ...]:
    """Each pair that a sentence names with a number, and that number; asked for or not, true or not."""
    told: list[tuple[Pair, str]] = []
    for sentence in re.split(r"[.!?\n]+", text):
        numbers = re.findall(r"\d+", sentence)
        pairs = list(named_pairs(find_mentions(sentence, size), sentence)) if numbers else []
        told += zip(pairs, numbers, strict=False)
    return tuple(told)
