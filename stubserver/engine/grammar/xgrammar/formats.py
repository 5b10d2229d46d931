"""What xgrammar 0.2.8 takes for a `format` of a JSON string, as regular expressions.

Read off the grammars that it makes. Where it allows less or more than the RFCs, so does this.
"""

from __future__ import annotations

from typing import Final

from stubserver.engine.grammar.xgrammar.language import Node
from stubserver.engine.grammar.xgrammar.regex import regex_language
from stubserver.memory import remembered

_DATE: Final = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[1-2]\d|3[01])"
_CLOCK: Final = r"([01]\d|2[0-3]):[0-5]\d"
_TIME: Final = rf"{_CLOCK}:([0-5]\d|60)(\.\d+)?(Z|[+\-]{_CLOCK})"

_SECONDS: Final = r"\d+S"
_MINUTES: Final = rf"\d+M({_SECONDS})?"
_HOURS: Final = rf"\d+H({_MINUTES})?"
_OF_A_DAY: Final = rf"T({_SECONDS}|{_MINUTES}|{_HOURS})"
_DAYS: Final = r"\d+D"
_MONTHS: Final = rf"\d+M({_DAYS})?"
_YEARS: Final = rf"\d+Y({_MONTHS})?"

_BYTE: Final = r"(25[0-5]|2[0-4]\d|[0-1]?\d?\d)"
_BYTE_IN_IPV6: Final = r"(25[0-5]|(2[0-4]|1?\d)?\d)"
_IPV4_IN_IPV6: Final = rf"({_BYTE_IN_IPV6}\.){{3}}{_BYTE_IN_IPV6}"
_GROUP: Final = r"[0-9a-fA-F]{1,4}"

_LABEL: Final = r"[a-z0-9]([a-z0-9\-]*[a-z0-9])?"
_ATOM: Final = r"[a-zA-Z0-9_!#$%&'*+/=?^`{|}~\-]+"
_QUOTED: Final = r'\\"(\\[ -~]|[ !#-\[\]-~])*\\"'

_OF_NAMES: Final = r"a-zA-Z0-9_.~!$&'()*+,;="
_PERCENT: Final = "%[0-9A-Fa-f][0-9A-Fa-f]"
_USER: Final = rf"([{_OF_NAMES}:\-]|{_PERCENT})*"
_HOST: Final = rf"([{_OF_NAMES}\-]|{_PERCENT})*"
_OF_SEGMENTS: Final = rf"([{_OF_NAMES}:@\-]|{_PERCENT})"
_OF_FIRST_SEGMENTS: Final = rf"([{_OF_NAMES}@\-]|{_PERCENT})"
_OF_QUERIES: Final = rf"([{_OF_NAMES}:@/?\-]|{_PERCENT})*"
_SEGMENTS: Final = rf"(/{_OF_SEGMENTS}*)*"
_AUTHORITY: Final = rf"//({_USER}@)?{_HOST}(:[0-9]*)?{_SEGMENTS}"
_PATH: Final = rf"({_OF_SEGMENTS}+{_SEGMENTS})?"
_TAIL: Final = rf"(\?{_OF_QUERIES})?(#{_OF_QUERIES})?"

_OF_VARIABLES: Final = rf"([a-zA-Z0-9_]|{_PERCENT})"
_VARIABLE: Final = rf"{_OF_VARIABLES}(\.?{_OF_VARIABLES})*(:[1-9]\d?\d?\d?|\*)?"

_POINTER: Final = r"(/([\x00-.0-}\x7f-\u{10ffff}]|~[01])*)*"

_HEX: Final = "[0-9A-Fa-f]"

FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": rf"P(({_DAYS}|{_MONTHS}|{_YEARS})({_OF_A_DAY})?|{_OF_A_DAY}|\d+W)",
    "email": rf"({_ATOM}(\.{_ATOM})*|{_QUOTED})@[A-Za-z0-9]([\-A-Za-z0-9]*[A-Za-z0-9])?"
    r"(\.[A-Za-z0-9][\-A-Za-z0-9]*[A-Za-z0-9])*",
    "hostname": rf"{_LABEL}(\.{_LABEL})*",
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "ipv6": "|".join(
        [
            rf"({_GROUP}:){{7}}{_GROUP}",
            rf"({_GROUP}:){{1,7}}:",
            rf"({_GROUP}:){{1,6}}:{_GROUP}",
            *(rf"({_GROUP}:){{1,{7 - most}}}(:{_GROUP}){{1,{most}}}" for most in range(2, 7)),
            rf":((:{_GROUP}){{1,7}}|:)",
            rf"::(ffff(:0{{1,4}})?:)?{_IPV4_IN_IPV6}",
            rf"({_GROUP}:){{1,4}}:{_IPV4_IN_IPV6}",
        ]
    ),
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d*)(#|{_POINTER})",
    "uri": rf"[a-zA-Z][a-zA-Z+.\-]*:({_AUTHORITY}|/?{_PATH}){_TAIL}",
    "uri-reference": rf"({_AUTHORITY}|/{_PATH}|{_OF_FIRST_SEGMENTS}+{_SEGMENTS})?{_TAIL}",
    "uri-template": rf"([!#-$&(-;=?-\[\]_a-z~]|{_PERCENT}|\{{[+#./;?&=,!@|]?{_VARIABLE}(,{_VARIABLE})*\}})*",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
}


@remembered(most=64)
def format_language(name: str) -> Node | None:
    """What may stand between the quotes; None for a format that xgrammar doesn't know, and ignores."""
    return regex_language(FORMATS[name]) if name in FORMATS else None
