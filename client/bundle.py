"""What a node takes as Flower's app bundle: the name of the app installed here, and no code.

A coordinator sends a bundle with each run, and Flower would unpack it and import what it names.
"""

import tomllib
import zipfile
from io import BytesIO
from typing import Any

from fedlora.adapters.errors import WireError

CLIENT_APP = "fedlora.client.app:app"
_FILES = {"pyproject.toml", ".info/CONTENT"}
_LARGEST = 1 << 20  # bytes of a file in it


def require_codeless(bundle: bytes) -> None:
    """Check a bundle before anything unpacks it.

    Raises:
        WireError: if it holds more than a description, or names another ClientApp.
    """
    try:
        with zipfile.ZipFile(BytesIO(bundle)) as archive:
            for info in archive.infolist():
                if info.filename not in _FILES or info.file_size > _LARGEST:
                    raise WireError(
                        f"the coordinator's app bundle holds {info.filename!r} of {info.file_size} "
                        "bytes; a node runs only what is installed on it"
                    )
            content: dict[str, Any] = tomllib.loads(archive.read("pyproject.toml").decode())
        named = content["tool"]["flwr"]["app"]["components"]["clientapp"]
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise WireError(f"the coordinator's app bundle can't be read: {error!r}") from None
    if named != CLIENT_APP:
        raise WireError(
            f"the coordinator's app bundle names the ClientApp {named!r}; a node runs {CLIENT_APP}"
        )
