"""A setting checks its value when it is made, says what would be accepted, and carries its own help text."""

import math
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from grpo_lab.config.fields import AtLeast, Between, OneOf, Settings, parse, settings_of
from grpo_lab.errors import ConfigError, unknown
from grpo_lab.seeds import derive


@dataclass(frozen=True)
class Example(Settings):
    share: Annotated[float, Between(0, 1)] = 0.5
    """Above 0,
    at most 1."""
    count: Annotated[int, AtLeast(2, 4)] = 2
    color: Annotated[str, OneOf("red", "blue")] = "red"
    """A color."""
    maybe: Annotated[float | None, Between(0)] = None
    names: tuple[str, ...] = ("a",)
    flag: bool = False
    free: float = 0.0
    memory: dict[str, float] = field(default_factory=dict, init=False)


@dataclass(frozen=True)
class Narrower(Example):
    share: Annotated[float, Between(0, 0.5)] = 0.25
    """At most a half."""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"share": 0.0}, "share = 0.0: must be above 0 and at most 1"),
        ({"count": 5}, "count = 5: must be at least 2 and at most 4"),
        ({"color": "green"}, "color = 'green': must be one of red, blue"),
        ({"share": math.nan}, "share = nan: must be a number"),
        ({"share": True}, "share = True: must be of type float"),
        ({"count": 2.0}, "count = 2.0: must be of type int"),
        ({"flag": 1}, "flag = 1: must be of type bool"),
        ({"names": ["a", 3]}, "names = ['a', 3]: each must be a non-empty str"),
        ({"free": 10**400}, "free: must be at most 1.8e+308 in magnitude"),
    ],
)
def test_a_bad_value_is_refused_with_the_value_and_the_limit(values, message):
    with pytest.raises(ConfigError) as caught:
        Example(**values)
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


def test_help_is_the_text_under_the_field_and_nothing_else():
    texts = {name: setting.help for name, setting in settings_of(Example).items()}
    assert texts["share"] == "Above 0, at most 1."
    assert texts["color"] == "A color."
    assert texts["count"] == ""
    assert "memory" not in texts  # not a setting: nobody can pass it


def test_a_subclass_narrows_limit_default_and_help_and_inherits_the_rest():
    share, color = settings_of(Narrower)["share"], settings_of(Narrower)["color"]
    assert (share.default, share.limit, share.help) == (0.25, Between(0, 0.5), "At most a half.")
    assert color.help == "A color."
    with pytest.raises(ConfigError, match=r"share = 0.75: must be above 0 and at most 0.5"):
        Narrower(share=0.75)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("3.0", 3.0),
        ("1e-3", 1e-3),
        ("on", True),
        ("none", None),
        ("k3", "k3"),
        ("a, b,", ("a", "b")),
        ("", ""),
    ],
)
def test_text_is_read_as_the_value_it_spells(text, value):
    assert parse(text) == value
    assert type(parse(text)) is type(value)


def test_an_unknown_name_gets_the_nearest_ones_or_all_of_them():
    assert "did you mean 'clamp_kl'?" in str(unknown("guard", "clamp_lk", ["clamp_kl", "warm_up"]))
    far = str(unknown("guard", "xyz", ["clamp_kl", "warm_up"]))
    assert far == "unknown guard 'xyz'. Known: clamp_kl, warm_up"
    assert str(unknown("guard", "xyz", [])).endswith("Known: none")


def test_a_seed_depends_on_each_of_its_parts_and_fits_a_generator():
    seeds = {derive(seed, step, purpose) for seed in (0, 1) for step in (0, 1) for purpose in ("a", "b")}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive(1, 11, "a") != derive(11, 1, "a")
