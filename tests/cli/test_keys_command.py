"""`fedlora keys` as a user types it, and what `fedlora doctor` says of the folders."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import Result

from fedlora.cli import machine
from fedlora.cli.key_checks import examine_keys
from fedlora.protos import authority
from fedlora.protos.keymaking import make_coordinator
from fedlora.protos.keys import AuthorityKeys, CoordinatorKeys, NodeKeys

Call = Callable[..., Result]


@pytest.fixture
def pki(call: Call, tmp_path: Path) -> Path:
    """The worked example of docs/identity.md."""
    host, coordinator = ("--host", "fed.example.org"), tmp_path / "coordinator"
    for arguments in (
        ("ca", "--out", tmp_path / "ca"),
        ("server", "--ca", tmp_path / "ca", *host, "--out", coordinator),
        ("node", "clinic", "--out", tmp_path / "clinic", "--coordinator", coordinator),
        ("register", tmp_path / "clinic" / "clinic.pub", "--coordinator", coordinator),
    ):
        done = call("keys", *arguments)
        assert done.exit_code == 0, done.output
    return tmp_path


def test_the_folders_are_ready_to_run(pki: Path) -> None:
    clinic = NodeKeys.open(pki / "clinic")
    assert CoordinatorKeys.open(pki / "coordinator").nodes() == {"clinic": clinic.signing.verifying}


def test_a_node_far_away_is_told_what_to_fetch_and_hand_in(call: Call, tmp_path: Path) -> None:
    done = call("keys", "node", "harbour", "--out", tmp_path / "harbour")
    assert "copy the coordinator's ca.crt and coordinator.pub into" in done.stdout
    assert f"hand in {tmp_path}/harbour/harbour.pub" in done.stdout


def test_both_sides_print_the_same_fingerprint(call: Call, pki: Path) -> None:
    arguments = ("keys", "register", pki / "clinic" / "clinic.pub", "--coordinator")
    said = json.loads(call(*arguments, pki / "coordinator", "--json").stdout)
    fingerprint = NodeKeys.open(pki / "clinic").signing.fingerprint
    assert said == {"node": "clinic", "fingerprint": fingerprint}


def test_nothing_is_written_over(call: Call, pki: Path) -> None:
    done = call("keys", "ca", "--out", pki / "ca")
    assert done.exit_code == 12
    assert done.stderr.startswith("error: ")
    assert "there already, and keys are not written over" in done.stderr


def test_doctor_knows_whose_folder_it_is(call: Call, pki: Path) -> None:
    done = call("doctor", "--keys", pki / "coordinator")
    assert done.exit_code == 0, done.output
    fingerprint = NodeKeys.open(pki / "clinic").signing.fingerprint
    assert f"at fed.example.org, 127.0.0.1; nodes: clinic {fingerprint}" in done.stdout
    found = [check.found for name in ("ca", "clinic") for check in examine_keys(pki / name)]
    assert found[0].startswith("authority CN=fedlora authority")
    assert found[2].startswith(f"node clinic {fingerprint}, trusts coordinator SHA256:")


def test_S15_doctor_warns_of_a_key_that_others_can_read(call: Call, pki: Path) -> None:
    (pki / "clinic" / "node.key").chmod(0o644)
    done = call("doctor", "--keys", pki / "clinic")
    assert done.exit_code != 0
    assert f"{pki}/clinic/node.key: chmod 600" in done.stdout


def test_doctor_shows_what_expires_soon(pki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, expiry = examine_keys(pki / "coordinator")
    assert not expiry.problem
    assert "server.crt until 20" in expiry.found
    for name in ("server.key", "server.crt"):
        (pki / "coordinator" / name).unlink()
    earlier = authority._now() - timedelta(days=340)
    monkeypatch.setattr(authority, "_now", lambda: earlier)
    make_coordinator(pki / "coordinator", AuthorityKeys.open(pki / "ca"), ["a"], 365)
    *_, expiry = examine_keys(pki / "coordinator")
    assert expiry.problem == "server.crt will expire soon: renew with `fedlora keys`"
    assert not expiry.fatal


def test_doctor_names_a_folder_without_keys(tmp_path: Path) -> None:
    assert [check.fatal for check in examine_keys(tmp_path)] == [True]
    assert isinstance(next(examine_keys(tmp_path)), machine.Check)
