"""What a message asks for, as a shy partner reads it: it answers only what it is asked.

What the writer does not say to the partner is left out first: thoughts, quotations, tables. The rest is cut into
clauses. A clause that asks for scores gives the pairs of the names next to each other in it, and of names that it
takes from the clause before. A clause that suggests an assignment ("should we put Ava on BLEU?") asks for a decision
instead. An ambiguous clause asks for nothing, as one that runs its names into each other: a shy partner does not guess.
"""

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise, product
from typing import Literal, NamedTuple

from slim_rl.games.matching.names import LAST_NAMES, REVIEWERS, SHORT_PAPERS, Mention, find_mentions


def _vocabulary(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _phrase(pattern: str) -> re.Pattern[str]:
    """`pattern`, written over several lines, between word boundaries and in any case."""
    return re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE | re.VERBOSE)


_THINKS = r"(?:think\w*|thoughts?|reason\w*|reflect\w*|scratchpad|analysis)"
THOUGHT = re.compile(
    rf"<({_THINKS})>.*?(?:</\1>|\Z)|\A.*</{_THINKS}>|\[({_THINKS})\].*?\[/\2\]|(?:\A|(?<=\n))\W*thoughts?:[^\n]*",
    re.IGNORECASE | re.DOTALL,
)
QUOTATION = re.compile(r""""[^"\n]*"|(?<!\w)'(?:[^'\n]|\b'\b)*'(?!\w)""")
TABLE_ROW_OR_QUOTE = re.compile(r"^.*\|.*\|.*$|^[^\S\n]*>.*$", re.MULTILINE)
NEW_LINE = re.compile(r"<br\s*/?>", re.IGNORECASE)
EMPHASIS = re.compile(r"[*`]+(?=\S)|(?<=\S)[*`]+")
PUNCTUATION = str.maketrans(
    {"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2013": " - ", "\u2014": " - "}
)
# "Ava - BLEU: ?" and "a ? for Ava" show a cell without a number; these marks ask nothing. Nor does "BLEU ?" next to
# "Electra 40" or "Electra ?".
BLANK = re.compile(
    r"(?:(?<=[-:=,(\[_\t]) *[\[(_]?|\b(?P<verb>is|are|an?|as|with)\s+)(?:\?+|[-_]{1,9}$)|(?<=\s)\?+(?= (?-i:[a-z]))",
    re.IGNORECASE | re.MULTILINE,
)
SPACED_MARK = re.compile(r"(?<=\s)\?+")
_NAME = rf"\b(?:{'|'.join([*SHORT_PAPERS, *' '.join(REVIEWERS).split()])})"
TOLD_CELL = re.compile(rf"{_NAME}\W{{0,4}}\d|\s\?\W{{1,9}}(?:\w+ )?{_NAME}\W{{0,3}}\s\?", re.IGNORECASE)

# A new line or " / " may begin with the number of a list; such a number may also stand before a name inside a line.
SENTENCE_END = re.compile(
    rf"(?:\s*\n|\s/\s(?!(?:{'|'.join(SHORT_PAPERS)})\b))\s*(?:(?:[(q]?(?:\d+|[a-z]|[ivx]+)[.):]|#\d+|\d -)\s)?"
    rf"|\s\(?(?:1|(?<![:=] )\d)[.)]\s(?={_NAME})|(?<=[.!?])\s+|;\s*",
    re.IGNORECASE,
)

