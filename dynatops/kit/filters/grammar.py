"""Reading predicates: from text to conditions, or a FilterError that says where and what is wrong.

    any     = all { "or" all }
    all     = one { "and" one }
    one     = "not" one | "(" any ")" | "has" name | name operator literal
            | name "startswith" text
    name    = letter or "_", then letters, digits, "_", ".", "-"; or anything between backquotes
    literal = number | text | "true" | "false"

Size, nesting and the number of tests are limited, so that nothing a stranger sends takes long to
read, to evaluate or to compare.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import NoReturn

from dynatops.kit.filters.conditions import (
    BARE_NAME,
    KEYWORDS,
    Condition,
    NumberTest,
    Operator,
    Presence,
    TextTest,
    TruthTest,
    all_of,
    any_of,
    negated,
)
from dynatops.kit.filters.pattern import FilterError
from dynatops.v1.client_pb2 import ErrorCode

WHERE_BYTES_MAX = 1_024
# Parentheses within each other.
DEPTH_MAX = 16
# With as many in another predicate no more names than an event may have attributes.
TESTS_MAX = 32
NAME_BYTES_MAX = 64
WHOLE_MIN, WHOLE_MAX = -(1 << 63), (1 << 63) - 1

_ORDERINGS = (Operator.LESS, Operator.AT_MOST, Operator.GREATER, Operator.AT_LEAST)
_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "r": "\r"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.?))", re.DOTALL)


class Kind(Enum):
    SPACE = auto()
    NUMBER = auto()
    WORD = auto()
    NAME = auto()
    TEXT = auto()
    OPERATOR = auto()
    PARENTHESIS = auto()
    END = auto()


_TOKENS = (
    (Kind.SPACE, r"[ \t\r\n]+"),
    (Kind.NUMBER, r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.])"),
    (Kind.WORD, BARE_NAME.pattern),
    (Kind.NAME, r"`[^`\x00-\x1f\x7f]+`"),
    (Kind.TEXT, r'"(?:[^"\\\x00-\x1f\x7f]|\\[^\x00-\x1f\x7f])*"'),
    (Kind.OPERATOR, r"<=|>=|==|!=|<|>"),
    (Kind.PARENTHESIS, r"[()]"),
)
_TOKEN = re.compile("|".join(f"(?P<{kind.name}>{pattern})" for kind, pattern in _TOKENS))


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    text: str
    position: int


def parse(where: str) -> Condition:
    """Raise FilterError unless `where` is a predicate within the limits."""
    try:
        size = len(where.encode())
    except UnicodeEncodeError:
        reason = "cannot be written as UTF-8"
        raise FilterError(where, ErrorCode.ERROR_CODE_FILTER_INVALID, reason) from None
    check_size(where, size)
    return _Parser(where).parse()


def check_size(where: str, size: int) -> None:
    if size > WHERE_BYTES_MAX:
        raise FilterError(
            where,
            ErrorCode.ERROR_CODE_FILTER_INVALID,
            f"has {size:,} bytes; the limit is {WHERE_BYTES_MAX:,}",
        )


class _Parser:
    def __init__(self, where: str) -> None:
        self._where = where
        self._tokens = self._split()
        self._next = 0
        self._depth = 0
        self._tests = 0

    def parse(self) -> Condition:
        condition = self._any()
        if self._token.kind is not Kind.END:
            self._expected("'and', 'or' or the end")
        return condition

    # ---- tokens ----------------------------------------------------------------------------------

    def _split(self) -> list[Token]:
        tokens: list[Token] = []
        position = 0
        while position < len(self._where):
            match = _TOKEN.match(self._where, position)
            if match is None or match.lastgroup is None:
                self._refuse(self._why_no_token(position), position)
            kind = Kind[match.lastgroup]
            if kind is not Kind.SPACE:
                tokens.append(Token(kind, match.group(), position))
            position = match.end()
        tokens.append(Token(Kind.END, "the end", position))
        return tokens

    def _why_no_token(self, position: int) -> str:
        character = self._where[position]
        if character == '"':
            return "has a text that does not end, or has a control character (write \\n or \\u0001)"
        if character == "`":
            return "has a name in backquotes that is empty, has a control character or does not end"
        if character == "=":
            return "has '=' where '==' is meant"
        if character in "-0123456789":
            return "has a number that is none; examples: 7, -1.5, 2e9"
        return f"has {character!r}, which has no meaning here"

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._token
        self._next += 1
        return token

    def _take_if(self, kind: Kind, text: str) -> bool:
        if self._token.kind is not kind or self._token.text != text:
            return False
        self._next += 1
        return True

    # ---- conditions ------------------------------------------------------------------------------

    def _any(self) -> Condition:
        parts = [self._all()]
        while self._take_if(Kind.WORD, "or"):
            parts.append(self._all())
        return any_of(parts)

    def _all(self) -> Condition:
        parts = [self._one()]
        while self._take_if(Kind.WORD, "and"):
            parts.append(self._one())
        return all_of(parts)

    def _one(self) -> Condition:
        is_negated = False
        while self._take_if(Kind.WORD, "not"):
            is_negated = not is_negated
        condition = self._group() if self._take_if(Kind.PARENTHESIS, "(") else self._test()
        return negated(condition) if is_negated else condition

    def _group(self) -> Condition:
        opened = self._tokens[self._next - 1]
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._refuse(
                f"has more than {DEPTH_MAX} parentheses within each other", opened.position
            )
        condition = self._any()
        if not self._take_if(Kind.PARENTHESIS, ")"):
            self._expected("'and', 'or' or ')'")
        self._depth -= 1
        return condition

    def _test(self) -> Condition:
        self._tests += 1
        if self._tests > TESTS_MAX:
            self._refuse(f"has more than {TESTS_MAX} tests", self._token.position)
        if self._take_if(Kind.WORD, "has"):
            return Presence(self._name("the name of an attribute"))
        name = self._name("a test, 'not' or '('")
        if self._take_if(Kind.WORD, "startswith"):
            return TextTest(name, Operator.STARTS_WITH, self._text("a text in double quotes"))
        if self._token.kind is not Kind.OPERATOR:
            self._expected("'<', '<=', '>', '>=', '==', '!=' or 'startswith'")
        return self._comparison(name, Operator(self._take().text))

    def _comparison(self, name: str, operator: Operator) -> Condition:
        token = self._token
        if token.kind is Kind.NUMBER:
            return NumberTest(name, operator, self._number(self._take()))
        if token.kind is Kind.WORD and token.text in ("true", "false"):
            if operator in _ORDERINGS:
                self._refuse(
                    f"has {operator} before {token.text}; only '==' and '!=' can be", token.position
                )
            self._next += 1
            return TruthTest(name, (token.text == "true") == (operator is Operator.EQUAL))
        return TextTest(
            name, operator, self._text("a number, a text in double quotes, true or false")
        )

    # ---- names and literals ----------------------------------------------------------------------

    def _name(self, expected: str) -> str:
        token = self._token
        if token.kind is Kind.NAME:
            name = token.text[1:-1]
        elif token.kind is Kind.WORD and token.text not in KEYWORDS:
            name = token.text
        else:
            self._expected(expected)
        if len(name.encode()) > NAME_BYTES_MAX:
            self._refuse(f"has a name of more than {NAME_BYTES_MAX} bytes", token.position)
        self._next += 1
        return name

    def _number(self, token: Token) -> int | float:
        if token.text.lstrip("-").isdigit():
            whole = int(token.text)
            if not WHOLE_MIN <= whole <= WHOLE_MAX:
                self._refuse("has a whole number beyond 64 bits; 1e30 is not whole", token.position)
            return whole
        number = float(token.text)
        if not math.isfinite(number):
            self._refuse("has a number that is too large", token.position)
        is_whole = number.is_integer() and WHOLE_MIN <= number <= WHOLE_MAX
        return int(number) if is_whole else number

    def _text(self, expected: str) -> str:
        token = self._token
        if token.kind is not Kind.TEXT:
            self._expected(expected)
        self._next += 1
        return _ESCAPE.sub(lambda escape: self._unescaped(escape, token), token.text[1:-1])

    def _unescaped(self, escape: re.Match[str], token: Token) -> str:
        digits, letter = escape.groups()
        if digits is None:
            if letter not in _ESCAPES:
                position = token.position + 1 + escape.start()
                self._refuse(
                    f'has {escape.group()}, which is none of \\" \\\\ \\n \\t \\r \\u0000', position
                )
            return _ESCAPES[letter]
        character = chr(int(digits, 16))
        if "\ud800" <= character <= "\udfff":
            self._refuse("has half a character; write it out", token.position + 1 + escape.start())
        return character

    # ---- errors ----------------------------------------------------------------------------------

    def _expected(self, what: str) -> NoReturn:
        token = self._token
        found = "ends" if token.kind is Kind.END else f"has {token.text[:20]!r}"
        self._refuse(f"{found} where {what} is expected", token.position)

    def _refuse(self, reason: str, position: int) -> NoReturn:
        raise FilterError(
            self._where,
            ErrorCode.ERROR_CODE_FILTER_INVALID,
            f"{reason}, at character {position + 1}",
            position,
        )
