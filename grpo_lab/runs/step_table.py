"""The steps of a run as a table."""

from collections.abc import Iterable

import pandas as pd

from grpo_lab.events import Event, Stepped


def of(events: Iterable[Event]) -> pd.DataFrame:
    """One row a step: verdict, committed updates and every metric.

    `attrs["not_logged"]` has, for each metric that some steps do not log, the rows whose NaN means just that.
    """
    steps = [event for event in events if isinstance(event, Stepped)]
    own = [{"step": e.step, "verdict": e.verdict.name, "updates": e.updates, "failed": e.failed} for e in steps]
    rows = [{**row, **e.metrics} for row, e in zip(own, steps, strict=True)]
    frame = pd.DataFrame(rows)
    absent = {name: [place for place, row in enumerate(rows) if name not in row] for name in frame.columns}
    frame.attrs["not_logged"] = {name: places for name, places in absent.items() if places}
    return frame