# What begins a question in the middle of a sentence.
OPENS = _phrase(r"""
    (?:what|how) (?:'?s)? [ ]about
    | (?:what|how|who|where) [ ] (?:is|are|was|does|do|did|would|can|could)
    | (?:what|how|who|where) 's | hows | whats | how[ ](?:high|good|well|strong)
    | (?:what|which) [ ] (?:\w+[ ])? (?:score|value|rating|number|info|information|data)s?
        (?:[ ](?:do|does|can|would)[ ]\w+)?
    | (?:what|which) [ ] (?:paper|reviewer|people)s?
    | (?:do|did|would|could|can|will|have) [ ] (?:you|u|ya) (?:[ ]please)? (?:[ ](?:tell|give|send|show|let)[ ]me)?
    | (?:can|could|may) [ ]i[ ] (?:get|have|ask|know|see|hear)
    | (?:(?:please|do)[ ])? (?:(?:tell|give|send|show|remind)[ ]me | let[ ]me[ ](?:know|ask))
""")
# What begins a request in the middle of a sentence.
REQUESTS = _phrase(r"""
    (?:(?:i|we) (?:'d|[ ]would)? (?:[ ](?:also|still|really|just))? | would)
        [ ] (?:need|want|like|love|appreciate|find[ ]it)
        (?= [^,:]{0,60} \b (?:know|hear|learn|ask|your|(?:score|value|rating|number|info|information)s?) \b)
    | (?:i|we) (?:[ ](?:also|still|just))? [ ]need (?=:\Z)
    | (?:i|we) (?:'m|[ ]am|[ ]was|'re|[ ]are)? (?:[ ]also|[ ]still)?
        [ ] (?:wonder|wondering|curious|asking|looking[ ]for|hoping[ ](?:you|to)|interested[ ]in|waiting)
    | (?:kindly|please) [ ] (?:\w+[ ])? (?:share|provide|reveal|list|report|state|specify|return)
""")
# A clause with one of these words that speaks of a score asks for it, if it is not one of RECALLS.
WANTS = _phrase(r"""
    please | pls | plz | kindly | grateful | appreciate | help(?:s|ful)? | useful
    | (?:nice|good|great)[ ]to[ ](?:know|hear|have|see|learn|get) | happy[ ]to | important
    | (?:tell|give|send|show)[ ]me | need (?![ ]some) | scores?[ ]needed | looking | ask | question
    | request(?:s|ed|ing)? | require | disclose | state | show
""")
# A clause that begins with this is a question, with or without a question mark.
BEGINS = re.compile(
    r"""\W* (?: (?:and|but|so(?![ ](?:is|are|does|did)\b)|also|or|then|now|well) \b \W*
              | (?:ok|okay|hi|hello|hey|please|kindly|thanks|great|cool|sry|sorry|pls|plz) \b \W* )*
    (?: what (?![ ]i\b|[ ]an?\b) | how | who | whose | where | which[ ](?:reviewer|paper|one)
    | is | are | does | did | any | anything
    | tell | gimme | give[ ](?!\w+[ ]to\b) | share | provide | report | list | need[ ](?:your|.*score)
    | inform | reveal | awaiting | (?:ask|asking|looking|waiting)[ ](?:about|for)
    | request(?:ing)? ) \b""",
    re.IGNORECASE | re.VERBOSE,
)
# The topic of a question, before the question: "For BLEU, what do you have on Ava?"
TOPIC = re.compile(
    r"\W*(?:and |also |so )*(?:for|as for|about|on|regarding|concerning|between|with regards? to)\b"
    r"(?! (?:me|my|now|us)\b)",
    re.IGNORECASE,
)
# What was asked or told before, may be asked, or need not be told is not asked for.
RECALLS = _phrase(r"""
    (?:you|i) (?:'ve|[ ]have)? (?:[ ](?:just|already|earlier))* [ ] (?:asked|told|said|mentioned|wrote)
    | (?:i|we)[ ]already[ ](?:know|have|see) | ignore[ ](?:my|the|that)
    | did[ ]you[ ](?:just[ ])?ask | (?:thanks?|thank[ ]you) [ ]for | feel[ ]free | ask[ ]me
    | (?:let[ ]me[ ]know|tell[ ]me) [ ]if[ ]you (?:'d|[ ]would)? [ ](?:need|want|like)
    | (?:no|not|never|(?:do|did|wo|would|need)n't) [ ] (?:\w+[ ])? (?:need|have[ ]to|ask|want|tell|share) | later
""")
# What comes after "You asked:" is a quotation: a sentence, or a line below it and those that list or name something.
QUOTED = re.compile(
    r"\b(?:(?:you|i)(?:'\w+)?(?: have| just| already)* (?:asked|said|wrote)(?: me| you)?"
    r"|your questions?(?: was| were)?|(?:my|the) (?:\w+ )?questions? (?:was|were)) ?[:(]"
    rf"(?:[^\S\n]*[^\s?!.][^\n?!.]*[?!.]*|\s*\n[^\n]+(?:\n\s*(?:[-*\d]|{_NAME})[^\n]*)*)",
    re.IGNORECASE,
)
OFFERS = _phrase(r"(?:i|we) \b (?: (?!\byou\b) [^,.?] ){0,60} \b (?:share|tell|give|provide|show|send|offer|gave)")

