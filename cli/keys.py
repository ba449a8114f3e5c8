"""`fedlora keys`: who is who in a federation."""

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson

app = typer.Typer(
    no_args_is_help=True,
    help="Make and register keys and certificates.",
    epilog="Order: ca, server, then node and register for each node. More in docs/identity.md.",
)

Out = Annotated[
    Path, typer.Option("--out", metavar="FOLDER", help="Where to make them.", show_default=False)
]
Days = Annotated[int, typer.Option(min=1, help="How long the certificate is valid.")]


def _report(as_json: bool, values: dict[str, object], *lines: str) -> None:
    typer.echo(json.dumps(values, ensure_ascii=False) if as_json else "\n".join(lines))


@app.command(epilog="Example: fedlora keys ca --out pki/ca")
def ca(out: Out, days: Days = 3650, as_json: AsJson = False) -> None:
    """Make the federation's own certificate authority."""
    from fedlora.protos.keymaking import make_authority

    keys = make_authority(out, days)
    until = keys.expires["ca.crt"].date().isoformat()
    _report(
        as_json,
        {"folder": str(out), "expires": until},
        f"{out}: an authority, valid until {until}; keep {out / 'ca.key'} off the network",
    )


@app.command(
    epilog="Example: fedlora keys server --ca pki/ca --host fed.example.org --out pki/coordinator"
)
def server(
    out: Out,
    ca: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The authority's folder.", show_default=False)
    ],
    host: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="DNS name or IP address by which nodes call the coordinator. May be repeated.",
            show_default=False,
        ),
    ],
    days: Days = 365,
    as_json: AsJson = False,
) -> None:
    """Make the coordinator's TLS certificate, and the key that signs its heads."""
    from fedlora.protos.keymaking import make_coordinator
    from fedlora.protos.keys import AuthorityKeys

    keys = make_coordinator(out, AuthorityKeys.open(ca), host, days)
    until = keys.expires["server.crt"].date().isoformat()
    names, print_ = ", ".join(keys.hosts), keys.signing.fingerprint
    _report(
        as_json,
        {"folder": str(out), "expires": until, "hosts": keys.hosts, "fingerprint": print_},
        f"{out}: a coordinator called {names}, valid until {until}",
        f"signs heads with {print_}",
        f"give each node {out / 'ca.crt'} and {out / 'coordinator.pub'}",
    )


@app.command(epilog="Example: fedlora keys node clinic --out pki/clinic")
def node(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the node.")],
    out: Out,
    coordinator: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="A folder with the coordinator's ca.crt and coordinator.pub, to copy them.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a node's key; the private half stays in its folder."""
    from fedlora.protos.keymaking import HANDED_OUT, introduce, make_node

    key = make_node(out, name)
    if coordinator is not None:
        introduce(out, coordinator)
    lines = [f"{out}: the key {key.fingerprint} of node {name}"]
    if coordinator is None:
        lines.append(f"copy the coordinator's {' and '.join(HANDED_OUT)} into {out}")
    lines.append(f"hand in {out / name}.pub, for `fedlora keys register`")
    values: dict[str, object] = {"folder": str(out), "fingerprint": key.fingerprint}
    _report(as_json, values, *lines)


@app.command(
    epilog="Example: fedlora keys register pki/clinic/clinic.pub --coordinator pki/coordinator"
)
def register(
    public: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The node's NAME.pub.", show_default=False),
    ],
    coordinator: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The coordinator's folder.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Let a node take part, from now on; removing its file from nodes/ ends that."""
    from fedlora.protos.keymaking import register as let_in

    name, key = let_in(public, coordinator)
    _report(
        as_json,
        {"node": name, "fingerprint": key.fingerprint},
        f"node {name} may take part with the key {key.fingerprint}: compare it with the node's",
    )
