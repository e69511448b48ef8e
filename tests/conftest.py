"""What tests of several folders share.

Helper modules live in tests/tools and are imported as `tests.tools.NAME`. The root of the repository
goes to the end of sys.path for that, where it shadows nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

if TYPE_CHECKING:
    from tests.tools.api_server import ApiServer


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """A real API server for the whole session, with the CRD of InferenceFleet in it."""
    from tests.tools.api_server import running

    with running() as server:
        server.install_crd(ROOT / "helm" / "ridgeline" / "crds" / "inferencefleets.yaml")
        yield server


@pytest.fixture
def api_namespace(api_server: ApiServer) -> str:
    """A namespace of this test's own on the API server."""
    return api_server.create_namespace()