SCORE = _phrase(
    "(?:score|value|rating|number|point|info|information|data|stat|expertise)s? | how[ ](?:good|well|strong|high)"
)
# Words of assigning and agreeing.
SUGGESTS = _phrase(r"""
    put(?:ting|s)? | plac(?:e|ed|ing) | assign(?:ed|ing|s)? | mov(?:e|ed|ing) | leav(?:e|es|ing) | left[ ]with
    | (?:lock|keep|propos|reject|select|settl|slot|stay|stick|swap|switch|agree|accept)\w*
    | bring | choose | why | take[ns]? | took | best[ ](?:choice|option) | picked | pick | toss
    | fill[ ](?!in\b|me\b|the[ ]gap) | instead | maybe | perhaps | possibly | should | shall
    | let'?s (?![ ](?:fill|see|check|compare|exchange|share|start|talk)\b)
    | go(?:es|ing)? [ ] (?:with|for|to|on) | give[ ]\w+[ ]to | have[ ]\w+[ ](?:do|be|review)
    | (?:can|could|may|might|must|are|if) [ ]we | (?:can|could|may) [ ]i[ ] (?:tell|give|send|share)
    | (?:can|could) [ ] (?:he|she|they) [ ] (?:go|be|do)
    | (?:ok|okay|happy|fine|cool|you[ ]good) [ ]with
    | (?:it|that|this) [ ] (?:be[ ])?
        (?:ok|okay|fine|alright|possible (?![ ](?:for[ ]you[ ])?to[ ](?:get|know|see|hear|learn|share)\b))
    | would[ ]you[ ](?:like|prefer|want) | (?:do|did)[ ]you[ ](?:want|prefer|need)
    | (?<!how[ ]) (?:does|do|would|will|could|might) \b [^?]{0,60} \b works?
    | confirm (?! [^?]* (?:score|value|number))
""")
SEEKS_APPROVAL = re.compile(
    r"(?:\b(?:ok|okay|alright|fine|agreed|deal|good idea|right|correct|works?|sounds? good|help)|, good)\W*$",
    re.IGNORECASE,
)
# "I think Ava would be good for SWAG?" is a statement in spite of its question mark.
STATES = re.compile(
    r"\W*(?:(?:and|but|so|also|ok|okay|well|yes|yeah|no|then)\b\W*)*(?:i|my|here)\b"
    r"|.*\bi (?:have|got|guess|think|believe)\b",
    re.IGNORECASE,
)
# "Who is good at BLEU besides Ava?" does not ask about Ava.
EXCLUDES = re.compile(
    r"\b(?:besides|except(?: for)?|(?:other|rather) than|apart from|aside from|outside(?: of)?|instead of|not"
    r"|(?:any|some|every|no)\s?(?:one|body)\b.{0,60}\bthan)\W*$",
    re.IGNORECASE,
)

