"""Where a message asks: the clauses by which the writer seeks an answer.

A clause counts if it asks the partner for information, an opinion or a decision, with or without a question mark.
Tags ("..., right?"), greetings and rhetorical questions do not. `python -m benchmarks.questions` scores these rules
against labelled messages of people.
"""

import re
from collections.abc import Iterator

from slim_rl.games.matching.names import Mention, find_mentions


def phrases(pattern: str, whole: bool = True) -> re.Pattern[str]:
    """`pattern` over several lines, for text in lower case: _ for a blank, ~ for an apostrophe that may be missing.

    Not re.IGNORECASE: with it, each of a hundred alternatives is tried in full where one letter would tell.
    """
    pattern = pattern.replace("_", "[ ]").replace("~", "['\u2019]?")
    return re.compile(rf"\b(?:{pattern})\b" if whole else pattern, re.VERBOSE)


# Without any of these words and without a mark a sentence asks nothing: most sentences end here.
_TELLTALE = frozenset(
    re.findall(
        r"\w+",
        """what whats wha which who whom whos whose where wheres how hows why when is are was were do does did don
        doesn didn isn aren can could would wouldn will should shall may might have has any anything anyone anybody
        tell give share show send list provide report describe explain remind let lmk need know hear wondering wonder
        curious want wanna thoughts ideas suggestions check ask asking request requesting care canwe doyou canyou
        you lemme wdyt whatcha help like love r u got mind kindly pls plz name suggest sound else gimme y confirm say waiting
        whatve whyd hbu lmk anywhere somewhere isnt arent dont doesnt didnt cant couldnt wont wouldnt shouldnt havent hasnt""",
    )
)
_LETTERS = re.compile(r"[a-z]+")
_LINE = re.compile(r"<br\s*/?>", re.IGNORECASE)
_END = re.compile(r"[?.!;\n](?<!\b(?:[Mm][rs]|[Dd]r|vs)\.)[?.!;\n\"')\u201d]*\s*")
_QUOTATION = re.compile(r"(?<=\W)[\"\u201c][^\"\u201c\u201d\n]+[\"\u201d](?=\W|$)")

_AUX = """(?: is|are|was|were|do|does|did|can|could|would|will|should|shall|may|might|have|has|r
    |isn~t|aren~t|don~t|doesn~t|didn~t|can~t|couldn~t|wouldn~t|won~t|shouldn~t|haven~t|hasn~t )"""
_WHO = "(?: you|u|ya|i|we|he|she|they|it|that|this|there|these|those|anyone|anybody|someone|anything|everything|everyone)"
_MATTER = """(?: (?:score|value|rating|number|paper|reviewer|option|idea|suggestion|recommendation|change|pair
    |thought|color|colour|shade|match|cell|square|one|part|side|spot|place)s? | info(?:rmation)? | data | people | person | expertise )"""
