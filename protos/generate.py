"""Regenerates the Python code of every .proto file in this folder.

Run `python protos/generate.py` (needs grpcio-tools, in the `test` extra) after changing one.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def generate(destination: Path) -> None:
    """Write the generated code under `destination`/fedlora/protos.

    A file with a `service` gets its gRPC code too.

    Raises:
        RuntimeError: if the protobuf compiler reports an error.
    """
    from grpc_tools import protoc

    for source in sorted(HERE.glob("*.proto")):
        arguments = [f"-Ifedlora/protos={HERE}", f"--python_out={destination}"]
        arguments += [f"--pyi_out={destination}"]
        if "\nservice " in source.read_text():
            arguments += [f"--grpc_python_out={destination}"]
        if protoc.main(["protoc", *arguments, f"fedlora/protos/{source.name}"]) != 0:
            raise RuntimeError("protoc failed; its message stands above")


if __name__ == "__main__":
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        for made in sorted((Path(scratch) / "fedlora" / "protos").iterdir()):
            shutil.copy(made, HERE / made.name)
            sys.stdout.write(f"wrote {HERE / made.name}\n")
