"""Where the cells of reproductions are made: in this process, which spares a test the start of others."""

from __future__ import annotations

import pytest

from reproductions import workers


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WORKERS", 0)


@pytest.fixture
def in_workers(in_this_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WORKERS", 2)
