"""Finds the number that a worked solution ends in."""

from __future__ import annotations

import re
from decimal import Decimal, localcontext
from fractions import Fraction

_NUMBER = re.compile(
    r"""
    (?: (?<![\w.,)]) (?P<sign> [-−] ) )?             # a minus after a digit or a bracket is a subtraction
    (?: \\?[$€£] \s? (?P<late_sign> [-−] )? )?
    (?P<whole> [0-9]{1,3} (?: ,[0-9]{3} )+ (?![0-9]) | [0-9]+ )?
    (?P<decimals> \.[0-9]+ )?
    (?(whole) | (?(decimals) | (?!) ) )              # at least one of the two
    (?: \s?/\s? (?P<below> [0-9]{1,9} ) (?![0-9/]) )?
    """,
    re.VERBOSE,
)
_MARKER = re.compile(r"#{4}|\banswer\s*(?:is|:|=)", re.IGNORECASE)
# Python refuses to read very long numbers, which a model may write that repeats one digit.
_MAX_DIGITS = 1000


def final_number(text: str) -> str | None:
    """Return the number that ``text`` gives as its answer, in a normal form, or None if it has none.

    Markers are "####" and "answer is". The answer is the first number after the last marker with a number after it,
    else the last number. Commas, currency and percent signs, redundant zeros and full stops do not count.

    Examples
    --------
    >>> final_number("16 - 3 - 4 = 9, so the answer is $1,000.00.")
    '1000'
    >>> final_number("#### -2.50"), final_number("The answer is 5/10"), final_number("none")
    ('-2.5', '0.5', None)
    """
    for marker in reversed(list(_MARKER.finditer(text))):
        found = _NUMBER.search(text, marker.end())
        if found:
            return _normal(found)
    numbers = list(_NUMBER.finditer(text))
    return _normal(numbers[-1]) if numbers else None


def _normal(found: re.Match[str]) -> str:
    digits = (found["whole"] or "0").replace(",", "") + (found["decimals"] or "")
    if len(digits) > _MAX_DIGITS:
        return digits
    value = Fraction(digits) / (int(found["below"] or 1) or 1)
    if found["sign"] or found["late_sign"]:
        value = -value
    # Decimals end if the denominator divides a power of ten.
    ends = pow(10, value.denominator.bit_length(), value.denominator) == 0
    return _decimal(value, len(digits)) if ends else str(value)


def _decimal(value: Fraction, digits: int) -> str:
    with localcontext() as context:
        context.prec = digits + 40
        text = f"{Decimal(value.numerator) / value.denominator:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