_KINDLY = "(?:(?:please|pls|plz|kindly|just|maybe|also|do)_)*"
# What asks wherever a clause begins.
_OPENING = rf"""(?:
    (?:what|how)_(?:about|bout|abt)(?!_this\W*$) | what_if | why~d | wdyt | what(?:_u|_you|cha)_got
    | why_(?:reject|not_\w+) | what_happen(?:s|ed)(?!_(?:is|was)\b) | what_made_you | what_(?!i_|we_|you_|u_)\w+_(?:do|did|are|would|can|could|should|will)_(?:you|u|we|i|they)\b | how_goes
    | (?:how|who|where)(?:['\u2019]s|s) | what(?:['\u2019]s|s)(?!_(?:best|good|left|important)_(?:for|is)\b)
    | (?:what|wha|how|who|whom|where|why)_(?:else_)?{_AUX}
    | (?:what|who|whom|where|which|how|why)_(?:else_)?u_\w+ | (?:what|who|where)_you_got | (?:what|who|where|how)_else
    | which_(?:us|you|u|them|these|those|ones?|other|way) | which_of_(?!course\b|which\b)\w+ | how_\w+_{_AUX}
    | which_(?:of_)? (?:\w+_){{0,2}}? {_MATTER} | what_(?!an?_)(?:\w+_){{0,2}}? {_MATTER}
    | how_(?:good|well|strong|high|bad|much|many|confident|come|green|dark|red|r_(?:u|you))
    | (?!do_(?:it|that|this)\b|what_an?\b) {_AUX}_{_WHO} | canwe | doyou | canyou
    | (?:got_)?any_(?:ideas?|chance|thoughts|objections?|luck|suggestions?|preferences?|good|better|greens?|info|reds?|colou?rs?|scores?|squares?|spots?|other)
    | got_(?:any\w*|something|somebody|another|an?_(?:better|spot|place|name|score|number|option)) | what~ve_(?:you|u) | y_(?:not|did|is|are|u)
    | mind_(?:sharing|telling|if|giving)
    | {_KINDLY} (?: (?:gimme|(?:tell|give|show|send|remind)_(?:me|us)|tell_(?=wh|if))(?!_(?:a|an|one|another|the|your)_(?:\w+_)?(?:proposal|one|sec|second|moment|minute)\b)
                     | (?:let_(?:me|us)_know|lemme_know|lmk) (?=_(?:if|wh\w+|how|about|your|the|of|any\w*)\b) )
    | {_KINDLY} (?:check|confirm|say)_(?:if|whether|wh\w+)
    | (?:i|we)(?:['\u2019]d|_would|['\u2019]m|_am|_was|_were|_are|['\u2019]re)?_(?:also_|still_|just_|really_)?
        (?: (?:wondering|wonder|curious|asking)_(?=if|wh|how|about|for|your)
          | (?:like|love|need|want)(?=[^,.]{{0,40}}?\b(?:to_(?:know|hear|ask|see)_ | your_(?:score|value|rating|number|info|opinion|green|thought|pick|input|best|top)|(?:[\w']+_){{1,3}}(?:score|rating)s?\b)) )
    )"""
# What asks only when a sentence begins with it.
_BEGINNING = rf"""(?:
    {_OPENING}
    | {_AUX}_(?:your|the|my|our|all|both|either)
    | (?!\w+n['\u2019]?t_|do_) {_AUX}_(?!be\b|have\b|not\b|been\b|go\b|do\b|really\b|well\b|pretty\b|very\b)[\w'\u2019]+(?:_[\w'\u2019]+)?_ (?:a_|an_|any_|really_|just_|as_|your_|the_|much_|more_|less_|very_|better_)*
        (?:good|well|better|best|bad|great|strong|ok|okay|fine|free|dark|green|red|blank|unknown|solid|decent|at|in|on|for|than
        |like|just|still|taken|open|available|higher|lower|darker|stronger|any|have|know|work|look|do|fit|see|score|get|seem|sound|go|match|be|handle|review|take|\w+ed)
    | {_KINDLY} (?:(?:share|provide|report|list|describe|explain)(?=_\w)|suggest(?=_(?:me|a|some)\b)|name(?=_(?:me|the|your|one)\b))(?!_(?:one|it|this)\b)
    | (?:wanna|mind)_\w+ | sound_good(?=\W*$)
    | u_(?:got|want|wanna|think|like|prefer|ready|sure|sticking|ok|cool|good|fine|agree|accept|mind) | u_(?:still_)?(?:there|here)(?=\W*$)
    | you_(?:ok|okay|cool|good|fine|happy|comfortable|alright)_(?:w|with|on|if|having|putting)\b
    | you_(?:ready|set) | you_(?:still_)?(?:there|here|with_me)(?=\W*$)
    | (?:what|which)_(?!(?:i|we|you|u|they|he|she|it)_)\w+_(?:would|should|does|do|did|could|can|will)_(?!is\b|not\b|be\b)\w+
    | which_(?:is_(?:best|better|stronger|greener|higher)|are_(?:your|the)|do_you|look)
    | (?:you|u)_(?:got|have|see|know)_(?:any\w*|someone|somebody|if|wh\w+)
    | so_(?:is|are|do|does|did)_(?:you|u|we|that|this|it)_\w+
    | need_(?!to_(?!know|hear|see)|a\b|one\b|some) | waiting_to_hear | request(?:ing)? | asking_(?:about|for) | ask_about
    | (?:want|care)_to | have_any | want_me
    | (?:any|anything|anyone|anybody)(?!_of\b)(?!(?:_(?!wh\w+\b|that\b|how\b|if\b)\w+){{0,4}}_(?:is|are|would_be|will|works|looks|could|can|should)\b)
    | (?:any|some)where | thoughts | (?:and_)?you(?=\W*$) | help_me_(?:find|choose|pick|decide) | why(?=\W*$) | hbu
    | who_(?!knows\b|cares\b|is_best\b)\w+
    )"""
