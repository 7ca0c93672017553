"""The words by which a message asks, suggests, states and points, in English and a little in other languages."""

import re

from slim_rl.games.matching.names import REVIEWERS, SHORT_PAPERS


def _vocabulary(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _words(pattern: str, or_inside: str = "") -> re.Pattern[str]:
    """`pattern`, written over several lines, between word boundaries and in any case; or the other one inside words."""
    return re.compile(rf"\b(?:{pattern})\b" + (or_inside and f"|{or_inside}"), re.IGNORECASE | re.VERBOSE)


_THINKS = r"(?:think\w*|thoughts?|reason\w*|reflect\w*|scratchpad|analysis)"
THOUGHT = re.compile(
    rf"<({_THINKS})>.*?(?:</\1>|\Z)|\A.*</{_THINKS}>|\[({_THINKS})\].*?\[/\2\]|(?:\A|(?<=\n))\W*thoughts?:[^\n]*",
    re.IGNORECASE | re.DOTALL,
)
QUOTATION = re.compile(r""""[^"\n]*"|(?<!\w)'(?:[^'\n]|\b'\b)*'(?!\w)""")
TABLE_ROW_OR_QUOTE = re.compile(r"^.*\|.*\|.*$|^[^\S\n]*>.*$", re.MULTILINE)
NEW_LINE = re.compile(r"<br\s*/?>", re.IGNORECASE)
EMPHASIS = re.compile(r"[*`]+(?=\S)|(?<=\S)[*`]+")
PUNCTUATION = str.maketrans({"\u2019": "'", "\u2018": "'", "\u3002": ". ", "\u3001": ", "}) | str.maketrans(
    dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb\u300c\u300d", '"') | dict.fromkeys("\u2013\u2014", " - ")
)
SCRIPT_CHANGE = re.compile(r"(?<=[\u3040-\u9fff])(?=[A-Za-z])|(?<=[A-Za-z])(?=[\u3040-\u9fff])")
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
OPENS = _words(r"""
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
REQUESTS = _words(r"""
    (?:(?:i|we) (?:'d|[ ]would)? (?:[ ](?:also|still|really|just))? | would)
        [ ] (?:need|want|like|love|appreciate|find[ ]it)
        (?= [^,:]{0,60} \b (?:know|hear|learn|ask|your|(?:score|value|rating|number|info|information)s?) \b)
    | (?:i|we) (?:[ ](?:also|still|just))? [ ]need (?=:\Z)
    | (?:i|we) (?:'m|[ ]am|[ ]was|'re|[ ]are)? (?:[ ]also|[ ]still)?
        [ ] (?:wonder|wondering|curious|asking|looking[ ]for|hoping[ ](?:you|to)|interested[ ]in|waiting)
    | (?:kindly|please) [ ] (?:\w+[ ])? (?:share|provide|reveal|list|report|state|specify|return)
""")
# A clause with one of these words that speaks of a score asks for it, if it is not one of RECALLS.
WANTS = _words(r"""
    please | pls | plz | kindly | grateful | appreciate | help(?:s|ful)? | useful
    | (?:nice|good|great)[ ]to[ ](?:know|hear|have|see|learn|get) | happy[ ]to | important
    | (?:tell|give|send|show)[ ]me | need (?![ ]some) | scores?[ ]needed | looking | ask | question
    | request(?:s|ed|ing)? | require | disclose | state | show
    | bitte | möchte | por[ ]favor | gustaría | quiero | voudrais | aimerais
""")
# A clause that begins with this is a question, with or without a question mark.
BEGINS = re.compile(
    r"""\W* (?: (?:and|but|so(?![ ](?:is|are|does|did)\b)|also|or|then|now|well) \b \W*
              | (?:ok|okay|hi|hello|hey|please|kindly|thanks|great|cool|sry|sorry|pls|plz) \b \W* )*
    (?: what (?![ ]i\b|[ ]an?\b) | how | who | whose | where | which[ ](?:reviewer|paper|one)
    | is | are | does | did | any | anything
    | tell | gimme | give[ ](?!\w+[ ]to\b) | share | provide | report | list | need[ ](?:your|.*score)
    | inform | reveal | awaiting | (?:ask|asking|looking|waiting)[ ](?:about|for)
    | request(?:ing)? | bitte | sag | nenne? | ich[ ](?:brauche|möchte) | dime | necesito | quisiera
    | donne | dis | j'ai[ ]besoin | podrías | puedes | pourr(?:iez|ais|ait)[ -](?:vous|tu|on)
    | kannst | könn(?:test|t?en)
    ) \b | .* (?: 请 | 告诉 | [想要]知道 | 多少 | 教えて )""",
    re.IGNORECASE | re.VERBOSE,
)
# The topic of a question, before the question: "For BLEU, what do you have on Ava?"
TOPIC = re.compile(
    r"\W*(?:and |also |so )*(?:for|as for|about|on|regarding|concerning|between|with regards? to)\b"
    r"(?! (?:me|my|now|us)\b)",
    re.IGNORECASE,
)
# What was asked or told before, may be asked, or need not be told is not asked for.
RECALLS = _words(
    r"""
    (?:you|i) (?:'ve|[ ]have)? (?:[ ](?:just|already|earlier))* [ ] (?:asked|told|said|mentioned|wrote)
    | (?:i|we)[ ]already[ ](?:know|have|see) | ignore[ ](?:my|the|that)
    | did[ ]you[ ](?:just[ ])?ask | (?:thanks?|thank[ ]you) [ ]for | feel[ ]free | ask[ ]me
    | (?:let[ ]me[ ]know|tell[ ]me) [ ]if[ ]you (?:'d|[ ]would)? [ ](?:need|want|like)
    | (?:no|not|never|(?:do|did|wo|would|need)n't) [ ] (?:\w+[ ])? (?:need|have[ ]to|ask|want|tell|share) | later
""",
    or_inside="谢谢",
)
# What comes after "You asked:" is a quotation: a sentence, or a line below it and those that list or name something.
QUOTED = re.compile(
    r"\b(?:(?:you|i)(?:'\w+)?(?: have| just| already)* (?:asked|said|wrote)(?: me| you)?"
    r"|your questions?(?: was| were)?|(?:my|the) (?:\w+ )?questions? (?:was|were)) ?[:(]"
    rf"(?:[^\S\n]*[^\s?!.][^\n?!.]*[?!.]*|\s*\n[^\n]+(?:\n\s*(?:[-*\d]|{_NAME})[^\n]*)*)",
    re.IGNORECASE,
)
OFFERS = _words(r"(?:i|we) \b (?: (?!\byou\b) [^,.?] ){0,60} \b (?:share|tell|give|provide|show|send|offer|gave)")

SCORE = _words(
    r"""
    (?:score|value|rating|number|point|info|information|data|stat|expertise)s?
    | wert | punktzahl | punt[ua]\w+ | how[ ](?:good|well|strong|high)
""",
    or_inside="分",
)
# Words of assigning and agreeing.
SUGGESTS = _words(
    r"""
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
    | de[ ]acuerdo | debería | te[ ]parece | d'accord | passt | in[ ]ordnung
""",
    or_inside="同意|建议|可以吗",
)
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
ASKS_BARE = _words(r"scores? | values? | same[ ]question | next")
# A request that lists the pairs below it or in the next clause.
ANNOUNCES = _words(
    r"following | below | th(?:ese|ose|em) | (?:one|a[ ]few|some)[ ](?:\w+[ ])?(?:score|value|number|cell|pair)s?"
)
OPINION = _words("think|feel|thoughts?|views?|feedback|opinion|looks?|sounds?")
# With one of these words, a list of pairs asks for scores: "Please tell me Ava on BLEU, Daniel on GloVe, ...".
TELLS = _words(r"""
    (?:know | (?:tell|give|send|show|remind)[ ]me) (?![ ]if) | (?:do|can|could|may)[ ](?:you|i)[ ](?:have|see|get)
    | share | provide | reveal | specify | request(?:ing)? | ask(?:ing)? | answer | fill | learn | hear | need | curious
    | looking[ ]for | help[ ]me | please(?=:) | (?:\A | please | you) \W* (?:list | report | state | return)
""")
# A list of pairs next to one of these words is up for a decision.
DECIDES = _words("whether|yes|good|better|best|plan|assignments?|final|work(?:s|ing)?|decide")
PERSON = _words("he|she|they|his|her|him|their|them")
PLACE = _words("(?:that|this|the[ ]same)[ ](?:paper|one)|it|(?<!is[ ])there")
