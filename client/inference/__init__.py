"""Text from the model that a node holds: fast, and the model's own to the letter.

`generate` answers prompts; `Decoder` is the engine below it, for tokens.
"""

from .answers import answered, generate
from .custom import recycling
from .engine import Account, Decoder
from .request import Request
from .tables import Tables

__all__ = ["Account", "Decoder", "Request", "Tables", "answered", "generate", "recycling"]
