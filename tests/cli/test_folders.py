import re
from pathlib import Path

import pytest

from fedlora.adapters.errors import RunError
from fedlora.cli.folders import fresh, run_directory


def test_default_names_recipe_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = run_directory("ferry", None, resume=False)
    assert folder.parent == tmp_path / "runs"
    assert re.fullmatch(r"ferry-\d{8}-\d{6}", folder.name)
    assert not folder.exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    assert fresh(tmp_path) == tmp_path
    (tmp_path / "file").write_text("")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(RunError, match="exists already"):
            fresh(taken)
    assert run_directory("ferry", tmp_path / "new", resume=False) == tmp_path / "new"


def test_resume_takes_the_latest_run_of_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="no run of ferry"):
        run_directory("ferry", None, resume=True)
    for name in ("ferry-20260101-000000", "ferry-20260301-000000", "other-20260401-000000"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "recipe.toml").write_text("")
    latest = tmp_path / "runs" / "ferry-20260301-000000"
    assert run_directory("ferry", None, resume=True) == latest
    assert run_directory("ferry", latest, resume=False) == latest
    with pytest.raises(RunError, match="holds no run"):
        run_directory("ferry", tmp_path / "runs", resume=True)