# "I have 57 for Ava on BLEU, what about you?" A clause of only these words asks about the names before it, if one of
# them points there.
ECHO_WORDS = _vocabulary(
    "a about and any anything ask better board both but can care could d do does end exact exactly for from get give "
    "got happen has have help her higher his how i idea info information is it know let like look looks me mind number "
    "numbers of on one or out please precise precisely provide s same score scores see share show side so tell telling "
    "that the them there these this those to value values what whats who with would you your yours"
)
POINTS = _vocabulary(
    "exact exactly idea it number one precise same score share tell telling that them there these this those value who "
    "you your yours"
)
POINTS_TO_ONE = _vocabulary("it one that there this")
POINTS_TO_SEVERAL = _vocabulary("both them these those")
MAY_POINT_TO_SEVERAL = _vocabulary("numbers scores values who")
# "And for GloVe?" A clause of only names and these words continues the question before it.
FOLLOW_UP_WORDS = _vocabulary(
    "a about also and any as at concerning do does for have her his how in info is namely on or paper regarding "
    "respect s same score scores specifically the their then to too well what with you"
)
# "Score for Ava on BLEU." A clause of only names and these words asks, if it speaks of a score.
BARE_WORDS = _vocabulary(
    "a again also an and for in it its next now of on or paper papers question reviewer reviewers s same score "
    "scores the then to value values your"
)
LISTED_WORDS = BARE_WORDS | FOLLOW_UP_WORDS | {"unknown"}
ASKS_BARE = _phrase(r"scores? | values? | same[ ]question | next")
# A request that lists the pairs below it or in the next clause.
ANNOUNCES = _phrase(
    r"following | below | th(?:ese|ose|em) | (?:one|a[ ]few|some)[ ](?:\w+[ ])?(?:score|value|number|cell|pair)s?"
)
OPINION = _phrase("think|feel|thoughts?|views?|feedback|opinion|looks?|sounds?")
# With one of these words, a list of pairs asks for scores: "Please tell me Ava on BLEU, Daniel on GloVe, ...".
TELLS = _phrase(r"""
    (?:know | (?:tell|give|send|show|remind)[ ]me) (?![ ]if) | (?:do|can|could|may)[ ](?:you|i)[ ](?:have|see|get)
    | share | provide | reveal | specify | request(?:ing)? | ask(?:ing)? | answer | fill | learn | hear | need | curious
    | looking[ ]for | help[ ]me | please(?=:) | (?:\A | please | you) \W* (?:list | report | state | return)
""")
# A list of pairs next to one of these words is up for a decision.
DECIDES = _phrase("whether|yes|good|better|best|plan|assignments?|final|work(?:s|ing)?|decide")
# What stands between the names of a list or of a comparison: "Ava and Daniel", "Ava better than Daniel".
JOINS = re.compile(
    r"[,;:/&+|\n]|\s-|\b(?:and|n|or|nor|et|then|plus|as|than|like|to|with|vs|versus|against|over|from)\b", re.I
)
FIRST_AND_LAST = _phrase(
    " [ ] ".join("(?:" + "|".join(names) + ")" for names in zip(*map(str.split, REVIEWERS), strict=True))
)
_FULL_NAMES = {name.lower() for name in REVIEWERS}
PERSON = _phrase("he|she|they|his|her|him|their|them")
PLACE = _phrase("(?:that|this|the[ ]same)[ ](?:paper|one)|it|(?<!is[ ])there")

Pair = tuple[int, int]
"""A reviewer and a paper, by index."""


def asks_something(text: str) -> bool:
    """Whether the message asks for anything at all, a score or not."""
    return _read(text, len(REVIEWERS)).asks


def is_malformed(text: str, size: int) -> bool:
    """Whether a clause that asks runs its names into each other: "How is Sofia Patel Nguyen score BLEU Li?". It asks for
    nothing."""
    return _read(text, size).malformed


def asked_cells(text: str, size: int) -> list[Pair]:
    """The cells (reviewer, paper) whose scores the message asks for, in order, without duplicates.

    Args:
        size: reviewers on the board; names that are not in play are passed over.
    """
    return list(_read(text, size).cells)


def _runs(mentions: Sequence[Mention]) -> list[list[Mention]]:
    """Consecutive mentions of the same kind, grouped."""
    return [list(run) for _, run in groupby(mentions, key=lambda mention: mention.kind)]


