"""Tables that ship as TOML files: metrics, links and crashes; a damaged one is named with its fault."""

import pytest

from grpo_lab import paths
from grpo_lab.errors import DataError
from grpo_lab.metrics import METRICS, OTHER_NAMES, Link


def test_a_row_has_the_fields_of_its_kind():
    assert paths.rows(Link, {"loss": ["loss", 10, "sum"]}) == {"loss": Link("loss", 10, "sum")}
    for row in (["loss"], ["loss", "10", "sum"], ["loss", True, "sum"], ["loss", 10, 11]):
        with pytest.raises(DataError, match=r"row 'loss' is .*; it needs label, warning"):
            paths.rows(Link, {"loss": row})


@pytest.mark.parametrize("content", [None, b"[links", b"\xff"])
def test_a_file_that_cannot_be_read(monkeypatch, tmp_path, content):
    monkeypatch.setattr(paths, "data_directory", lambda: tmp_path)
    if content is not None:
        (tmp_path / "metrics.toml").write_bytes(content)
    with pytest.raises(DataError, match=r"metrics\.toml: (cannot be read|not valid TOML) "):
        paths.data_tables("metrics")


def test_other_names_belong_to_metrics():
    assert set(OTHER_NAMES) <= set(METRICS)
    assert all(metric.low <= metric.high for metric in METRICS.values())
