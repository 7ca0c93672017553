"""What a message asks, and what each question was good for.

`find_questions` reads a message alone: it cuts it into sentences, decides for each whether it seeks an answer
from the partner, and sorts it by who and what is named in it. What counts as a question is written down in
`tests/analysis/questions/GUIDELINE.md`; `python -m benchmarks.questions` scores this module against people's
messages that were labelled by it. `classify` adds what only the episode knows: what a question points back to
("For what?"), what the asker saw, what it had asked before, and what the partner replied.

The partner at the table reads messages by stricter rules (`slim_rl.games.matching.questions`), because it
answers only what is clearly asked. Here a question counts whether or not anybody would answer it.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import takewhile
from typing import Literal, NamedTuple

from slim_rl.games.matching.names import Mention, find_mentions
from slim_rl.games.matching.questions import Pair, named_pairs

Kind = Literal["specific", "reviewer", "paper", "general", "proposal", "social"]
KINDS: tuple[Kind, ...] = ("specific", "reviewer", "paper", "general", "proposal", "social")

FindNames = Callable[[str], list[Mention]]
NAMES: FindNames = partial(find_mentions, size=8, loosely=True)
"""Finds the names of the matching game; a game with other names brings a finder of its own."""


@dataclass(frozen=True, slots=True)
class Question:
    kind: Kind
    text: str
    """The clause that asks."""
    start: int
    """Where in the message it stands."""
    pairs: tuple[Pair, ...] = ()
    """The (reviewer, paper) pairs that it names, if it is specific."""
    leans: bool = False
    """Its kind leans on the turns before: "For what?" """


def _words(pattern: str, whole: bool = True) -> re.Pattern[str]:
    """`pattern` over several lines, in any case: _ for a blank, ~ for an apostrophe that may be missing."""
    pattern = pattern.replace("_", "[ ]").replace("~", "['\u2019]?")
    return re.compile(rf"\b(?:{pattern})\b" if whole else pattern, re.IGNORECASE | re.VERBOSE)


# Finding them. -----------------------------------------------------------------------------------------

# Without any of these words and without a mark a sentence asks nothing: most sentences end here.
_TELLTALE = frozenset(
    re.findall(
        r"\w+",
        """what whats wha which who whom whos whose where wheres how hows why when is are was were do does did don
        doesn didn isn aren can could would wouldn will should shall may might have has any anything anyone anybody
        tell give share show send list provide report describe explain remind let lmk need know hear wondering wonder
        curious want wanna thoughts ideas suggestions check ask asking request requesting care canwe doyou canyou
        you lemme wdyt whatcha help like love""",
    )
)
_LETTERS = re.compile(r"[a-z]+")
_LINE = re.compile(r"<br\s*/?>", re.IGNORECASE)
_END = re.compile(r"[?.!;\n](?<!\b(?:[Mm][rs]|[Dd]r|vs)\.)[?.!;\n\"')\u201d]*\s*")
_QUOTATION = re.compile(r"(?<=\W)[\"\u201c][^\"\u201c\u201d\n]+[\"\u201d](?=\W|$)")

_AUX = """(?: is|are|was|were|do|does|did|can|could|would|will|should|shall|may|might|have|has
    |isn~t|aren~t|don~t|doesn~t|didn~t|can~t|couldn~t|wouldn~t|won~t|shouldn~t|haven~t|hasn~t )"""
_WHO = "(?: you|u|ya|i|we|he|she|they|it|that|this|there|these|those|anyone|anybody|someone|anything|everything|everyone)"
_MATTER = """(?: (?:score|value|rating|number|paper|reviewer|option|idea|suggestion|recommendation|change|pair
    |thought|color|colour|shade|match|cell|square|one)s? | info(?:rmation)? | data | people | person | expertise )"""
# What asks wherever a clause begins.
_OPENING = rf"""(?:
    (?:what|how)_(?:about|bout) | what_if_(?:we|i|you) | why~d | wdyt | what(?:_u|_you|cha)_got
    | (?:how|who|where)(?:['\u2019]s|s) | what(?:['\u2019]s|s)(?!_(?:best|good|left|important)_(?:for|is)\b)
    | (?:what|wha|how|who|whom|where|why)_(?:else_)?{_AUX}
    | which_(?:of_)? (?:\w+_){{0,2}}? {_MATTER} | what_(?!an?_)(?:\w+_){{0,2}}? {_MATTER}
    | how_(?:good|well|strong|high|bad|much|many|confident|come|green|dark|red|r_(?:u|you))
    | (?!do_(?:it|that|this)\b|what_an?\b) {_AUX}_{_WHO} | canwe | doyou | canyou
    | (?:please_)? (?: (?:tell|give|show|send|remind)_(?:me|us)(?!_(?:a|an|one|another|the|your)_(?:\w+_)?(?:proposal|one|sec|second|moment|minute)\b)
                     | (?:let_(?:me|us)_know|lemme_know|lmk) (?=_(?:if|wh\w+|how|about|your|the|of|any)\b) )
    | (?:(?:please|just|kindly)_)? check_(?:if|whether|wh\w+)
    | (?:i|we)(?:['\u2019]d|_would|['\u2019]m|_am|_was|_were|_are|['\u2019]re)?_(?:also_|still_|just_|really_)?
        (?: (?:wondering|wonder|curious|asking)_(?=if|wh|how|about|for|your)
          | (?:like|love|need|want)(?=[^,.]{{0,40}}?\b(?:to_(?:know|hear|ask|see)_ | your_(?:score|value|rating|number|info|opinion)|(?:[\w']+_){{1,3}}(?:score|rating)s?\b)) )
    )"""
# What asks only when a sentence begins with it.
_BEGINNING = rf"""(?:
    {_OPENING}
    | {_AUX}_(?:your|the|my|our|all|both|either)
    | (?!\w+n['\u2019]?t_|do_) {_AUX}_(?!be\b|have\b|not\b|been\b|go\b|do\b)[\w'\u2019]+(?:_[\w'\u2019]+)?_ (?:a_|an_|any_|really_|just_|as_|your_|the_|much_|more_|less_|very_|better_)*
        (?:good|well|better|best|bad|great|strong|ok|okay|fine|free|dark|green|red|blank|unknown|solid|decent|at|in|on|for|than
        |have|know|work|look|do|fit|see|score|get|seem|sound|go|match|be|handle|review|take|\w+ed|(?-i:[A-Z])\w+)
    | (?:please_)? (?:share|provide|report|list|describe|explain)(?!_(?:one|it|this)\b)
    | need_(?!to\b|a\b|one\b|some) | request(?:ing)? | asking_(?:about|for) | ask_about
    | (?:want|wanna|care|got|have)_(?:to|any|anything) | want_me
    | (?:any|anything|anyone|anybody)(?!_of\b)(?!.*\b(?:is|are|would_be|will|works|looks|could|can|should)\b)
    | (?:any|some)where | thoughts | (?:and_)?you(?=\W*$) | help_me_(?:find|choose|pick|decide)
    | who_(?:for|looks?|works?|fits?|wants?|has|you)
    )"""
_FILLER = r"""(?: [^\w"]* \b (?: and|but|so(?!_(?:is|are|does|did|do)\b)|also|or|then|now|well|ok|okay|k|alright|hi|hello|hey|thanks|thank_you|great|cool
    |nice|perfect|sure|yes|yeah|yep|no|good|hmm+|oh|um+|uh|just|btw|by_the_way|real_quick|instead|sorry|excellent|awesome|first
    |meanwhile|again|please(?=,)) \b [^\w"]* )*"""
_FILLERS = frozenset(re.findall(r"[a-z]+", _FILLER)) | {
    "hmm",
    "hm",
    "um",
    "umm",
    "thank",
    "by",
    "the",
    "way",
    "real",
    "quick",
}
_SEEKING = frozenset({"wondering", "wonder", "curious", "asking", "like", "love", "need", "want"})
_BEGINS = _words(rf"[^\w]* {_FILLER} (?P<clause> {_BEGINNING} ) \b", whole=False)
_OPENS = _words(
    rf"{_OPENING} | maybe | perhaps | (?:does|will|can|could|would|should|might)_(?!be\b)[\w'\u2019]+ | (?:is|are)_(?!\w+ing\b)[\w'\u2019]+_(?:good|ok|okay|better|any)"
)
_OPENING_HERE = _words(_OPENING)
_JOINT = re.compile(
    r"[-,:(\u2013\u2014]+ *(?:(?:and|but|so|or|then|also) )?| (?:and|but|so|or|because|since) ",
    re.IGNORECASE,
)
_JOINED = _words(r"(?: [-,:(\u2013\u2014] | \b(?:and|but|so|or|because|since) ) \W* $", whole=False)
# What stands before a question and belongs to it: "If we put Ethan on LLaMA, ...", "For BLEU, ..."
_SUPPOSED = _words(
    r"[^\w]* (?:(?:so|and|but|ok|okay|also)\b\W*)* (?:if|for|as_for|regarding|about|of|looking|between|when|given|assuming|in|on|once|which|whose|at_wh\w+)\b",
    whole=False,
)
_SECOND = _words(
    r",?_and_(?= (?:what|who|which|where|how)_(?!we\b|i\b) | (?:do|does|is|are|can|could|would)_(?:you|we|it|that|there)\b)",
    whole=False,
)
_CONTINUES = _words(r"[^\w]* (?:in|on|for|with|to|at|of|being)\b", whole=False)
_DANGLES = _words(
    r"\b (?: for | on | about | with | at | of | between | the | and | or | is | are | put ) [,:]? \W* $",
    whole=False,
)
_LISTED = re.compile(r"\s*(?:[-*\u2022]|\d+[.)])\s")

_TAG = _words(r"""\b (?: right|ok|okay|k|yeah|yes|no|huh|eh|correct|alright|y~know|you_know|know_what_i_mean|lol|haha
    | (?:isn|aren|doesn|don|won|wasn|didn)~t_(?:it|he|she|they|you|we) )\W*$""", whole=False)  # fmt: skip
_RHETORICAL = _words(r"""\W* (?:\w+\W+){0,2}? (?: who_knows|who_cares|why_not|what_can_(?:you|i)_(?:do|say)|what_do_i_know
    |how_should_i_know|what_the_\w+|how_hard_can.*|you_know_what|guess_what|really|seriously|wow|what_else_can_we_do ) \W*$""", whole=False)  # fmt: skip
_OF_ONESELF = _words(
    r"""\W* (?:\w+\W+){0,2}? (?: (?:this|that|these) (?:['\u2019]s|_is|_are) \b.*\b(?:i|me|my)\b
        | i_(?!need)(?:\w+ed|kept|made|sent|did|put_(?:my|your)|didn~t|don~t|do_not)\b | did_i_(?:mention|say|tell)\b | do_not_ )""",
    whole=False,
)
_GREETING = _words(r"\W* (?: hi|hello|hey|there|sir|mam|ma'am|partner|\W )+ $", whole=False)


def find_questions(text: str, find_names: FindNames = NAMES, earlier: Sequence[str] = ()) -> list[Question]:
    """The questions in a message, in order.

    Args:
        find_names: finds reviewers and papers in a text.
        earlier: the turns before it, the last one first; without them the message is judged alone.
    """
    found = []
    for start, end in _asking(text, find_names):
        start += len(text[start:end]) - len(text[start:end].lstrip(" /"))
        clause = text[start:end]
        before = _Before(text[:start], earlier, find_names)
        kind, names = _sorted(clause, before, find_names)
        pairs = tuple(named_pairs(names, clause)) if kind == "specific" else ()
        found.append(Question(kind, clause, start, pairs, before.leaned_on))
    return found


def _asking(text: str, find_names: FindNames) -> Iterator[tuple[int, int]]:
    """Start and end of each clause that asks."""
    held: tuple[int, int] | None = None  # a question that the next line may go on with
    listing = False  # in the lines below "Please tell me your scores for:"
    for begin, stop, end, mark in _sentences(text):
        sentence = text[begin:stop]
        if held:
            listing = not mark and (listing or text[held[1] - 1] == ":")
            if (
                _DANGLES.search(text, max(held[0], held[1] - 12), held[1])
                or (listing and _LISTED.match(sentence))
                or (_CONTINUES.match(sentence) and (mark or _is_bare(sentence, find_names(sentence))))
            ):
                held = (held[0], end)
                continue
        start = _start_with_mark(sentence) if mark else _start_without_mark(sentence)
        if held and (start is not None or not mark):
            yield held
            held = None
        if start is not None:
            for second in _SECOND.finditer(sentence, start + 1):
                if re.search(r"\w", _asked(sentence[start : second.start()])):
                    yield begin + start, begin + second.start()
                    start = second.end()
            held, listing = (begin + start, end), False
            if mark:
                yield held
                held = None
    if held:
        yield held


def _sentences(text: str) -> Iterator[tuple[int, int, int, bool]]:
    """For each sentence where it begins, where its words stop, where it ends, and whether with a ?."""
    # Line breaks and quotations keep their length, so that places stay what they are.
    text = text.replace(" / ", "  \n")
    if "<" in text:
        text = _LINE.sub(lambda line: " " * (len(line[0]) - 1) + "\n", text)
    if '"' in text or "\u201c" in text:
        text = _QUOTATION.sub(lambda quoted: '"' + "_" * (len(quoted[0]) - 2) + '"', text)
    begin = len(text) - len(text.lstrip())
    for ending in _END.finditer(text):
        signs = ending[0]
        mark = "?" in signs
        if mark or signs[-1].isspace() or signs[0] == ";" or ending.end() == len(text):
            stop = ending.start()
            if begin < stop:
                yield begin, stop, stop + len(signs.rstrip()) if mark else stop, mark
            begin = ending.end()
    if begin < len(text):
        yield begin, len(text), len(text), False


def _start_without_mark(sentence: str) -> int | None:
    """Where what asks begins in a sentence; None if nothing does."""
    words = _LETTERS.findall(sentence.lower())
    if _TELLTALE.isdisjoint(words):
        return None
    if _may_begin(words) and (begins := _BEGINS.match(sentence)):
        return begins.start("clause")
    for joint in _JOINT.finditer(sentence):
        if _OPENING_HERE.match(sentence, joint.end()):
            return 0 if _SUPPOSED.match(sentence) else joint.end()
    return None


def _start_with_mark(sentence: str) -> int | None:
    """The same of a sentence that ends with a question mark."""
    if _is_no_question(sentence):
        return None
    if begins := _BEGINS.match(sentence):
        return begins.start("clause")
    first = None
    for opening in _OPENS.finditer(sentence):
        here = opening.start()
        joined = _JOINED.search(sentence, max(0, here - 10), here) is not None
        if joined or (first is None and _OPENING_HERE.match(sentence, here)):
            first = 0 if _SUPPOSED.match(sentence, 0, here) else here
        if joined:
            break
    return first or 0


def _may_begin(words: list[str]) -> bool:
    """A quick look, before `_BEGINS` takes a close one."""
    for word in words:
        if word in _TELLTALE:
            return True
        if word in ("i", "we"):
            return not _SEEKING.isdisjoint(words)
        if word not in _FILLERS:
            return False
    return False


def _is_no_question(sentence: str) -> bool:
    """Whether a sentence with a question mark seeks no answer all the same."""
    if _RHETORICAL.match(sentence) or _GREETING.match(sentence):
        return True
    tag = _TAG.search(sentence, max(0, len(sentence) - 20))  # a tag is short
    if tag and re.search(r"\w", sentence[: tag.start()]):
        return _BEGINS.match(sentence) is None and _OPENING_HERE.search(sentence[: tag.start()]) is None
    oneself = _OF_ONESELF.match(sentence)
    return oneself is not None and _OPENING_HERE.search(sentence, oneself.end()) is None


# Sorting them. -----------------------------------------------------------------------------------------

_HIM = _words(r"""
    him | his | hers? | (?:s?he)(?:~s)? | (?:that|this)_(?:reviewer|person|guy)
    | (?:those|these)_(?:\w+_)?(?:reviewers|people|guys)
    | (?<!of_)them | they | their
""")
_THAT_PAPER = _words(r"""
    (?:that|this)_(?:paper|one|topic) | (?:those|these)_(?:\w+_)?papers
    | (?:on|for|in|at|do|take|handle|review|cover)_(?:that|it|those) | those_two
    | (?:fit|options?|choice|good|great|best|better|work|go|do)_here
    | (?<!is_)(?<!are_)there?(?!_(?:any|some|is|are|a))
""")
_THERE = _words("there?")
_PERSON = _words("who | whom | (?:any|some)_?(?:one|body) | reviewers? | options? | people")
_SOMEBODY = _words("(?:any|some)_?(?:one|body)_(?:else|better) | who_else")
_IF = re.compile(r"(?:so |and |ok,? )*if\b", re.IGNORECASE)
_OPEN_PERSON = _words("any(?:thing|one|body)? | some(?:one|body) | have | there | who")
_BESIDES = _words(
    "besides | except(?:_for)? | other_than | apart_from | aside_from | instead_of | outside(?:_of)? | than"
)
_ECHO = _words(
    r"\W* (?:and_|or_)? (?: (?:(?:what|how)_about_)? (?:(?:on|for|from)_)? (?:you|u|yourself|yours|your_(?:side|end|board)) | do_you | can_you | are_you | what_do_you_(?:have|see)_there | same_(?:for|with)_you ) \W* $",
    whole=False,
)

_WELL = _words(
    r"[^.!?]{0,20} (?: good | great | fine | well | ok | okay | alright | bad ) [^.!?]{0,15} $", whole=False
)
_SOCIAL = _words(r"""
    how_(?:(?:are|r)_)?(?:you|u|ya)(?!_(?:feeling|thinking)) | how_(?:has|have)_(?:you|your)
    | how_(?:long|much_time) | how(?:~s|_is)_(?:it_going|your_(?:day|morning|evening)|everything) | what~s_up
    | first_(?:game|time|one|hit)
    | (?:play|played|done|did)_(?:before|this|these|one|any|it)(?:_of_(?:this|these))?
    | (?<!for_)(?:are_)?you_(?:still_)?(?:(?:there|here)(?=\W*$)|ready|new|human|real|(?:a_)?(?:real_)?(?:bot|ai|robot|human|person))
    | how_to_play | understand_(?:the|this|how|what) | new_to_this | supposed_to_do | (?:you|u)_(?:quit|leave|afk)
    | ready(?!_(?:to|for)_(?:\w+_)?(?:propos|submit|send|lock|finali|accept)) | shall_we_(?:begin|start) | get_started
    | (?<!how_do_you_)(?<!how_do_u_)(?:want_to|like_to|wanna)_(?:start|begin|work_together|help_me|collaborate|go_first)
    | help_me_(?:with_(?:the|this)_(?:game|task)|categorize|sort|match|assign|organize|figure)
    | who_are_you(?=\W*$) | any(?:one|body)_there | still_with_me | where_are_you_from
    | (?:your|ur)_name | how_(?:does|do)_(?:this|the_game)_work | how_do_(?:you|we|i)_play | what_are_we_(?:doing|supposed)
    | (?:the|this|a)_(?:game|task) | instructions | rules
""")

# What a question about a pair turns on: a decision, a score, an opinion of the pairing, or how good it is.
_DECIDES = _words(r"""
    put(?:ting)? | plac(?:e|ed|ing) | assign(?:ed|ing|ment)? | mov(?:e|ed|ing) | lock(?:ed|ing)? | leav(?:e|ing) | keep(?:ing)?
    | try(?:ing)? | us(?:e|ing) | slot | trad(?:e|ing) | replac(?:e|ing) | shift | bump | drop | stay | stick
    | swap(?:ping)? | switch(?:ing)? | toss | settle | adjust | go(?:es|ing)?
    | (?:we|i|you|to)_(?:pick|choose|use|take|give|bring)
    | should | shall | (?:can|could|may|might|are)_(?:we|i) | agree | possib(?:le|ility) | good_idea
    | (?:objections?|problems?|issues?|reasons?|conflicts?) | (?:you|u|we|all)_(?:\w+_)?good_with
""")
_SCORE = _words(r"""
    scor(?:e|es|ing) | values? | rat(?:e|es|ing|ings) | rank(?:s|ed|ing)? | grades? | levels? | numbers? | points?
    | light | medium | shaded | out_of_(?:10|ten|100) | greens? | reds? | dark | bright | colou?rs? | shades?
    | high(?:er|est)? | low(?:er|est)? | how_(?:good|well|strong|high|bad|confident|much|knowledgeable|familiar)
    | greene(?:r|st) | darke(?:r|st) | unknown | blank | compare
    | info(?:rmation)? | data | experts? | expertise | experience | knowledge | strength | stats? | squares?
    | how(?:~s|_is|_are|_does|_do|_did|_would|_will)_(?!you\b|u\b|we\b|it\b|(?:that|this)_(?:work|sound|look|feel|for\b))
""")
_WEIGHS = _words(r"""
    (?:feel(?:ing)?|think(?:ing)?|thoughts?|opinions?)_(?:about|of|on) | (?:how|what)_about | for_now | reading
    | reviewing | want | like | prefer | rather | mind | against | suggest | recommend | sure_(?:about|of|on)
    | (?:cool|down)_(?:with|for) | happy | comfortable
    | ok(?:ay)? | fine | alright | works? | sounds?_(?:good|great|right) | (?:good|great)_(?:with|for|to|by)_(?:you|u)
""")
_GOOD = _words("""
    better(?!_(?:to|if)) | best | worse | worst | good | great | well | strong(?:er|est)? | solid | decent | bad
    | weak | terrible | match | top | ideal | perfect | familiar | knowledgeable | skilled | qualified | suitable
    | suited
    | capable | experienced | fits? | handle
""")
_CLAIMS = _words(r"""
    (?:you|u)_(?:said|say|mentioned|told|mean|meant|have|had|got) | worse | worst | bad | weak(?:er)? | terrible
    | far_from | close_to | same_as | as_\w+_as
""")
_WHAT_IS = _words(
    r"\W* (?:\w+\W+){0,2}? what (?:~s|s|_is|_are|_does)_(?!your_(?:\w+_)?(?:thought|opinion|feeling|take|view|call|idea|preference)s?\b)",
    whole=False,
)
_SEES = _words("have | has | got | know | see | any(?:thing)? | something | shows?")
# A clause that asks by its form and not by its mark alone.
_ASKS_BY_FORM = _words(
    rf"\W* {_FILLER} (?: {_AUX} | what | which | who | where | how | any ) \b", whole=False
)

# What a question turns on that names nobody.
_AGREES = _words(r"""
    counter\w* | tweak\w* | edit | redo | revis\w+ | line_?up | on_board | same_page | confirm\w* | settled?
    | (?:concern|complaint|issue|problem|worr|conflict)\w*
    | which_(?:ones?_)?(?:do|would|did)_(?:you|u)_(?:prefer|rather|choose|like)
    | miss(?:ed|ing)?_(?:any|some)\w+ | (?:the|our)_best_(?:we|you|i)_can
    | (?:see|get|got|receive|received|like)_(?:it|this|that|mine) | (?:re-?_?)? propos\w+ | re-?_?send
    | arrangements? | assignments? | your_call | changes? | submit | accept | reject\w* | deal | (?:dis)?agreed?
    | approve
    | objections? | (?:do|did|does)(?:n~t|_not)_(?:you_|u_)?(?:like|want) | sounds?_like_a_plan | finali[sz]e
    | swap | switch | lock(?:ed)? | adjust | good_idea | better_one | do_(?:it_)?better | wrong | make_sense
    | good_to_go | why | ok | okay | alright
    | works?(?=_(?:for|with|on)_(?:you|u|your)\b) | (?:does|do|would|will|did|can|could|might)_(?:that|this|it|these|those|they|everything)_(?:all_)?(?:works?|happen|do)
    | (?:sounds?|looks?|seems?)_(?:good|fine|right|fair|great|better)
    | (?:you|we)_(?:all_)?(?:good|fine|happy|set|done)
    | (?:think|feel(?:ing)?|thoughts?|say|like|sure|happy)_(?:about|of|on|with)_(?:that|this|it|these|those|them|my)
""")
# Open questions that use such words all the same: "what are your proposals?", "what looks good to you?"
_PLANS = _words(
    r"""\W* (?:\w+\W+){0,2}? (?: what(?:_are|~re)_(?:you|u)_thinking | what_(?:are|is)_(?:your|ur) | (?:what|which|who)_(?:\w+_)?(?:looks?|sounds?|seems?|works?|fits?)
    | what_(?:do|would|did)_(?:you|u)_(?:propose|suggest|recommend|have)
    | how_(?:do|should|shall|can|would)_(?:you|we|i)_(?:\w+_){0,3}?(?:do|go|start|decide|proceed)(?:_this|_it)? )\b""",
    whole=False,
)
_THIS = _words("this | that | it | my | our | the | last")
_INFORMS = _words(r"""
    have | got | see | seeing | show(?:ing)? | share | numbers? | values? | ratings? | options? | matches | blanks?
    | unknowns? | left | scor(?:e|es|ing) | greens? | dark | bright | squares? | colou?rs? | info(?:rmation)?
    | data | all_of_them
    | suggestions? | recommendations? | ideas? | reviewers | (?:should|must|to)_know
""")
_REFERS = _words(r"that | this | it | these | those")
_ACTS = _words(r"(?:can|could|should|shall|may|might|want)_(?:we|i|me) | send(?:ing)?")
_OPEN = _words("what | which | who | where | how")
_CHECKS = _words(
    r"\W* (?:(?:please|just|and|so|but)_)* (?:let_(?:me|us)_know|lemme_know|lmk|check) \b", whole=False
)

_CHECK = _words(
    r"\W* (?:(?:sounds?|looks?|all|is|should_be|seems?|we)_)? (?:good|ok|okay|fine|yes|deal|agreed|great|cool|perfect|correct|done) \W* $",
    whole=False,
)
_SUGGESTION = _words(
    r"\W* (?:(?:so|and|but|or|ok|okay|then)\W+)* (?:maybe|perhaps|possibly|might|what_if|i_(?:think|guess|like|feel|believe|assume|suppose))\b",
    whole=False,
)
_ASKS_OPEN = _words(r"""
    what | which | who | whom | where | how | any(?:thing|where|one|body)? | someone | ideas? | suggestions? | recommendations? | info(?:rmation)?
    | have | know | see | else | another | different | (?:a|any|better|good)_(?:\w+_)?(?:place|spot|home)
""")
_OPINION = _words(
    r"\W* (?:\w+\W+){0,3}? (?:what_(?:do|did)_(?:you|u)_think|what_(?:you|u)_think|what_do_(?:you|u)_say|(?:any_|your_)?thoughts|opinions?|how_do_you_feel|wdyt)(?:_on_your_(?:end|side|board))?\W*$",
    whole=False,
)
_SUGGESTED = _words(
    "let~s | put | assign | i_(?:think|suggest|like|want|say|propose) | i['\u2019]d | (?:would|could|should|can)_(?:be|go|do|put|work) | we_(?:could|should|can) | for_now | propos\\w+"
)

_OPENERS = _words(
    r"""(?: \W* (?: and | but | so | also | or | then | now | well | oh | um+ | hm+ | btw | ok | okay | k | alright | hi | hey | hello | thanks | yes | yeah | no
        | (?:cool|great|good|sure|nice|perfect)(?=[,.!]) ) \b [^\w"]* )+""",
    whole=False,
)
_CLOSERS = _words(
    r"[, ]+ (?: then | now | btw | by_the_way | by_(?:any_)?chance | lol | haha | so_far | though | tho | again )\W* $",
    whole=False,
)


def _asked(clause: str) -> str:
    """A clause without what only leads in and out: "Alright, Ava then?" asks no more than "Ava?"."""
    openers, closers = _OPENERS.match(clause), _CLOSERS.search(clause, max(0, len(clause) - 20))
    if not openers and not closers:
        return clause
    rest = clause[openers.end() if openers else 0 : closers.start() if closers else None]
    return rest if re.search(r"\w", rest) else clause


def _last_sentence(said: str) -> str:
    return re.split(r"[.!?;\n]\s", said.rstrip(" .!,;-/\n"))[-1]


_SMALL = _words("or | and | so | ok | okay | now | then | next | for | on | in | at | as_for | with | also")
_ENDS = re.compile(r"[.!?;\n]|<br\s*/?>|\s/\s", re.IGNORECASE)
_IT = _words(
    "it | (?:that|those|the)_(?:info(?:rmation)?|scores?|data|numbers?|ratings?) | (?:is|are|was|were|do|does)_(?:that|this|these|those|they|all)"
)
_COMPARABLE = _words(
    "same | info(?:rmation)? | data | numbers? | scor(?:e|es)d? | greens? | reds? | blank | unknown | dark | light | higher | lower | rating | rated | colou?r | shade"
)


class _Topic(NamedTuple):
    """What the last sentence with a name in it was about."""

    kinds: frozenset[str]
    """"reviewer", "paper" or both, by the names and persons in it."""
    asks: bool
    """Whether it is a question."""


_PAIR = frozenset({"reviewer", "paper"})


class _Before:
    """What was said before a clause."""

    def __init__(self, said: str, earlier: Sequence[str], find_names: FindNames) -> None:
        self.said = said
        """By the same message."""
        self.leaned_on = False
        """Whether what counts stands, if anywhere, in the turns before."""
        self._earlier, self._find_names = earlier, find_names

    @property
    def topic(self) -> _Topic | None:
        return _topic(self.said, self._find_names) or self.topic_of_turns

    @property
    def topic_of_turns(self) -> _Topic | None:
        """That of the last turns; nobody points further back."""
        self.leaned_on = True
        topics = (_topic(turn, self._find_names) for turn in self._earlier[:2])
        return next((topic for topic in topics if topic), None)

    @property
    def rejected(self) -> bool:
        """Whether a proposal was turned down a moment ago."""
        self.leaned_on = True
        return any(_tag(turn) == "reject" for turn in self._earlier)


@lru_cache(maxsize=65536)
def _topic(turn: str, find_names: FindNames) -> _Topic | None:
    if _tag(turn) != "message":
        return _Topic(_PAIR, False) if _tag(turn) == "propose" else None
    topic, text = None, _untagged(turn)
    for begin, _, end, mark in _sentences(text):
        sentence = text[begin:end]
        kinds = {name.kind for name in find_names(sentence)}
        if kinds and _HIM.search(sentence):
            kinds.add("reviewer")
        if kinds:
            topic = _Topic(frozenset(kinds), mark or _BEGINS.match(sentence) is not None)
    return topic


_LETS = _words(
    r"\W* (?: (?:what|how)_(?:about|bout|if)_(?:if_)?(?:we|i|you) | why_(?:not|don~t_(?:we|you|i)) )\b",
    whole=False,
)
_CLARIFIES = _words(
    r"""\W* (?:(?:sorry|wait|and|ok|so|but|hmm)\W+)* (?: (?:for|on|in|at|with)_ (?:what|who|whom|which)(?:_(?:paper|one|reviewer|person)s?)? | which(?:_(?:paper|one|reviewer|person)s?)?
    | (?:what|which)_(?:paper|one|reviewer|person|score|colou?r|number)s? | who | whom | where
    | how_(?:good|high|green|dark|much|well|bad|strong) | what_(?:is|are|was)_(?:it|the_score) ) \W* $""",
    whole=False,
)
_WHOM = _words("who | whom | (?:what|which)_(?:reviewer|person)s?")
_ON_WHAT = _words("(?:for|on|in|at|with)_what | where | (?:what|which)_papers?")
_COMPARES = _words(
    r"\W* (?:(?:is|and|but|even)_)? (?:better|worse|higher|lower|greener|darker|more|less|stronger)_than\b",
    whole=False,
)


def _sorted(clause: str, before: _Before, find_names: FindNames) -> tuple[Kind, list[Mention]]:
    """What a clause asks about, and the names in it."""
    clause = _asked(clause)
    echo = _ECHO.match(clause)
    if echo:  # "I have 80 for Ava on BLEU, what about you?"
        said = _last_sentence(before.said)
        if _WELL.match(said) and not find_names(said):
            return "social", []
        clause = said + " " + clause
    names = _included(clause, find_names)
    if _SUGGESTION.match(clause) or _LETS.match(clause):
        return "proposal", names
    if not names:
        if kind := _by_its_words(clause, before):
            return kind, names
        head = _ENDS.split(before.said)[-1]
        if (topics := find_names(head)) and _is_bare(head, topics):  # "LLaMA - who do you have?"
            clause, names = head + clause, topics
    named = {mention.kind for mention in names}
    if len(named) == 1 and (_COMPARES.match(clause) or _is_bare(clause, names)):
        return _completed(clause, *named, before), names
    reviewer = "reviewer" in named or _HIM.search(clause) is not None
    paper = "paper" in named or _THAT_PAPER.search(clause) is not None
    if reviewer and paper:
        return (_echoed if echo else _about_a_pair)(clause, names), names
    if (
        not reviewer
        and not paper
        and _IT.search(clause)
        and _COMPARABLE.search(clause)
        and (topic := before.topic)
    ):
        return _pointed(topic), names
    if not (reviewer or paper or _SOMEBODY.search(clause)):
        return _about_nobody(clause), names
    if paper and not names and _THERE.search(clause) and not _PERSON.search(clause):
        topic = before.topic
        if topic and topic.kinds == _PAIR:
            return _about_a_pair(clause), names
    if not _ASKS_OPEN.search(clause) and (_DECIDES.search(clause) or _WEIGHS.search(clause)):
        return "proposal", names
    return ("reviewer" if reviewer else "paper"), names


def _by_its_words(clause: str, before: _Before) -> Kind | None:
    """What a clause that names nobody asks, if its words alone tell."""
    if _CHECK.match(clause) or _OPINION.match(clause):
        return "proposal"
    if _CLARIFIES.match(clause):
        return _clarified(clause, before)
    if _SOCIAL.search(clause):
        return "social"
    if _AGREES.search(clause):
        plans = _PLANS.match(clause)
        return "general" if plans and not _THIS.search(clause, plans.end()) else "proposal"
    return None


def _pointed(topic: _Topic) -> Kind:
    """What "Is that the same for you?" asks about: what was last spoken of."""
    if topic.kinds == _PAIR:
        return "specific"
    return "reviewer" if "reviewer" in topic.kinds else "paper"


def _clarified(clause: str, before: _Before) -> Kind:
    """What "For what?" asks about: what it is that should be clearer."""
    topic = before.topic
    if before.rejected:
        return "proposal"
    if topic is None:
        return "general"
    if topic.kinds == _PAIR and _WHOM.search(clause):
        return "paper"
    if topic.kinds == _PAIR and _ON_WHAT.search(clause):
        return "reviewer"
    return _pointed(topic)


def _completed(clause: str, named: Kind, before: _Before) -> Kind:
    """What a bare name or a comparison asks after what was just said: "Better than Ava?", "GLUE?"."""
    topic = before.topic_of_turns
    if topic is None:
        return named
    if _COMPARES.match(clause):
        return "specific" if topic.kinds != {named} else named
    return "proposal" if topic.asks and named not in topic.kinds else named


def _is_bare(clause: str, names: list[Mention]) -> bool:
    """Whether a clause is nothing but names."""
    if len(clause) > sum(name.end - name.start for name in names) + 30:
        return False
    rest = clause
    for name in reversed(names):
        rest = rest[: name.start] + rest[name.end :]
    return not re.search(r"\w", _SMALL.sub("", rest))


def _echoed(said: str, names: list[Mention]) -> Kind:
    """What "you?" asks after a sentence about reviewers and papers: after a list, for another list."""
    if _SUGGESTED.search(said):
        return "proposal"
    several = all(len({n.index for n in names if n.kind == kind}) > 1 for kind in ("reviewer", "paper"))
    return "general" if several else "specific"


def _about_a_pair(clause: str, names: Sequence[Mention] = ()) -> Kind:
    """Whether a question about reviewers on papers seeks their score or a decision."""
    decides, score = _DECIDES.search(clause), _SCORE.search(clause)
    if decides and not (score and score.start() < decides.start()):
        return "proposal"
    if score or _CLAIMS.search(clause) or _WHAT_IS.match(clause):
        return "specific"
    if _WEIGHS.search(clause):
        return "proposal"
    good = _GOOD.search(clause) and _ASKS_BY_FORM.match(clause)
    return "specific" if good or _SEES.search(clause) else "proposal"


def _about_nobody(clause: str) -> Kind:
    """Whether a question that names nobody seeks agreement or the scores and plans of the partner."""
    plans = _PLANS.match(clause)
    if _INFORMS.search(clause) or (plans and not _THIS.search(clause, plans.end())):
        return "general"
    if _CHECKS.match(clause) or _REFERS.search(clause):
        return "proposal"
    return "proposal" if _ACTS.search(clause) and not _OPEN.search(clause) else "general"


def _included(clause: str, find_names: FindNames) -> list[Mention]:
    """The names in a clause but for those in an "if ..., " before it and those that it sets aside."""
    start = clause.find(",") + 1 if _IF.match(clause) else 0
    names = [name for name in find_names(clause) if name.start >= start]
    if (
        names
        and (aside := _BESIDES.search(clause))
        and (aside[0].lower() != "than" or _OPEN_PERSON.search(clause))
    ):
        after = [name for name in names if name.start > aside.end()]
        run = list(takewhile(lambda name: name.kind == after[0].kind, after))
        names = [name for name in names if name not in run]
    return names


# What they were good for. ------------------------------------------------------------------------------

Seen = Mapping[str, Collection[Pair]]
"""By seat: the (reviewer, paper) pairs whose score it sees from the start."""


class Asked(NamedTuple):
    """A question in its episode. Only one about pairs can be useful, known or unanswerable."""

    turn: int
    """Which turn it stands in, from 0."""
    question: Question
    useful: bool
    """About a score that the asker neither sees nor has asked for."""
    repeated: bool
    """About nothing but what the asker has asked for."""
    known: bool
    """About nothing but what the asker sees."""
    unanswerable: bool
    """About nothing that the other sees."""
    answered: bool
    """The other's next turn says something to it."""
    with_number: bool
    """The answer holds a number."""


def classify(
    turns: Sequence[tuple[str, str]], asker: str, seen: Seen, find_names: FindNames = NAMES
) -> list[Asked]:
    """The questions of one seat in an episode, in order, each with what became of it.

    Args:
        turns: (seat, text) of all seats in order; a text may begin with a tag like "[message]", and with any
            other tag than that it asks nothing.
        seen: a seat that is missing sees nothing.
    """
    own, others = seen.get(asker, ()), [pairs for seat, pairs in seen.items() if seat != asker]
    asked_before: set[Pair] = set()
    found: list[Asked] = []
    for number, (seat, text) in enumerate(turns):
        if seat != asker:
            continue
        questions = _questions_of(text, find_names)
        if not questions:
            continue
        if any(question.leans for question in questions):
            earlier = [said for _, said in turns[max(0, number - 3) : number]][::-1]
            questions = find_questions(_untagged(text), find_names, earlier)
        reply = next((said for speaker, said in turns[number + 1 :] if speaker != asker), None)
        for question in questions:
            pairs = question.pairs
            found.append(
                Asked(
                    number,
                    question,
                    any(pair not in own and pair not in asked_before for pair in pairs),
                    bool(pairs) and asked_before.issuperset(pairs),
                    bool(pairs) and all(pair in own for pair in pairs),
                    bool(pairs)
                    and bool(others)
                    and not any(pair in other for other in others for pair in pairs),
                    *_answer(question, reply, find_names),
                )
            )
            asked_before.update(pairs)
    return found


_TURN = re.compile(r"\s*\[(\w+)\]\s*")
_REFUSES = _words("""
    (?:do|does|did|can|could)(?:n~t|_not|not)_(?:know|have|see|say|tell) | no_(?:info|information|idea|data|score|clue) | not_sure | unsure
    | hard_to_say | (?:is|are|am|~s|~re)_(?:blank|unknown) | nothing_(?:on|for|about) | never_mind
""")


@lru_cache(maxsize=65536)
def _questions_of(text: str, find_names: FindNames) -> tuple[Question, ...]:
    if _tag(text) != "message":
        return ()
    return tuple(find_questions(_untagged(text), find_names))


def _tag(text: str) -> str:
    tag = _TURN.match(text)
    return tag[1].lower() if tag else "message"


def _untagged(text: str) -> str:
    tag = _TURN.match(text)
    return text[tag.end() :] if tag else text


def forget() -> None:
    """Empty the caches of all that was read."""
    for cached in (_questions_of, _said, _topic):
        cached.cache_clear()


def _answer(question: Question, reply: str | None, find_names: FindNames) -> tuple[bool, bool]:
    """Whether `reply` answers the question, and whether with a number."""
    if reply is None:
        return False, False
    if _tag(reply) != "message":
        return question.kind == "proposal", False
    sentences = _said(reply, find_names)
    about = [s for s in sentences if not s[0].isdisjoint(question.pairs)] or sentences
    informs = [number for _, refuses, number in about if not refuses]
    return bool(informs), any(informs)


@lru_cache(maxsize=65536)
def _said(text: str, find_names: FindNames) -> tuple[tuple[frozenset[Pair], bool, bool], ...]:
    """Of each sentence the pairs that it names, whether it refuses to inform, and whether it has a number."""
    text = _untagged(text)
    return tuple(
        (
            frozenset(named_pairs(find_names(sentence), sentence)),
            _REFUSES.search(sentence) is not None,
            re.search(r"\d", sentence) is not None,
        )
        for sentence in (text[begin:end] for begin, end, _, _ in _sentences(text))
    )