def _included(clause: str, mentions: list[Mention]) -> list[Mention]:
    """The mentions without those that the clause excludes ("besides Ava")."""
    included = []
    for run in _runs(mentions):
        start = run[0].start
        if not EXCLUDES.search(clause[max(0, start - 80) : start]):
            included += run
    return included


def _other_words(clause: str, mentions: Sequence[Mention]) -> set[str]:
    """The words and numbers of a clause outside of its names, in lower case."""
    ends = [0, *(mention.end for mention in mentions)]
    starts = [*(mention.start for mention in mentions), len(clause)]
    outside = " ".join(clause[end:start] for end, start in zip(ends, starts, strict=True))
    return set(re.findall(r"[^\W\d_]+|\d+", outside.lower()))


class _Clause:
    """A clause of a message."""

    said: Literal["asked", "stated", "suggested"] = "stated"

    def __init__(self, text: str, size: int, first: bool):
        self.text = text
        self.mentions: Sequence[Mention] = _included(text, find_mentions(text, size))
        """The names in it; once it is read, also those that it takes from the clause before."""
        self.kinds = {mention.kind for mention in self.mentions}
        self.words = _other_words(text, self.mentions)
        self.first = first
        """Whether the clause before it names nobody."""

    @property
    def only_a_name(self) -> bool:
        """It is no more than "BLEU:" or "As for Ava,"."""
        return len(self.kinds) == 1 and self.words <= FOLLOW_UP_WORDS

    @property
    def only_a_score(self) -> bool:
        """It is no more than "Your score for Ava on BLEU"."""
        scores = self.words <= BARE_WORDS and ASKS_BARE.search(self.text)
        return len(self.kinds) == 2 and bool(scores)

    @property
    def tells_numbers(self) -> bool:
        return any(word == "unknown" or word.isdecimal() for word in self.words)


_NOTHING = _Clause("", size=0, first=True)


class _Reading(NamedTuple):
    asks: bool
    cells: tuple[Pair, ...]
    malformed: bool


@lru_cache(maxsize=4096)
def _read(text: str, size: int) -> _Reading:
    asks_anything, malformed, listing, before = False, False, False, _NOTHING
    cells: list[Pair] = []
    for part in _clauses(text):
        clause = _Clause(part, size, first=not before.mentions)
        asks = _asks(part)
        follows = clause.only_a_name and bool(before.mentions)
        follows = follows and (before.said == "asked" or (asks and before.only_a_name))
        asks = asks or follows or clause.only_a_score or (_wants(part) and bool(clause.kinds or part.endswith(":")))
        # The lines below "Please tell me your scores for:"
        listing = listing and bool(clause.kinds) and clause.words <= LISTED_WORDS
        if _suggests(part) or (asks and not listing and _assigns(clause)):
            clause.said, listing = "suggested", False
        elif (asked := listing or (asks and not _states(part))) and _runs_names_together(clause):
            malformed, clause.mentions = True, ()
        elif asked:
            clause.said, clause.mentions = "asked", _completed(clause, before, follows)
            cells += named_pairs(clause.mentions, part)
            announces = part.endswith(":") or (not clause.mentions and ANNOUNCES.search(part))
            listing = listing or bool(announces and _for_scores(part))
        asks_anything, before = asks_anything or asks, clause
    return _Reading(asks_anything, tuple(dict.fromkeys(cells)), malformed)


def _runs_names_together(clause: _Clause) -> bool:
    """Whether two names follow each other that are neither a pair nor in a list or a comparison."""
    text, runs = clause.text, _runs(clause.mentions)
    if any(name[0].lower() not in _FULL_NAMES for name in FIRST_AND_LAST.finditer(text)):
        return True
    for one, other in pairwise(clause.mentions):
        between, alike = text[one.end : other.start].strip(), one.kind == other.kind
        if between and alike and len(runs) > 1 and not JOINS.search(between):
            return True
        last_name = any(text[name.start : name.end].lower() in LAST_NAMES for name in (one, other))
        ends = other is runs[-1][0] and len(runs) > 1 and len(runs) % 2 == 1
        if not between and (ends or (alike and last_name)):
            return True
    return False


