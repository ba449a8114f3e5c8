"""Data files in: JSON Lines, a JSON array, CSV, Parquet, or a saved Hugging Face dataset.

JSON is read by Python's own parser: the one of `datasets` takes texts that look like dates for
timestamps, and so alters them. All the rest goes through `datasets`, whose copy of the data lies
in a temporary folder that is gone when the rows are read: private text leaves no second copy.
"""

import csv
import glob
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedlora.adapters.errors import DataError
from fedlora.recipes.schema import DataSection

from .rows import Question, Record, Row, column_names, nearest, parse_question, parse_row

EXTENSIONS = (".jsonl", ".json", ".csv", ".parquet")


def read_rows(path: Path, data: DataSection) -> list[Row]:
    """All rows of a file, or of a folder written by `Dataset.save_to_disk`.

    Args:
        path: a file with one of `EXTENSIONS`, or a saved dataset.
        data: the format, and the names of its columns.

    Raises:
        DataError: if the file is missing, empty or of an unknown kind, or a row is not in the
            format: the message names file, row (in JSON Lines the line), column, expected, found.
        RecipeError: if `data.columns` names a field that the format does not have.
    """
    column_names(data)
    return [parse_row(record, place, data) for place, record in _records(path)]


def read_questions(path: Path) -> list[Question]:
    """All rows `{"question": ..., "answers": [...]}` of a file; raises as `read_rows`."""
    return [parse_question(record, place) for place, record in _records(path)]


def _records(path: Path) -> list[tuple[str, Record]]:
    """Every record with its place, e.g. `notes.jsonl, row 3`."""
    reader = _reader(path)
    try:
        records = list(reader(path))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected text in UTF-8, found {error.reason}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not records:
        raise DataError(f"{path}: holds no rows; expected at least one example")
    return [(f"{path}, row {number}", record) for number, record in records]


def _reader(path: Path) -> Callable[[Path], Iterator[tuple[int, Record]]]:
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = nearest(path.name, siblings)
        raise DataError(f"{path}: no such file{hint}; expected a data file or saved dataset")
    if path.is_dir():
        return _read_saved
    readers = dict(
        zip(EXTENSIONS, (_read_lines, _read_array, _read_csv, _read_parquet), strict=True)
    )
    if path.suffix.lower() not in readers:
        raise DataError(
            f"{path}: unknown kind of file {path.suffix!r}; expected {', '.join(EXTENSIONS)} "
            "or a folder written by Dataset.save_to_disk"
        )
    return readers[path.suffix.lower()]


def _read_lines(path: Path) -> Iterator[tuple[int, Record]]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _object(_parsed(line, f"{path}, row {number}"), path, number)


def _read_array(path: Path) -> Iterator[tuple[int, Record]]:
    rows = _parsed(path.read_text(encoding="utf-8-sig") or "[]", str(path))
    if not isinstance(rows, list):
        raise DataError(
            f"{path}: expected one JSON array of objects, found {type(rows).__name__}; "
            "a file with one object a line is named .jsonl"
        )
    for number, row in enumerate(rows, start=1):
        yield number, _object(row, path, number)


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise DataError(
            f"{place}: expected JSON, found an error at {where}column {error.colno}: {error.msg}"
        ) from error


def _object(row: Any, path: Path, number: int) -> Record:
    if not isinstance(row, dict):
        raise DataError(
            f"{path}, row {number}: expected an object {{column: value}}, "
            f"found {type(row).__name__}"
        )
    return row


def _read_csv(path: Path) -> Iterator[tuple[int, Record]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        header = next(csv.reader(lines), [])
    if not header:
        return
    from datasets import Features, Value

    # Everything is text: a code such as 007 stays one, and NA is a word.
    columns = Features({name: Value("string") for name in header})
    options = {"features": columns, "keep_default_na": False, "encoding": "utf-8-sig"}
    yield from _through_datasets("from_csv", path, **options)


def _read_parquet(path: Path) -> Iterator[tuple[int, Record]]:
    yield from _through_datasets("from_parquet", path)


def _through_datasets(reader: str, path: Path, **options: Any) -> Iterator[tuple[int, Record]]:
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="fedlora-data-") as cache:
        try:
            read = getattr(datasets.Dataset, reader)
            table = read(glob.escape(str(path)), cache_dir=cache, **options)
        except (ValueError, datasets.exceptions.DatasetsError) as error:
            if "corresponds to no data" in str(error):  # how it says that there are no rows
                return
            cause = str(error.__cause__ or error).splitlines()[0]
            raise DataError(f"{path}: cannot be read as {path.suffix[1:]}: {cause}") from error
        yield from _rows_of(table)


def _read_saved(path: Path) -> Iterator[tuple[int, Record]]:
    import datasets

    try:
        saved = datasets.load_from_disk(str(path))
    except IndexError:  # how it fails on a dataset without rows
        return
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path}: expected a folder written by Dataset.save_to_disk, found another: {error}"
        ) from error
    if isinstance(saved, datasets.DatasetDict):
        raise DataError(
            f"{path}: holds several splits ({', '.join(saved)}); name one, "
            f"e.g. {path / next(iter(saved), 'train')}"
        )
    yield from _rows_of(saved)


def _rows_of(table: Any) -> Iterator[tuple[int, Record]]:
    """Rows of a `datasets.Dataset`, with class ids replaced by the names they stand for."""
    from datasets import ClassLabel

    classes = {
        name: feature for name, feature in table.features.items() if isinstance(feature, ClassLabel)
    }
    for number, row in enumerate(table, start=1):
        named = {name for name in classes if row[name] not in (None, -1)}
        names = {name: classes[name].int2str(row[name]) for name in named}
        yield number, {**row, **names}
