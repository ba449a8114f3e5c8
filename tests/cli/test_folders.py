import re
from pathlib import Path

import pytest

from fedlora.adapters.errors import RunError
from fedlora.cli.folders import fresh, new_run_directory


def test_default_names_recipe_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = new_run_directory("ferry", None)
    assert folder.parent == tmp_path / "runs"
    assert re.fullmatch(r"ferry-\d{8}-\d{6}", folder.name)
    assert not folder.exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    assert fresh(tmp_path) == tmp_path
    (tmp_path / "file").write_text("")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(RunError, match="exists already"):
            fresh(taken)
    assert new_run_directory("ferry", tmp_path / "new") == tmp_path / "new"
