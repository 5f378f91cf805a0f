"""Parse the files for containers; no container is built here, because that needs a Docker daemon and a network."""

import json
import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from grpo_lab.cli.app import app

ROOT = Path(__file__).parents[1]
KNOWN = {"FROM", "RUN", "USER", "WORKDIR", "COPY", "ENV", "EXPOSE", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their words: comments dropped, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines if line.strip())]


def test_the_dockerfile_has_known_instructions_and_leaves_root_before_it_installs():
    found = instructions()
    names = [name for name, _ in found]
    assert set(names) == KNOWN and names[0] == "FROM" and names[-1] == "CMD" and names.count("USER") == 1
    installs = [index for index, (_, rest) in enumerate(found) if "pip install" in rest]
    assert len(installs) == 2 and names.index("USER") < min(installs)
    assert dict(found)["USER"] != "root"


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


def test_the_devcontainer_installs_what_the_dockerfile_installs():
    text = (ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8")
    read = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    assert read["image"] and read["remoteUser"] != "root"
    runs = " ".join(rest for name, rest in instructions() if name == "RUN")
    for wanted in ("https://download.pytorch.org/whl/cpu", "grep '^torch==' constraints.txt", "-e '.[lab]'"):
        assert wanted in read["postCreateCommand"] and wanted in runs
