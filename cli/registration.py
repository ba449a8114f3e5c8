"""Who may take part: Flower's list of nodes and the gate's follow the folder of public keys."""

import threading
from collections.abc import Iterable
from types import TracebackType

from fedlora.adapters.errors import EngineError, FedloraError, IdentityError
from fedlora.protos.envelope import VerifyingKey
from fedlora.protos.keys import CoordinatorKeys
from fedlora.server.events import Listener, Notice
from fedlora.server.gate import Gate
from fedlora.server.rundir import RunDirectory

from .superlink import flwr

INTERVAL = 1.0  # seconds between two looks at the folder

_IN_USE = "[code: 23]"  # so Flower knows the key, from a database that outlived its process


class Registration:
    """Registers whose key lies in the folder, and lets go whose key has left it."""

    def __init__(
        self, run: RunDirectory, keys: CoordinatorKeys, gate: Gate, listener: Listener
    ) -> None:
        """For a run whose SuperLink is up, with a gate before it.

        Raises:
            FedloraError: if a file in the folder is no key, or Flower refuses one.
        """
        self._run, self._keys, self._gate, self._listener = run, keys, gate, listener
        self._admitted: dict[str, VerifyingKey] = {}
        self._ids: dict[str, str] = {}  # Flower's, by fingerprint; it never takes a key twice
        self._complaint = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="registration", daemon=True)
        self._update()

    def __enter__(self) -> "Registration":
        """Begin to follow the folder."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Follow it no longer."""
        self._ended.set()
        self._thread.join()

    def _update(self) -> None:
        """Make both lists that of the folder as it is now.

        Raises:
            FedloraError: if a file is no key, or Flower refuses one; the others are served.
        """
        files = {path.stem for path in self._keys.nodes_folder.glob("*.pub")}
        self._let_go(self._admitted.keys() - files)  # whatever is wrong with other files
        wanted, errors = self._keys.nodes(), list[FedloraError]()
        self._let_go({name for name, key in self._admitted.items() if wanted[name] != key})
        for name in sorted(wanted.keys() - self._admitted.keys()):
            try:
                self._register(name, wanted[name])
            except FedloraError as error:
                errors.append(error)
        self._gate.admit(self._admitted.values())
        if errors:
            raise errors[0]

    def _let_go(self, names: Iterable[str]) -> None:
        """Serve these nodes no longer; Flower need not know before the gate does."""
        gone = {name: self._admitted.pop(name) for name in names}
        if gone:
            self._gate.admit(self._admitted.values())
        for name, key in gone.items():
            self._tell(f"node {name} may not take part any more: its key is gone")
            if node_id := self._ids.get(key.fingerprint):
                self._flwr("unregister", node_id)

    def _register(self, name: str, key: VerifyingKey) -> None:
        path = self._keys.nodes_folder / f"{name}.pub"
        if key.fingerprint in self._ids:
            raise IdentityError(
                f"{path} was removed during this run, and Flower does not take a key again: "
                f"give node {name} a new key, or restart the coordinator"
            )
        answer = self._flwr("register", str(path), "--name", name)
        if "node-id" not in answer and _IN_USE not in str(answer):
            raise EngineError(f"Flower didn't register {path}: {answer}")
        self._ids[key.fingerprint] = str(answer.get("node-id", ""))
        self._admitted[name] = key
        self._tell(f"node {name} may take part: {key.fingerprint}")

    def _flwr(self, action: str, *arguments: str) -> dict[str, object]:
        return flwr(self._run, ["supernode", action, *arguments, "--format", "json"])

    def _follow(self) -> None:
        while not self._ended.wait(INTERVAL):
            complaint = ""
            try:
                self._update()
            except FedloraError as error:
                complaint = str(error)
                if complaint != self._complaint:  # once is enough
                    self._tell(f"registration: {complaint}")
            self._complaint = complaint

    def _tell(self, text: str) -> None:
        self._listener(Notice(text))
