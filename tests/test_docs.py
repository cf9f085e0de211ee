"""Every command has a help, a man page and an entry in docs/cli.md, and what the README tells people to type exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))  # the page builder is a script, not a package

import build_man

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = dict(build_man.walk())
LEAVES = {name: found for name, found in COMMANDS.items() if not build_man.members(found)}
CLI_DOC = (ROOT / "docs" / "cli.md").read_text()
SHARED = {"--json", "--state-dir", "--install-completion", "--show-completion"}


def test_the_commands_are_all_there() -> None:
    """The tree holds exactly the commands that are promised."""
    expected = ["up", "down", "status", "infer", "bench", "doctor", "version"]
    expected += ["replica list", "replica register", "replica drain", "replica remove", "model list", "model prepare"]
    assert set(LEAVES) == {f"halcyon {name}" for name in expected}


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name: str) -> None:
    """The command and each of its options and arguments says what it is, in a sentence."""
    found = COMMANDS[name]
    assert (found.help or "").strip()
    for parameter in found.params:
        assert (parameter.help or "").endswith((".", ")")), f"{name} {parameter.opts}"


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_has_json(name: str) -> None:
    """Every command takes --json."""
    assert any("--json" in parameter.opts for parameter in LEAVES[name].params)


@pytest.mark.parametrize("name", COMMANDS)
def test_cli_doc_has_an_entry(name: str) -> None:
    """docs/cli.md has a heading for the command, and names each option that is its own."""
    if name != "halcyon":
        assert re.search(rf"^##+ `{name}`$", CLI_DOC, re.MULTILINE)
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "option" and not SHARED & set(parameter.opts):
            assert parameter.opts[0] in CLI_DOC, f"{name} {parameter.opts[0]}"


def test_man_pages_are_fresh() -> None:
    """man/ is what the command tree says now, no page more and none less."""
    assert build_man.stale() == []


@pytest.mark.parametrize("name", LEAVES)
def test_man_page_has_every_option(name: str) -> None:
    """No option is missing from the command's page."""
    page = (ROOT / "man" / f"{name.replace(' ', '-')}.1").read_text().replace(r"\-", "-")
    for parameter in LEAVES[name].params:
        assert (parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar) in page


def test_no_page_holds_a_stray_request() -> None:
    """No line of text starts with a dot or an apostrophe that roff would obey."""
    known = {".TH", ".nh", ".ad", ".SH", ".PP", ".TP", ".B", ".BR"}
    for text in build_man.pages().values():
        assert {line.split()[0] for line in text.splitlines() if line[:1] in {".", "'"}} <= known


@pytest.mark.parametrize("document", ["README.md", "docs/cli.md"])
def test_commands_that_people_are_told_to_type_exist(document: str) -> None:
    """Each `halcyon …` line in a code block parses: the command exists, and so does every option in it."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if re.match(r"(.*\| )?halcyon ", line)]
    if not lines:
        pytest.skip(f"{document} has no code block with a halcyon command")
    for line in lines:
        words = shlex.split(line.split("| ")[-1], comments=True)
        name = next(name for name in sorted(LEAVES, key=len, reverse=True) if words[: len(name.split())] == name.split())
        options = {option for parameter in LEAVES[name].params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= options, line


def test_the_daemon_page_has_the_daemons_options() -> None:
    """halcyond.8 names exactly the options that halcyond's own help names."""
    done = subprocess.run([sys.executable, "-m", "halcyon.daemon", "--help"], capture_output=True, text=True, check=True, timeout=60)
    page = (ROOT / "man" / "halcyond.8").read_text().replace(r"\-", "-")
    tagged = {word for line in page.splitlines() for word in re.findall(r"^\\fB(--[a-z-]+)", line)}
    assert tagged == set(re.findall(r"--[a-z-]+", done.stdout.split("options:")[1]))
