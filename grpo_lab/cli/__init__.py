"""The command line.

Exit codes: 0 done, 1 the run failed, crashed or was stopped by a guard, 2 bad usage or a bad file, 130 Ctrl-C, 143 or
129 ended by SIGTERM or SIGHUP.
"""

import sys

import typer

# Each module registers its commands.
from grpo_lab.cli import doctor, grade, labs, listings, matrix, records, runs  # noqa: F401
from grpo_lab.cli.app import INTERRUPTED, app
from grpo_lab.errors import GrpoLabError


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error, without a traceback."""
    try:
        app()
    except GrpoLabError as error:
        typer.echo("error: " + " ".join(str(error).split("\n")), err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        typer.echo(f"error: {place}{error.strerror or error}; choose a folder with room and permission", err=True)
        sys.exit(1)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer's exit code for a KeyboardInterrupt
            typer.echo("interrupted", err=True)
        raise
