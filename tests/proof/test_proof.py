"""The proof in its short form. The long one: `make prove`."""

from __future__ import annotations

from pathlib import Path

import pytest

from devtools.pages import part
from tests.proof.__main__ import PAGE, main
from tests.proof.page import promises


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mutex", "semaphore", "read-write"])
def test_a_slice(
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing happens that was not promised, and each planted fault is refused."""
    page = tmp_path / "proof.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr("tests.proof.__main__.PAGE", page)
    history = tmp_path / "history.edn"
    code = main(["--seconds", "20", "--only", kind, "--export", str(history), "--write"])
    said = capsys.readouterr().out
    assert code == 0, said
    assert "0 violations" in said
    assert part(page.read_text(encoding="utf-8"), "proof") in said
    assert [*tmp_path.glob(f"history-{kind}*.edn")]


@pytest.mark.slow
def test_other_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    """This one is in their table, too, and breaks nothing."""
    assert main(["--peers", "--seconds", "10", "--only", "mutex", "kill"]) == 0
    said = capsys.readouterr().out
    assert "| library | kill |" in said
    assert "operations: none |" in said


def test_the_page_has_the_table_of_promises() -> None:
    """Else: make prove ARGS=--write."""
    assert part(PAGE.read_text(encoding="utf-8"), "promises") == promises()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "spinlock"], "--only spinlock: nothing has such a name"),
        (["--export", "history.txt"], "the name has to end with .edn or .json"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err
