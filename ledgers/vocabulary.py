"""The built-in vocabulary: how a length in tokens becomes text, and how text is counted.

One word of the vocabulary, between blanks, is one token; so a prompt made of it has exactly the length the
ledger asks for, and any client that sends text gets a count it can predict. The words are common and short:
most tokenizers of real models make one token of each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

WORDS = tuple(
    """
    able about above across act add after again age ago air all also always am among an and animal answer any
    appear are area arm around art as ask at away baby back ball bank base be bear beat beauty bed been before
    began begin behind being bell best better between big bird black blood blow blue board boat body bone book
    born both bottom bought box boy branch bread break bright bring broad broke brother brought brown build
    burn busy but buy by call came camp can capital captain car care carry case cat catch cause cell cent
    center century chance change chart check chief child choose circle city claim class clean clear climb
    clock close clothe cloud coast coat cold color come common company compare complete condition connect
    consider contain continue control cook cool copy corn corner correct cost cotton could count country
    course cover cow create crop cross crowd cry current cut dance danger dark day dead deal dear death decide
    deep degree depend describe desert design did differ direct discuss distant divide do doctor does dog
    dollar done door double down draw dream dress drink drive drop dry during each ear early earth ease east
    eat edge effect egg eight either electric else end enemy energy engine enough enter equal even evening
    event ever every exact example except excite expect experience eye face fact fair fall family famous far
    farm fast fat father favor fear feed feel feet fell felt few field fight figure fill final find fine
    finger finish fire first fish fit five flat floor flow flower fly follow food foot for force forest form
    forward found four free fresh friend from front fruit full fun game garden gas gather gave general gentle
    get girl give glad glass go gold gone good got govern grand grass gray great green grew ground group grow
    guess guide gun had hair half hand happen happy hard has hat have he head hear heart heat heavy held help
    her here high hill him his history hit hold hole home hope horse hot hour house how huge human hundred
    hunt hurry ice idea if imagine in inch include industry insect instant iron is island it job join joy jump
    just keep kept key kill kind king knew know lady lake land language large last late laugh law lay lead
    learn least leave led left leg length less let letter level lie life lift light like line list listen
    little live long look lost lot loud love low machine made magnet main major make man many map mark market
    mass master match material matter may me mean measure meat meet melody men metal method middle might mile
    milk million mind mine minute miss mix modern moment money month moon more morning most mother motion
    mount mountain mouth move much music must my name nation nature near neck need never new next night nine
    no noise noon north nose note nothing notice now number object ocean of off offer office often oil old on
    once one only open or order other our out over own page paint pair paper part party pass past path pay
    people perhaps person phrase pick picture piece place plan plane planet plant play please point poor
    position possible post power present press pretty print problem process produce proper prove public pull
    push put question quick quiet quite race radio rain raise range rate reach read ready real reason record
    red region remember repeat reply report rest result rich ride right ring rise river road rock roll room
    root rope rose round row rule run safe said sail salt same sand sat save saw say scale school science sea
    season seat second see seed seem select self sell send sense sent serve set settle seven shape share
    sharp she ship shoe shop short should show side sight sign silent silver similar simple since sing single
    sister sit six size skill skin sky sleep slip slow small smell smile snow so soft soil soldier some son
    song soon sound south space speak special speed spell spend spoke spot spread spring square stand star
    start state station stay steel step stick still stone stop store story straight strange stream street
    strong student study subject such sudden sugar suggest suit summer sun supply support sure surface
    surprise swim system table tail take talk tall teach team tell ten term test than thank that the their
    them then there these they thick thin thing think third this those though thought thousand three through
    time tiny to together told too took tool top total touch toward town track trade train travel tree
    triangle trip trouble truck true try tube turn twenty two type under unit until up us use usual valley
    value vary very view village visit voice vowel wait walk wall want war warm was wash watch water wave way
    we wear weather week weight well went were west what wheel when where whether which while white who whole
    whose why wide wife wild will win wind window wing winter wire wish with woman wonder wood word work world
    would write written wrong yard year yellow yes yet you young your
    """.split()
)
# The shortest and commonest of them: with a blank before it, nearly every tokenizer has each as one token.
COMMON_WORDS = tuple(
    """
    and are as at be but by can do for from had has have he her him his how if in is it just like more my new
    no now of on one or out over so than that they this time to up use was we with
    """.split()
)
_KNOWN = frozenset(WORDS)
BYTES_PER_UNKNOWN_TOKEN = 4
_PIECE_CHARS = 16_384
_BLANK = re.compile(r"\s")  # what str.split() splits at


def count_tokens(text: str) -> int:
    """A word of the vocabulary is one token; any other word is one per four bytes of UTF-8, rounded up."""
    return sum(_count(piece) for piece in pieces(text))


def pieces(text: str) -> Iterator[str]:
    """Cuts between words: whoever reads in a thread lets the others have their turn after each piece.

    No more than a piece is looked through at a time, however far the next blank is.
    """
    begin = 0
    while begin < len(text):
        end, blank = begin + _PIECE_CHARS, None
        while blank is None and end < len(text):
            blank = _BLANK.search(text, end, end + _PIECE_CHARS)
            end = blank.start() if blank else end + _PIECE_CHARS
        yield text[begin:end]
        begin = end


def _count(text: str) -> int:
    counts = Counter(text.split())
    unknown = ((word, count) for word, count in counts.items() if word not in _KNOWN)
    return counts.total() + sum(count * (_word_tokens(word) - 1) for word, count in unknown)


def _word_tokens(word: str) -> int:
    return -(-len(word.encode("utf-8", "surrogatepass")) // BYTES_PER_UNKNOWN_TOKEN)
