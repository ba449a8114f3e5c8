"""Reading rows: every kind of file gives the same rows, and every fault is named with its place."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest

from fedlora.adapters.errors import DataError, RecipeError
from fedlora.models.files import read_questions, read_rows
from fedlora.models.rows import Chat, Instruction, Labelled, Message, Question, Text
from fedlora.recipes.schema import DataSection

INSTRUCTION = DataSection(format="instruction")
RECORDS = [
    {"instruction": "When does it open?", "response": "2024-05-01"},
    {"instruction": "Which code?", "response": "007"},
    {"instruction": "Is it known?", "response": "NA"},
    {"instruction": "Two\nlines, and a comma", "response": 'He said "no" – ja, größer'},
]


def write_jsonl(path: Path, records: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def write_csv(path: Path, records: list[dict[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return path


def write_json(path: Path, records: list[dict[str, str]]) -> Path:
    path.write_text(json.dumps(records, indent=2), encoding="utf-8")
    return path


def write_parquet(path: Path, records: list[dict[str, str]]) -> Path:
    datasets.Dataset.from_list(records).to_parquet(str(path))
    return path


def write_saved(path: Path, records: list[dict[str, str]]) -> Path:
    datasets.Dataset.from_list(records).save_to_disk(str(path))
    return path


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("notes.jsonl", write_jsonl),
        ("notes.json", write_json),
        ("notes.csv", write_csv),
        ("notes.parquet", write_parquet),
        ("notes [old]*.csv", write_csv),
        ("saved", write_saved),
    ],
)
def test_every_kind_of_file_gives_the_same_rows(
    tmp_path: Path, name: str, write: Callable[..., Path]
) -> None:
    path = write(tmp_path / name, RECORDS)
    rows = read_rows(path, INSTRUCTION)
    assert rows == [
        Instruction(f"{path}, row {number}", record["instruction"], record["response"])
        for number, record in enumerate(RECORDS, start=1)
    ]


def test_no_copy_of_the_text_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    read_rows(write_csv(tmp_path / "notes.csv", RECORDS), INSTRUCTION)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_columns_are_mapped_and_context_joined(tmp_path: Path) -> None:
    record = {"q": "Summarise.", "context": "A long tale.", "a": "Short."}
    path = write_jsonl(
        tmp_path / "a.jsonl", [record, {"q": "Hello?", "a": "Yes.", "context": None}]
    )
    data = DataSection(columns={"instruction": "q", "response": "a"})
    assert read_rows(path, data) == [
        Instruction(f"{path}, row 1", "Summarise.\n\nA long tale.", "Short."),
        Instruction(f"{path}, row 2", "Hello?", "Yes."),
    ]


def test_input_is_the_other_name_of_context(tmp_path: Path) -> None:
    record: dict[str, object] = {"instruction": "Add.", "input": "1 and 2", "response": "3"}
    (row,) = read_rows(write_jsonl(tmp_path / "a.jsonl", [record]), INSTRUCTION)
    assert isinstance(row, Instruction)
    assert row.prompt == "Add.\n\n1 and 2"


def test_chat_text_and_classification(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": turns, "text": "tall", "label": 3}])
    place = f"{path}, row 1"
    messages = (Message("user", "Hi"), Message("assistant", "Hello"))
    assert read_rows(path, DataSection(format="chat")) == [Chat(place, messages)]
    assert read_rows(path, DataSection(format="text")) == [Text(place, "tall")]
    assert read_rows(path, DataSection(format="classification")) == [Labelled(place, "tall", "3")]


def test_chat_from_parquet(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    path = tmp_path / "a.parquet"
    datasets.Dataset.from_list([{"messages": turns}]).to_parquet(str(path))
    (row,) = read_rows(path, DataSection(format="chat"))
    assert row == Chat(f"{path}, row 1", (Message("user", "Hi"), Message("assistant", "Hello")))


def test_class_ids_of_a_saved_dataset_become_names(tmp_path: Path) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    table = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    table.save_to_disk(str(tmp_path / "saved"))
    rows = read_rows(tmp_path / "saved", DataSection(format="classification"))
    assert [row.label for row in rows if isinstance(row, Labelled)] == ["yes", "no"]


def test_blank_lines_count_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"text": "x"}\n\n{"text": ""}\n')
    with pytest.raises(
        DataError, match=r"a\.jsonl, row 4, column 'text': expected a text, found no"
    ):
        read_rows(path, DataSection(format="text"))


GOOD = {"instruction": "a", "response": "b"}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            {"instruction": "a"},
            "row 2: no column 'response'.*expected a text; found .* instruction",
        ),
        ({"instruction": "a", "respones": "b"}, r"\(did you mean 'respones'\?\)"),
        ({"instruction": "a", "response": None}, "row 2, column 'response'.*found nothing"),
        ({"instruction": "a", "response": "  "}, "row 2, column 'response': expected a text"),
        ({"instruction": 7, "response": "b"}, "row 2, column 'instruction'.*found int 7"),
        ({"instruction": "a", "response": "b", "context": 1}, "row 2, column 'context'"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, bad: dict[str, object], message: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [GOOD, bad])
    with pytest.raises(DataError, match=message):
        read_rows(path, INSTRUCTION)


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([], "column 'messages': expected a list of messages"),
        ("Hi", "expected a list of messages"),
        ([{"role": "user", "content": "Hi"}], "at least one assistant message"),
        ([{"role": "bot", "content": "Hi"}], "message 1 .*'role': expected one of system, user"),
        ([{"role": "assistant", "content": 5}], "message 1 .*'content': expected a text"),
        (["Hi"], "message 1 .*expected {role, content}, found str"),
    ],
)
def test_a_bad_conversation_is_named(tmp_path: Path, turns: object, message: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": turns}])
    with pytest.raises(DataError, match=message):
        read_rows(path, DataSection(format="chat"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "holds no rows"),
        ("a.json", "[]", "holds no rows"),
        ("a.json", "", "holds no rows"),
        ("a.csv", "", "holds no rows"),
        ("a.csv", "instruction,response\n", "holds no rows"),
        ("a.json", '{"instruction": "a"}', "expected one JSON array"),
        ("a.jsonl", '{"instruction": "a", "response": "b"}\n{"instr', "row 2: expected JSON"),
        ("a.jsonl", "[1]\n", "row 1: expected an object"),
        ("a.csv", "instruction,response\na,b\nc,d,e\n", "cannot be read as csv: .*line 3"),
        ("a.csv", "instruction,response\na\n", "row 1, column 'response'.*found nothing"),
        ("a.parquet", "no parquet", "cannot be read as parquet"),
        ("a.txt", "x", r"unknown kind of file '.txt'; expected .jsonl"),
    ],
)
def test_a_bad_file_is_named(
    tmp_path: Path, name: str, content: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read_rows(tmp_path / name, INSTRUCTION)
    assert name in str(caught.value)
    assert capfd.readouterr().err == ""  # the message is all that a user sees


def test_an_empty_table(tmp_path: Path) -> None:
    columns = datasets.Features({"text": datasets.Value("string")})
    empty = datasets.Dataset.from_dict({"text": []}, features=columns)
    empty.to_parquet(str(tmp_path / "a.parquet"))
    empty.save_to_disk(str(tmp_path / "saved"))
    for name in ("a.parquet", "saved"):
        with pytest.raises(DataError, match=f"{name}: holds no rows"):
            read_rows(tmp_path / name, DataSection(format="text"))


def test_latin_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes('{"text": "größer"}'.encode("latin-1"))
    with pytest.raises(DataError, match="expected text in UTF-8"):
        read_rows(tmp_path / "a.jsonl", DataSection(format="text"))


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "north.jsonl", [{"text": "x"}])
    with pytest.raises(DataError, match=r"no such file \(did you mean 'north.jsonl'\?\)"):
        read_rows(tmp_path / "nort.jsonl", INSTRUCTION)
    with pytest.raises(DataError, match="no such file"):
        read_rows(tmp_path / "nowhere" / "a.jsonl", INSTRUCTION)


def test_folders_that_are_no_data(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="save_to_disk"):
        read_rows(tmp_path / "empty", INSTRUCTION)
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_list([GOOD])})
    splits.save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(DataError, match=r"several splits \(train\); name one, e.g. .*splits/train"):
        read_rows(tmp_path / "splits", INSTRUCTION)
    assert len(read_rows(tmp_path / "splits" / "train", INSTRUCTION)) == 1


def test_an_unknown_field_in_columns_is_the_recipes_fault(tmp_path: Path) -> None:
    data = DataSection(columns={"promt": "q"})
    with pytest.raises(
        RecipeError, match="no field 'promt'; it has instruction, context, response"
    ):
        read_rows(write_jsonl(tmp_path / "a.jsonl", [dict(GOOD)]), data)


def test_questions(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "q.jsonl", [{"question": "Where?", "answers": ["Paris", "here"]}])
    assert read_questions(path) == [Question("Where?", ("Paris", "here"))]
    for answers in ("Paris", [], [1], [""], None):
        write_jsonl(path, [{"question": "Where?", "answers": answers}])
        with pytest.raises(DataError, match="row 1, column 'answers': expected a list of texts"):
            read_questions(path)