def _clauses(text: str) -> Iterator[str]:
    """The clauses of a message: its sentences, cut where a question begins inside one."""
    text = re.sub(r"[^\S\n]+", " ", _addressed(text))
    return (clause for sentence in SENTENCE_END.split(text) for clause in _cut(sentence) if clause)


def _addressed(text: str) -> str:
    """What a message says to the partner, in plain characters; a "?" that stands for a number becomes "unknown"."""
    text = NEW_LINE.sub("\n", THOUGHT.sub("", text)).strip()
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(PUNCTUATION)
    if text[:1] == text[-1:] == '"' and text.count('"') == 2:
        text = text.strip('"')
    text = QUOTED.sub("", TABLE_ROW_OR_QUOTE.sub("", text))
    text = QUOTATION.sub(_without_sentences, text)
    text = BLANK.sub(r"\g<verb> unknown", EMPHASIS.sub("", text))
    return SPACED_MARK.sub("unknown", text) if " ?" in text and TOLD_CELL.search(text) else text


def _without_sentences(quotation: re.Match[str]) -> str:
    """A quoted name; nothing in the place of a quoted sentence."""
    return " " if "?" in quotation[0] or len(quotation[0].split()) > 3 else quotation[0]


def _cut(sentence: str) -> Iterator[str]:
    start = 0
    for opening in sorted((*OPENS.finditer(sentence), *REQUESTS.finditer(sentence)), key=re.Match.start):
        head = sentence[start : opening.start()].rstrip()
        # Without a question mark, "I know what is best" is not a question.
        cuts = "?" in sentence or re.search(r"(?:[-,:]|\b(?:and|but|so))$", head[-4:])
        if cuts and re.search(r"\w", head) and not TOPIC.match(head):
            yield head
            start = opening.start()
    yield sentence[start:].strip()


def _asks(clause: str) -> bool:
    opening = OPENS.search(clause)
    starts = opening and (not re.search(r"\w", clause[: opening.start()]) or TOPIC.match(clause))
    please = re.search(r"\bplease\W*$", clause, re.IGNORECASE)
    if not ("?" in clause or starts or please or BEGINS.match(clause) or REQUESTS.search(clause)):
        return False
    recalled = RECALLS.search(clause)
    return not recalled or bool(opening and opening.start() < recalled.start())


def _wants(clause: str) -> bool:
    """Whether a clause asks for a score in the form of a statement: "It would help to know your score for..."."""
    return bool(SCORE.search(clause) and WANTS.search(clause)) and not (RECALLS.search(clause) or OFFERS.search(clause))


def _suggests(clause: str) -> bool:
    """Whether a clause suggests an assignment rather than asking for scores."""
    if SEEKS_APPROVAL.search(clause):
        return True
    suggestion, score = SUGGESTS.search(clause), SCORE.search(clause)
    # "What score would Ava get if we put her on BLEU?" still asks for a score.
    return suggestion is not None and (score is None or suggestion.start() < score.start())


def _for_scores(clause: str) -> bool:
    """Whether a clause that asks speaks of scores, or of telling and not of an opinion or a decision."""
    judged = OPINION.search(clause) or DECIDES.search(clause)
    return bool(SCORE.search(clause) or (TELLS.search(clause) and not judged))


def _assigns(clause: _Clause) -> bool:
    """Whether a clause lists the pairs of an assignment: "Ava on BLEU, Daniel on GloVe, Sofia on Electra?"."""
    # No assignment gives a name twice.
    twice = clause.words <= LISTED_WORDS and len({name[:2] for name in clause.mentions}) < len(clause.mentions)
    if len(clause.mentions) < 4 or twice or _for_scores(clause.text):
        return False
    return len(_runs(clause.mentions)) > (3 if OPINION.search(clause.text) else 5)


def _states(clause: str) -> bool:
    return bool(STATES.match(clause)) and not (OPENS.search(clause) or REQUESTS.search(clause) or _wants(clause))


