"""What a run is called, stands on, and signs with."""

from dataclasses import dataclass

from fedlora.protos.envelope import SigningKey


@dataclass(frozen=True)
class Identity:
    """What a run is called and stands on.

    Attributes:
        run: its name; updates of another run are refused.
        base: fingerprint of the frozen weights; updates from another base are refused.
        task: what nodes are told to do, as JSON.
        recipe: fingerprint of what was asked for; goes into the records.
        key: that heads are signed with.
    """

    run: str = "run"
    base: str = ""
    task: str = ""
    recipe: str = ""
    key: SigningKey | None = None
