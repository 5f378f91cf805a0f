"""Every event survives being written as one line of valid JSON, NaN and infinity included."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab import events
from grpo_lab.config.schema import Config
from grpo_lab.errors import RunError, Sentence
from grpo_lab.events import (
    EVENTS,
    Action,
    Changed,
    Checkpointed,
    CompletionNote,
    Crash,
    Ended,
    Evaluated,
    Event,
    Forked,
    LinkNote,
    Resumed,
    Started,
    Stepped,
    Verdict,
    encodable,
    from_json,
    to_json,
)

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
COUNTS = st.integers(0, 2**40)
VERDICTS = st.sampled_from(Verdict)

CRASHES = st.builds(Crash, TEXT, TEXT, TEXT, TEXT)
LINKS = st.builds(LinkNote, TEXT, COUNTS, NUMBERS, NUMBERS, COUNTS, TEXT, st.dictionaries(TEXT, NUMBERS, max_size=2))
ACTIONS = st.builds(Action, TEXT, TEXT, TEXT, COUNTS, VERDICTS, TEXT)
KINDS: dict[str, st.SearchStrategy[Event]] = {
    "Started": st.builds(Started, st.just(Config().to_dict() | {"data": {}}), COUNTS, TEXT),
    "Changed": st.builds(Changed, COUNTS, st.lists(TEXT, max_size=3).map(tuple)),
    "Stepped": st.builds(
        Stepped,
        step=COUNTS,
        updates=COUNTS,
        verdict=VERDICTS,
        metrics=st.dictionaries(TEXT, NUMBERS, max_size=3),
        links=st.lists(LINKS, max_size=2).map(tuple),
        actions=st.lists(ACTIONS, max_size=2).map(tuple),
        samples=st.lists(st.tuples(TEXT, TEXT, NUMBERS), max_size=2).map(tuple),
        failed=st.booleans(),
    ),
    "Evaluated": st.builds(Evaluated, COUNTS, NUMBERS, COUNTS),
    "Checkpointed": st.builds(Checkpointed, COUNTS, NUMBERS, COUNTS, TEXT),
    "Resumed": st.builds(Resumed, COUNTS, COUNTS, TEXT, st.lists(TEXT, max_size=3).map(tuple)),
    "Forked": st.builds(Forked, COUNTS, COUNTS, TEXT, st.lists(TEXT, max_size=3).map(tuple), TEXT, COUNTS),
    "Ended": st.builds(Ended, TEXT, TEXT, st.none() | CRASHES),
}


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_every_kind_of_event_is_tested_here():
    assert set(KINDS) == set(EVENTS)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_an_event_is_one_line_of_valid_json_and_comes_back_the_same(kind, data):
    event = data.draw(KINDS[kind])
    line = to_json(event)
    assert "\n" not in line
    assert json.loads(line, parse_constant=refuse)["event"] == kind
    again = from_json(line)
    assert type(again) is type(event)
    assert repr(again) == repr(event)  # nan != nan, but their words are the same, and so are those of 0.0 and -0.0


@pytest.mark.parametrize("verdict", Verdict)
def test_a_verdict_is_written_as_its_name_and_read_as_itself(verdict):
    event = Stepped(0, 1, verdict, {}, (), (Action("a", "guard", "loss", 0, verdict, f"{verdict:>9}"),))
    tree = json.loads(to_json(event))
    assert (tree["verdict"], tree["actions"][0]["verdict"]) == (verdict.name, verdict.name) == (str(verdict),) * 2
    assert tree["actions"][0]["reason"] == f"{verdict.name:>9}"
    again = from_json(to_json(event))
    assert isinstance(again, Stepped) and again.verdict is again.actions[0].verdict is verdict
    assert again.refused == (verdict.name in ("SKIP_STEP", "ROLL_BACK", "STOP"))


def test_a_sentence_comes_back_with_its_values():
    inner = Sentence("grad norm {} is not finite", math.nan)
    reason = Sentence("{}; {:.0f} steps in a row, patience {}", inner, 6.0, 5)
    action = Action("a", "guard", "loss", 0, Verdict.STOP, reason)
    for event in (Stepped(0, 1, Verdict.STOP, {}, (), (action,)), Ended("stopped", reason)):
        again = from_json(to_json(event))
        assert again == event
        said = again.actions[0].reason if isinstance(again, Stepped) else again.message  # type: ignore[union-attr]
        assert isinstance(said, Sentence) and said.parts() == reason.parts()
        assert str(said) == "grad norm nan is not finite; 6 steps in a row, patience 5"


@pytest.mark.parametrize("parts", [["{} of {}", ["1"]], ["{3}", ["1"]], ["{.__class__}", ["1"]], ["{}", [7]], "x"])
def test_a_sentence_that_no_version_wrote_is_refused(parts):
    tree = {"event": "Ended", "status": "stopped", "message": "", "crash": None, "said": {"message": parts}}
    with pytest.raises(RunError):
        from_json(json.dumps(tree))


def test_nan_and_infinity_come_back_as_numbers_wherever_they_stand():
    link = LinkNote("ratio", 2, math.inf, math.nan, 8, "[0, 1]", {"adam_eps": -math.inf})
    event = Stepped(3, 1, Verdict.KEEP, {"kl": math.nan, "loss": -math.inf}, (link,), (), (("2+2=", "4", math.nan),))
    line = to_json(event)
    assert json.loads(line, parse_constant=refuse)["metrics"] == {"kl": "nan", "loss": "-inf"}
    again = from_json(line)
    assert isinstance(again, Stepped)
    assert math.isnan(again.metrics["kl"])
    assert again.metrics["loss"] == -math.inf
    assert again.links[0].magnitude == math.inf
    assert math.isnan(again.links[0].nonfinite)
    assert again.links[0].facts == {"adam_eps": -math.inf}
    assert math.isnan(again.samples[0][2])


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "null",
        "{}",
        '{"event": "Begun"}',
        '{"event": "Evaluated", "step": 0, "reward": "lots", "num_problems": 1}',
        '{"event": "Evaluated", "step": 0, "reward": 1, "num_problems": 1, "from_the_future": 1}',
        '{"event": "Changed", "step": 0, "overrides": null}',
        '{"event": "Stepped", "step": 0}',
        '{"event": "Ended", "status": "done", "message": "", "crash": {"kind": "x"}}',
        to_json(Changed(0, ("loss.beta=1",)))[:-1],
    ],
)
def test_a_line_that_holds_no_event_is_a_run_error(line):
    with pytest.raises(RunError, match="not an event"):
        from_json(line)


@given(
    st.recursive(
        NUMBERS | TEXT | st.booleans() | st.none(), lambda inner: st.dictionaries(TEXT, inner) | st.tuples(inner)
    )
)
def test_whatever_is_encodable_is_valid_json(value):
    read = json.loads(json.dumps(encodable(value), allow_nan=False), parse_constant=refuse)
    assert encodable(read) == read


def test_a_note_is_broken_when_anything_in_it_is_not_finite():
    assert not LinkNote("loss", 0, math.inf, 0.0, 1).broken  # a norm may overflow where every element is finite
    assert LinkNote("loss", 0, 1.0, 1.0, 1).broken


def test_every_field_is_read_by_its_annotation_or_is_as_json_gives_it():
    """A field of a type that JSON does not keep, and that nothing reads, would come back as a list or a text."""
    kept = {"int", "str", "bool", "dict[str, Any]"}
    fields = [each for cls in (*EVENTS.values(), LinkNote, CompletionNote, Crash) for each in dataclasses.fields(cls)]
    names = {getattr(each.type, "__name__", each.type) for each in fields}
    assert names <= kept | set(events._OF_TYPE), names - kept - set(events._OF_TYPE)
