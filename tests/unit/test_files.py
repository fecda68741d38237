from pathlib import Path

import pytest

from pdplan.errors import InputError, unknown_name
from pdplan.files import MAX_YAML_BYTES, parse_yaml, read_text, read_yaml, write_atomic


def test_an_alias_bomb_is_refused_without_expanding_it() -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
    )
    with pytest.raises(InputError, match=r"bomb.yaml: line 2.*aliases"):
        parse_yaml(bomb, name="bomb.yaml")


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    with path.open("wb") as stream:
        stream.truncate(200_000_000)
    with pytest.raises(InputError, match="200 MB is larger than"):
        read_yaml(path)
    assert MAX_YAML_BYTES < 200_000_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "'a' is given twice"),
        ("a: [1\n", "not acceptable YAML"),
        ("a: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
        ("a: 2026-13-45\n", "month must be in 1..12"),
    ],
)
def test_bad_yaml_names_the_place(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_yaml(text, name="x.yaml")


def test_deep_nesting_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"x.yaml: .*(nested|depth|level|YAML)"):
        parse_yaml("[" * 100_000, name="x.yaml")


def test_unreadable_inputs_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")

    with pytest.raises(InputError, match="is a directory"):
        read_text(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_text(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="byte 9 is not UTF-8"):
        read_text(tmp_path / "latin.yaml")


def test_a_write_leaves_no_half_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "sub" / "a.txt", "one")
    write_atomic(tmp_path / "sub" / "a.txt", "two")

    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["a.txt"]
    assert (tmp_path / "sub" / "a.txt").read_text() == "two"

    with pytest.raises(InputError, match="cannot be written"):
        write_atomic(tmp_path / "sub" / "a.txt" / "b.txt", "x")


def test_near_misses_are_offered() -> None:
    assert unknown_name("node", "h100-smx", ["h100-sxm", "l40s"]) == "unknown node 'h100-smx'. Did you mean 'h100-sxm'?"
    assert "Known: a, b" in unknown_name("node", "zzzzzz", ["b", "a"])