# Possessive, so that a row of fillers can be read in one way only; a long one would take for ever.
_FILLER = r"""(?: \b (?: and|but|so(?!_(?:is|are|does|did|do)\b)|also|or|then|now|well|ok|okay|k|alright|hi|hello|hey|thanks|thank_you|great|cool
    |nice|perfect|sure|yes|yeah|yep|no|good|hmm+|oh|um+|uh|just|btw|by_the_way|real_quick|instead|sorry|excellent|awesome|first
    |meanwhile|again|please(?=,)|else|yo|hiya|wait|bro|snap|wow|omg|man|damn|howdy|partner|buddy|friend|sir|sweet|true|lol|haha) \b [^\w"]*+ )*"""
_FILLERS = frozenset(re.findall(r"[a-z]+", _FILLER)) | {"hm", "umm"}
_MAY_OPEN = _TELLTALE | frozenset(
    re.findall(r"\w+", "i we please maybe perhaps also just couldn won shouldn haven hasn")
)
_SEEKING = frozenset({"wondering", "wonder", "curious", "asking", "like", "love", "need", "want"})
_BEGINS = phrases(rf"[^\w]*+ {_FILLER} (?P<clause> {_BEGINNING} ) \b", whole=False)
_OPENS = phrases(
    rf"{_OPENING} | maybe | perhaps | (?:does|will|can|could|would|should|might)_(?!be\b)[\w'\u2019]+ | (?:is|are)_(?!\w+ing\b)[\w'\u2019]+_(?:good|ok|okay|better|any)"
)
_OPENING_HERE = phrases(_OPENING)
# Before a name these turn a statement into a question: "is Ava a 9 anywhere".
_TURNING = frozenset({"is", "are", "was", "does", "can", "could", "would", "should", "will"})
_TURNED = phrases(rf"[^\w]*+ {_FILLER} (?P<clause> {_AUX} )_", whole=False)
# Where a clause may begin in mid-sentence, in lower case, with its first word.
_JOINT = re.compile(
    r"(?:[-,:(\u2013\u2014]+ *(?:(?:and|but|so|or|then|also) )?| (?:and|but|so|or|because|since) )(?=([a-z]+))"
)
_JOINING = frozenset({"and", "but", "so", "or", "because", "since"})
_PAUSE = re.compile(r"[-,:(\u2013\u2014]")
_RELATIVE = re.compile(r", who(?: is| are(?! you| u| we)|['\u2019]?s)\b")
_JOINED = phrases(r"(?: [-,:(\u2013\u2014] | \b(?:and|but|so|or|because|since) ) \W* $", whole=False)
# What stands before a question and belongs to it: "If we put Ethan on LLaMA, ...", "For BLEU, ..."
_SUPPOSED = phrases(
    r"[^\w]* (?:(?:so|and|but|ok|okay|also)\b\W*)* (?:if|for|as_for|regarding|about|of|looking|between|when|given|assuming|in|on|once|which|whose|at_wh\w+)\b",
    whole=False,
)
_SECOND = phrases(
    r",?_and_(?= (?:tell|give|show)_me | (?:what|who|which|where|how)_(?!we\b|i\b) | (?:do|does|is|are|can|could|would)_(?:you|we|it|that|there)\b)",
    whole=False,
)
_CONTINUES = phrases(r"[^\w]* (?:in|on|for|with|to|at|of|being)\b", whole=False)
_DANGLES = phrases(
    r"\b (?: for | on | about | with | at | of | between | the | and | or | is | are | put ) [,:]? \W* $",
    whole=False,
)
_LISTED = re.compile(r"\s*(?:[-*\u2022]|\d+[.)])\s")

