"""Regenerates `messages_pb2.py` and `messages_pb2.pyi` from `messages.proto`.

Run `python protos/generate.py` (needs grpcio-tools, in the `test` extra) after changing the .proto.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def generate(destination: Path) -> None:
    """Write the generated code under `destination`/fedlora/protos.

    Raises:
        RuntimeError: if the protobuf compiler reports an error.
    """
    from grpc_tools import protoc

    arguments = [f"-Ifedlora/protos={HERE}", f"--python_out={destination}"]
    arguments += [f"--pyi_out={destination}", "fedlora/protos/messages.proto"]
    if protoc.main(["protoc", *arguments]) != 0:
        raise RuntimeError("protoc failed; its message stands above")


if __name__ == "__main__":
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        for made in sorted((Path(scratch) / "fedlora" / "protos").iterdir()):
            shutil.copy(made, HERE / made.name)
            sys.stdout.write(f"wrote {HERE / made.name}\n")
