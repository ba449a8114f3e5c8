"""Sizes of memory as people write them."""

import re
from typing import Annotated

from pydantic import AfterValidator

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_size(text: str) -> int:
    """Bytes, from as in `2.6GB`, `900 MiB` or `1500000`.

    Raises:
        ValueError: if it is no positive size.
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmg]i?)?b?", text.strip().lower())
    count = int(float(found[1]) * UNITS[found[2] or ""]) if found else 0
    if count < 1:
        raise ValueError(
            f"{text!r} is no size: expected a positive number of B, kB, MB, GB, KiB, MiB or GiB, "
            "as in 2.6GB"
        )
    return count


def _checked(text: str) -> str:
    parse_size(text)
    return text


Size = Annotated[str, AfterValidator(_checked)]