_TAG = phrases(r"""\b(?<!\bor_) (?: right|ok|okay|k|yeah|yes|no|huh|eh|correct|alright|y~know|you_know|know_what_i_mean|lol|haha|who_knows|who_cares
    | (?:isn|aren|doesn|don|won|wasn|didn)~t_(?:it|he|she|they|you|we) )\W*$""", whole=False)  # fmt: skip
_TAG_ENDS = frozenset(re.findall(r"[a-z]+", _TAG.pattern)) | {"yknow"}
_RHETORICAL = phrases(r"""\W* (?:\w+\W+){0,2}? (?: who_knows|who_cares|why_not|what_can_(?:you|i)_(?:do|say)|what_do_i_know
    |how_should_i_know|what_the_\w+|how_hard_can.*|you_know_what|guess_what|really|seriously|wow|what_else_can_we_do ) \W*$""", whole=False)  # fmt: skip
_OF_ONESELF = phrases(
    r"""\W* (?:\w+\W+){0,2}? (?: (?:this|that|these) (?:['\u2019]s|_is|_are) \b.*\b(?:i|me|my)\b
        | i_(?!need)(?:\w+ed|kept|made|sent|did|put_(?:my|your)|didn~t|don~t|do_not)\b | did_i_(?:mention|say|tell)\b | do_not_ )""",
    whole=False,
)
_GREETING = phrases(r"\W* (?: hi|hello|hey|there|sir|mam|ma'am|partner|\W )+ $", whole=False)


