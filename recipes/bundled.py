"""The ready-made recipes that lie beside this file, by name."""

from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from fedlora.adapters.errors import RecipeError

FOLDER = Path(str(files(__package__)))


def names() -> tuple[str, ...]:
    """The names of all bundled recipes, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def summary(name: str) -> str:
    """The first line of the comment that heads a bundled recipe."""
    first = path(name).read_text(encoding="utf-8").partition("\n")[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def path(name: str) -> Path:
    """The file of a bundled recipe.

    Raises:
        RecipeError: if there is none of that name.
    """
    known = names()
    if name in known:
        return FOLDER / f"{name}.toml"
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean `{close[0]}`? " if close else ""
    raise RecipeError(
        f"no recipe `{name}`: it is neither a file nor a bundled recipe; "
        f"{hint}Bundled: {', '.join(known) or 'none'}"
    )
