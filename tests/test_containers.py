"""Parse the files for containers; no container is built here, because that needs a Docker daemon and a network."""

import json
import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from grpo_lab.cli.app import app

ROOT = Path(__file__).parents[1]


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their words: comments dropped, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines if line.strip())]


def test_every_copied_path_is_in_the_checkout():
    for name, rest in instructions():
        if name == "COPY":
            *sources, _ = (word for word in shlex.split(rest) if not word.startswith("--"))
            assert [path for path in sources if not (ROOT / path).exists()] == []


def test_the_container_starts_a_command_that_exists():
    program, *words = json.loads(dict(instructions())["CMD"])
    assert program == "grpo-lab"
    assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0
    options = CliRunner().invoke(app, [*words[:2], "--help"]).output
    assert [word for word in words[2:] if word not in options] == []
