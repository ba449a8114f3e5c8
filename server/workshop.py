"""Has things made for the hub, one at a time, and waits for them without holding anything up."""

import asyncio
import sys

from fedlora.adapters import RunError
from fedlora.strategies.heads import Snapshot
from fedlora.strategies.records import HeadRecord

from .making import MERGED, SNAPSHOT, made, place
from .rundir import RunDirectory
from .shelf import ShelfFile


class Workshop:
    """Merged models and folded weights of one run, made when they are first asked for."""

    def __init__(self, run: RunDirectory) -> None:
        """Make what is asked of `run`, in a folder within its directory."""
        self._run = run
        self._busy = asyncio.Lock()

    def ready(self, round: int, form: str) -> list[ShelfFile] | None:
        """The files of `form`, if they were made already."""
        return made(place(self._run, round, form))

    async def merged(self, round: int) -> list[ShelfFile]:
        """The files of a model folder with everything merged; raises as `making.make`."""
        return await self._made(round, MERGED)

    async def snapshot(self, record: HeadRecord) -> Snapshot:
        """The folded weights of a head; raises as `making.make`."""
        [file] = await self._made(record.round, SNAPSHOT)
        return Snapshot(file.path, file.digest, len(record.history))

    async def _made(self, round: int, form: str) -> list[ShelfFile]:
        async with self._busy:
            files = self.ready(round, form)
            if files is None:
                await self._make(round, form)
                files = self.ready(round, form)
        if files is None:
            raise RunError(f"the hub has just made {form} of round {round}, and it is gone")
        return files

    async def _make(self, round: int, form: str) -> None:
        command = [sys.executable, "-m", "fedlora.server.making"]
        process = await asyncio.create_subprocess_exec(
            *command,
            str(self._run.path),
            str(round),
            form,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, complaint = await process.communicate()
        finally:
            if process.returncode is None:  # whoever asked has gone
                process.kill()
                await process.wait()
        if process.returncode:
            lines = complaint.decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else f"exit code {process.returncode}"
            raise RunError(f"the hub cannot make {form} of round {round}: {reason}")
