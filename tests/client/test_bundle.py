"""A node runs only what is installed on it, whatever bundle the coordinator sends."""

import io
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from fedlora.adapters import WireError
from fedlora.cli import superlink
from fedlora.client.bundle import require_codeless

PYPROJECT = superlink._APP.format(version="0.1.0")


def bundle(folder: Path, **files: str) -> bytes:
    """As Flower builds it."""
    for name, text in {"pyproject.toml": PYPROJECT, **files}.items():
        (folder / name).write_text(text)
    made: bytes = build_fab_from_disk(folder)
    return made


def test_the_coordinators_own_bundle_is_taken(tmp_path: Path) -> None:
    require_codeless(bundle(tmp_path))


@pytest.mark.parametrize("name", ["evil.py", "sitecustomize.py", "notes.md", "data.json"])
def test_a_bundle_with_anything_in_it_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(WireError, match=f"holds '{name}'.*only what is installed"):
        require_codeless(bundle(tmp_path, **{name: "import os"}))


@pytest.mark.parametrize("named", ["os:system", "evil:app", "fedlora.client.handlers:cold"])
def test_a_bundle_that_names_another_app_is_refused(tmp_path: Path, named: str) -> None:
    text = PYPROJECT.replace("fedlora.client.app:app", named)
    with pytest.raises(WireError, match=named):
        require_codeless(bundle(tmp_path, **{"pyproject.toml": text}))


def test_rubbish_is_refused() -> None:
    for raw in (b"", b"PK", bytes(1000)):
        with pytest.raises(WireError, match="can't be read"):
            require_codeless(raw)


def test_a_file_that_swells_is_refused() -> None:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pyproject.toml", bytes(1 << 26))
    with pytest.raises(WireError, match=f"of {1 << 26} bytes"):
        require_codeless(raw.getvalue())


def test_the_launcher_asks_before_flower_unpacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedlora.client import launcher

    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(launcher.superexec, "run_superexec", lambda *_, **__: None)
    monkeypatch.setattr(launcher.superexec, "get_executor", None)
    own = launcher.clientapp.install_from_fab
    monkeypatch.setattr(launcher.clientapp, "install_from_fab", own)
    launcher.launch_apps("127.0.0.1:1", b"secret")
    app = tmp_path / "app"
    app.mkdir()
    launcher.clientapp.install_from_fab(bundle(app), skip_prompt=True)
    with pytest.raises(WireError):
        launcher.clientapp.install_from_fab(bundle(app, **{"evil.py": ""}), skip_prompt=True)
    assert not list((tmp_path / "home").rglob("evil.py"))