def asking_clauses(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each clause that asks."""
    lowered = _lowered(text)
    held: tuple[int, int] | None = None  # a question that the next line may go on with
    listing = False  # in the lines below "Please tell me your scores for:"
    for begin, stop, end, mark in sentences(lowered):
        sentence = lowered[begin:stop]
        if held:
            listing = not mark and (listing or text[held[1] - 1] == ":")
            if (
                _DANGLES.search(lowered, max(held[0], held[1] - 12), held[1])
                or (listing and _LISTED.match(sentence))
                or (_CONTINUES.match(sentence) and (mark or _is_bare(sentence, _names(sentence))))
            ):
                held = (held[0], end)
                continue
        start = (_start_with_mark if mark else _start_without_mark)(sentence)
        if held and (start is not None or not mark):
            yield held
            held = None
        if start is not None:
            for second in _SECOND.finditer(sentence, start + 1):
                if re.search(r"\w", sentence[start : second.start()]):
                    yield begin + start, begin + second.start()
                    start = second.end()
            held, listing = (begin + start, end), False
            if mark:
                yield held
                held = None
    if held:
        yield held


def _names(text: str) -> list[Mention]:
    """All names in a text, short forms and slips included, whatever the size of the board."""
    return find_mentions(text, 8, loosely=True)


def _lowered(text: str) -> str:
    """In lower case, every sign in its place: one that would become two ("\u0130") stays."""
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = "".join(low if len(low := sign.lower()) == 1 else sign for sign in text)
    return lowered


def sentences(text: str) -> Iterator[tuple[int, int, int, bool]]:
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
    """Where what asks begins in a sentence, which is in lower case; None if nothing does."""
    words = _LETTERS.findall(sentence)
    if _TELLTALE.isdisjoint(words):
        return None
    first = _first_that_may_ask(words)
    if first and (begins := _BEGINS.match(sentence)):
        return begins.start("clause")
    seeking = not _SEEKING.isdisjoint(words)
    # A quick look, before `_JOINT` takes a close one.
    may_join = not _JOINING.isdisjoint(words) or _PAUSE.search(sentence)
    for joint in _JOINT.finditer(sentence) if may_join else ():
        here, word = joint.end(), joint[1]
        if word not in _MAY_OPEN or (not seeking and word in ("i", "we")):
            continue
        opens = _OPENING_HERE.match(sentence, here) and not _RELATIVE.match(sentence, joint.start())
        turns = word in _TURNING and joint[0].endswith(("and ", "but ", "or ", "then "))  # not "so can Ava"
        if opens or (turns and _is_name_at(here + len(word) + 1, _names(sentence))):
            return 0 if _SUPPOSED.match(sentence) else here
    return _start_before_name(sentence) if first in _TURNING else None


def _start_before_name(sentence: str) -> int | None:
    """Where a sentence like "So is Ava a 9 anywhere" begins to ask."""
    turned = _TURNED.match(sentence)
    return turned.start("clause") if turned and _is_name_at(turned.end(), _names(sentence)) else None


def _is_name_at(place: int, names: list[Mention]) -> bool:
    return any(name.start == place for name in names)


def _start_with_mark(sentence: str) -> int | None:
    """The same of a sentence that ends with a question mark."""
    if _is_no_question(sentence):
        return None
    if begins := _BEGINS.match(sentence):
        return begins.start("clause")
    if (before_name := _start_before_name(sentence)) is not None:
        return before_name
    first, after = None, 0
    for word in _LETTERS.finditer(sentence):
        here = word.start()
        # A quick look at the word, before `_OPENS` takes a close one.
        if here < after or word[0] not in _MAY_OPEN or not (opening := _OPENS.match(sentence, here)):
            continue
        after = opening.end()
        joined = _JOINED.search(sentence, max(0, here - 10), here) is not None
        if joined or (first is None and _OPENING_HERE.match(sentence, here)):
            first = 0 if _SUPPOSED.match(sentence, 0, here) else here
        if joined:
            break
    return first or 0


def _first_that_may_ask(words: list[str]) -> str | None:
    """The first word that is no filler if it may begin a question: a quick look, before `_BEGINS` takes a close one."""
    for word in words:
        if word in _TELLTALE:
            return word
        if word in ("i", "we"):
            return None if _SEEKING.isdisjoint(words) else word
        if word not in _FILLERS:
            return None
    return None


def _is_no_question(sentence: str) -> bool:
    """Whether a sentence with a question mark seeks no answer all the same."""
    if len(sentence) < 60 and (_RHETORICAL.match(sentence) or _GREETING.match(sentence)):
        return True
    tag = _ends_like_a_tag(sentence) and _TAG.search(sentence, max(0, len(sentence) - 20))  # a tag is short
    if tag and re.search(r"\w", sentence[: tag.start()]):
        return _BEGINS.match(sentence) is None and _OPENING_HERE.search(sentence[: tag.start()]) is None
    oneself = _OF_ONESELF.match(sentence)
    return oneself is not None and _OPENING_HERE.search(sentence, oneself.end()) is None


def _ends_like_a_tag(sentence: str) -> bool:
    """A quick look, before `_TAG` takes a close one."""
    words = _LETTERS.findall(sentence[-20:])
    return bool(words) and words[-1] in _TAG_ENDS


_SMALL = phrases("or | and | so | ok | okay | now | then | next | for | on | in | at | as_for | with | also")


def _is_bare(clause: str, names: list[Mention]) -> bool:
    """Whether a clause is nothing but names."""
    if len(clause) > sum(name.end - name.start for name in names) + 30:
        return False
    rest = clause
    for name in reversed(names):
        rest = rest[: name.start] + rest[name.end :]
    return not re.search(r"\w", _SMALL.sub("", rest))
