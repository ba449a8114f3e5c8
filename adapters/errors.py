"""Every exception that fedlora raises on purpose, in one tree.

Each class carries the exit code of the command line, so that a script can tell a wrong recipe
from a missing node. A message names what was wrong, where, what was expected, and what to do.
"""


class FedloraError(Exception):
    """Base of all errors that a user can mend. The command line prints it without a traceback."""

    exit_code = 1


class RecipeError(FedloraError):
    """A recipe, an option or an override is wrong."""

    exit_code = 3


class DataError(FedloraError):
    """A data file is missing, empty, or not in the declared format."""

    exit_code = 4


class ModelError(FedloraError):
    """A model cannot be found, loaded, or used for the task."""

    exit_code = 5


class BaseMismatchError(ModelError):
    """Two parties hold different frozen base weights."""

    exit_code = 6


class AdapterError(FedloraError):
    """LoRA factors do not fit each other, their module, or their name."""

    exit_code = 7


class WireError(FedloraError):
    """A message or tensor payload is malformed, altered, or too large."""

    exit_code = 8


class QuorumError(FedloraError):
    """Too few nodes came, or answered, within the deadline."""

    exit_code = 9


class EngineError(FedloraError):
    """A process of the federation could not be started, or died."""

    exit_code = 10


class RunError(FedloraError):
    """A run directory is missing, in use, or not what was expected."""

    exit_code = 11


class IdentityError(FedloraError):
    """A key, certificate or signature is missing, expired, or another party's."""

    exit_code = 12
