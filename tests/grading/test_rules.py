"""grading.toml: its settings apply, and an unknown setting is refused with the way out."""

import tomllib
from pathlib import Path

import pytest

from grpo_lab.config.fields import settings_of
from grpo_lab.errors import ConfigError
from grpo_lab.grading import rules
from grpo_lab.grading.rules import Rules, as_toml, read


@pytest.fixture
def file(tmp_path):
    def of(text):
        path = tmp_path / "grading.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return of


def test_without_a_file_the_defaults_hold():
    assert read(None) == Rules()


def test_what_stands_in_the_file_counts(file, tmp_path):
    read_ = read(file('seconds = 20\ntier = 0\nlabs = ["05_kl", "00_start"]\nscoring = "share"\n'))
    expected = Rules(seconds=20.0, tier=0, labs=("05_kl", "00_start"), scoring="share")
    assert read_ == Rules(**{**vars(expected), "secret": str(tmp_path / "grading.secret")})


@pytest.mark.parametrize(
    ("named", "meant"),
    [("a/b.secret", "{folder}/a/b.secret"), ("/etc/secret", "/etc/secret"), ("~/secret", "{home}/secret")],
)
def test_the_secret_is_seen_from_the_file(file, tmp_path, named, meant):
    path = file(f"secret = '{named}'")
    assert read(path).secret == meant.format(folder=tmp_path, home=Path.home())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("secnds = 1", r"rules: unknown setting 'secnds'; did you mean 'seconds'"),
        ("[limits]\nseconds = 1", r"rules: unknown setting 'limits'"),
        ("seconds = 0", r"seconds = 0.0: must be above 0 and at most 3600"),
        ("seconds = nan", r"seconds = nan: must be a number"),
        ("seconds = inf", r"seconds = inf: must be above 0"),
        ("seconds = true", r"seconds = True: must be of type float"),
        ("seconds = 400", r"total_seconds = 300: must be at least seconds = 400"),
        ("memory_mb = '2048'", r"memory_mb = '2048': must be of type int"),
        ("memory_mb = 100", r"memory_mb = 100: must be at least 256"),
        ("output_kb = 1_000_000", r"output_kb = 1000000: must be at least 16 and at most 102400"),
        ("processes = 0", r"processes = 0: must be at least 1"),
        ("notebook_mb = 1.5", r"notebook_mb = 1.5: must be of type int"),
        ("tier = 3", r"tier = 3: must be at least 0 and at most 2"),
        ("tier = 'strongest'", r"tier = 'strongest': must be of type int"),
        ("secret = ''", r"secret = '': must name a file"),
        ("scoring = 'half'", r"scoring = 'half': must be one of whole, share"),
        ("mysteries = -1", r"mysteries = -1: must be at least 0"),
        ("labs = ['05']", r"labs = '05': unknown lab '05'; did you mean '05_kl'"),
        ("labs = [5]", r"labs = \[5\]: each must be a non-empty str"),
        ("attempt = 0", r"attempt = 0: must be at least 1"),
        ("seconds = 1\nseconds = 2\n", r"not TOML: .*line 2"),
        ("seconds = ", r"not TOML: "),
    ],
)
def test_what_does_not_exist_is_refused(file, text, message):
    path = file(text)
    with pytest.raises(ConfigError, match=f"grading.toml: .*{message}") as raised:
        read(path)
    assert raised.value.exit_code == 2 and "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read_says_how_to_get_one(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing.toml: No such file .* --print-rules` prints a file"):
        read(tmp_path / "nothing.toml")
    (tmp_path / "grading.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"grading.toml: not TOML: 'utf-8' codec"):
        read(tmp_path / "grading.toml")


def test_what_is_printed_is_read_as_the_defaults(file, tmp_path):
    text = as_toml()
    assert tomllib.loads(text) == {**vars(Rules()), "labs": []}
    assert read(file(text)) == Rules(secret=str(tmp_path / "grading.secret"))


def test_rules_survive_being_printed(file):
    other = Rules(seconds=0.25, secret='/a "b"\\c\n\x7f\t é 🙂', labs=("05_kl",), scoring="share", tier=1, attempt=3)
    assert read(file(as_toml(other))) == other


def test_every_rule_says_what_it_means():
    for setting in settings_of(Rules).values():
        assert setting.help.endswith(".") and setting.help.split(".")[0] in as_toml().replace("\n# ", " ")
    assert max(map(len, as_toml().splitlines())) <= rules.WIDTH + 2
