"""The generated parts of the documents are current."""

from __future__ import annotations

import pytest

from docs.documents import ROOT
from support import run_python


@pytest.mark.realtime
def test_generated_documents_are_current() -> None:
    with run_python(None, "--check", script=ROOT / "tools" / "generate_docs.py") as process:
        assert process.wait() == 0, "run `make docs`"
