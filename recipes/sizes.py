"""Sizes of memory as people write them: `900MB`, `2.6 GB`."""

import re

SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kMGT]?)B\s*$")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def read_size(text: str) -> int:
    """Bytes, in decimal units.

    Raises:
        ValueError: if the text is not a size.
    """
    found = SIZE.match(text)
    if not found or float(found[1]) == 0:
        raise ValueError(
            f"{text!r} is no size; expected a number and a unit, such as 900MB or 2.6GB"
        )
    return round(float(found[1]) * _UNITS[found[2]])
