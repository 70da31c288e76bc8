"""What models, files and the Hub say is shown, and does nothing to the terminal; what the system says is one line."""

from __future__ import annotations

import errno
import io
import re
from pathlib import Path

import pytest
import torch
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hf_lossy_assist import cli
from hf_lossy_assist.cli.console import Console
from hf_lossy_assist.cli.rendering import ConsoleStreamer
from hf_lossy_assist.errors import LossyValueError, warn
from hf_lossy_assist.store.folder import Process, claimed
from tests.cli.running import invoke
from tests.forking import elsewhere

# A title, a link, a colour, a cursor that moves, eight-bit forms of them, and what erases a line.
SEQUENCES = "\x1b]0;mine\x07\x1b]8;;http://x\x1b\\here\x1b]8;;\x1b\\\x1b[31m\x1b[2A\x9b2J\x9d0;t\x9c\r\b\x7f[link=http://x]y[/link]"
HARMLESS = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f-\x9f]*")


def as_row() -> Table:
    table = Table(SEQUENCES, title=SEQUENCES)
    table.add_row(SEQUENCES)
    return table


SHOWN = {"text": SEQUENCES, "styled": Text(SEQUENCES), "a table": as_row(), "a panel": Panel(SEQUENCES, title="x")}


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN.keys())
def test_nothing_that_is_shown_reaches_the_terminal_as_a_command(shown):
    screen = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=200)
    screen.print(shown)
    assert HARMLESS.fullmatch(screen.file.getvalue())
    assert "mine" in screen.file.getvalue()
    with Live(console=screen, auto_refresh=False) as live:
        live.update(shown, refresh=True)
    assert "\x1b]" not in screen.file.getvalue()


@pytest.mark.parametrize("mark", [False, True])
def test_no_text_of_a_model_does_either(mark: bool):
    class Tokenizer:
        def decode(self, ids, **options):
            return "".join(SEQUENCES[i] for i in ids)

    screen = Console(file=io.StringIO(), force_terminal=True, color_system=None)
    streamer = ConsoleStreamer(Tokenizer(), screen, mark=mark)
    streamer.put(torch.tensor([[0]]))
    streamer.put(torch.arange(len(SEQUENCES)))
    streamer.put_statuses(["accepted_lossy", *["accepted"] * (len(SEQUENCES) - 2)])
    streamer.end()
    assert HARMLESS.fullmatch(screen.file.getvalue())


def test_errors_and_warnings_quote_harmlessly():
    assert HARMLESS.fullmatch(str(LossyValueError(SEQUENCES)))
    with pytest.warns(UserWarning, match="mine") as caught:
        warn(SEQUENCES)
    assert HARMLESS.fullmatch(str(caught[0].message))
    result = invoke(["generate", "x", "--model", f"/{SEQUENCES}", "--assistant", "/no"])
    assert result.exit_code == 2
    assert HARMLESS.fullmatch(result.output)


def test_every_command_has_this_console():
    for path in Path(cli.__file__).parent.glob("*.py"):
        if path.name != "console.py":
            assert not re.search(r"from rich(\.console)? import .*\bConsole\b", path.read_text()), path.name


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device", "x"), PermissionError("no")])
def test_an_error_of_the_system_is_one_line(monkeypatch, tmp_path: Path, error: OSError):
    monkeypatch.setattr("hf_lossy_assist.cli.rules.rules_tables", lambda: (_ for _ in ()).throw(error))
    result = invoke(["rules"])
    assert (result.exit_code, result.output) == (2, f"error: {error}\n")


# Each command that writes a folder, with what it needs besides.
WRITERS = {
    "evaluate": "--pair arithmetic",
    "calibrate": "--from x",
    "advise": "--pair arithmetic",
    "mine": "--pair arithmetic",
    "train judge": "--data x",
    "train verifier": "--data x",
}


@pytest.mark.parametrize("command", WRITERS)
def test_a_command_writes_to_a_folder_that_is_its_own(monkeypatch, tmp_path: Path, command: str):
    def run(out: Path) -> str:
        result = invoke([*command.split(), *WRITERS[command].split(), "--out", str(out)])
        assert result.exit_code == 2, result.output
        assert result.output.startswith("error: `--out` has to be ")
        assert result.output.count("\n") == 1
        return result.output

    with claimed(tmp_path / "out", Process()):
        assert "process 0 of 1 is at work" in elsewhere(lambda: run(tmp_path / "out"))
    (tmp_path / "file").touch()
    run(tmp_path / "file")
    run(tmp_path / "file" / "below")
    run(Path("/dev/null/below"))


def test_an_option_that_is_no_text_is_named():
    result = invoke(["generate", "\udcff", "--pair", "arithmetic"])
    assert (result.exit_code, result.output) == (2, "error: options have to be text in UTF-8, but '\\udcff' is not\n")


def test_what_a_terminal_can_t_show_ends_no_command(monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", written)
    cli.main(["rules", "min_p"])
    written.flush()
    shown = written.buffer.getvalue().decode("ascii")
    assert "min_p" in shown
    assert "?" in shown