def _completed(clause: _Clause, before: _Clause, follows: bool) -> Sequence[Mention]:
    """The mentions of a clause that asks, with the names that it takes from the clause before.

    An echo ("and you?") takes the pair, a follow-up ("and for GloVe?") or a pronoun ("how is she on BLEU?") a name.
    """
    words = clause.words
    if not clause.mentions:
        one = len(before.mentions) == 2 and words & (POINTS if before.first else POINTS_TO_ONE)
        # After a list of pairs, "and you?" asks for another list, "please share them" for these.
        names_several = POINTS_TO_SEVERAL | (set() if before.tells_numbers else MAY_POINT_TO_SEVERAL)
        points = one or (before.first and words & names_several)
        echoes = points and before.said != "suggested" and words <= ECHO_WORDS
        return before.mentions if echoes else ()
    pronoun = PLACE if "reviewer" in clause.kinds else PERSON
    if len(clause.kinds) == 1 and (follows or pronoun.search(clause.text)):
        others = [run for run in _runs(before.mentions) if run[0].kind not in clause.kinds]
        return [*others[-1], *clause.mentions] if others else clause.mentions
    return clause.mentions


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
    named: list[tuple[Pair, str]] = []
    for sentence in re.split(r"[.!?\n]+", text):
        numbers = re.findall(r"\d+", sentence)
        pairs = list(named_pairs(find_mentions(sentence, size), sentence)) if numbers else []
        named += zip(pairs, numbers, strict=False)
    return tuple(named)


_TURN = re.compile(r"\s*\[(\w+)\]\s*")
_REFUSES = re.compile(
    r"""\b (?: (?:do|does|did|can|could) (?:n['\u2019]?t|[ ]?not) [ ] (?:know|have|see|say|tell)
    | no[ ](?:info|information|idea|data|score|clue) | not[ ]sure | unsure | hard[ ]to[ ]say
    | (?:is|are|am|['\u2019]s|['\u2019]re) [ ] (?:blank|unknown) | nothing[ ](?:on|for|about) | never[ ]mind ) \b""",
    re.IGNORECASE | re.VERBOSE,
)


class Asked(NamedTuple):
    """A cell that a message asks for."""

    cell: Pair
    known: bool
    """The asker sees it."""
    repeated: bool
    """The asker asked for it before."""
    with_number: bool
    """The other player's next turn answers with a number."""


def classify(turns: Sequence[tuple[str, str]], asker: str, seen: Collection[Pair], size: int) -> list[Asked]:
    """The cells that one seat asked for in an episode, in order.

    Args:
        turns: (seat, text) of all seats in order. A text may begin with a tag like "[message]"; with any other tag it
            asks for nothing.
        seen: the (reviewer, paper) pairs whose score the asker sees from the start.
        size: reviewers on the board.
    """
    questions: list[Asked] = []
    for number, (seat, text) in enumerate(turns):
        cells = asked_cells(_message(text), size) if seat == asker else []
        told = _told(next((said for speaker, said in turns[number + 1 :] if speaker != asker), "")) if cells else ()
        before = {asked.cell for asked in questions}
        for cell in cells:
            with_number = any(cell in named or (not named and len(cells) == 1) for named in told)
            questions.append(Asked(cell, cell in seen, cell in before, with_number))
    return questions


def _message(turn: str) -> str:
    """What a turn says; nothing if its tag says that it is no message."""
    tag = _TURN.match(turn)
    if tag is None:
        return turn
    return turn[tag.end() :] if tag[1].lower() == "message" else ""


@lru_cache(maxsize=4096)
def _told(reply: str) -> tuple[frozenset[Pair], ...]:
    """The cells that each sentence with a number names."""
    return tuple(
        frozenset(named_pairs(find_mentions(sentence, len(REVIEWERS)), sentence))
        for sentence in re.split(r"[.!?\n]+", _message(reply))
        if re.search(r"\d", sentence) and not _REFUSES.search(sentence)
    )
