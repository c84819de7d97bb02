# SPDX-License-Identifier: Apache-2.0
import os
import pathlib

import hypothesis
import numpy as np
import pytest

hypothesis.settings.register_profile("ci", max_examples=60, deadline=None)
hypothesis.settings.load_profile("ci")


@pytest.fixture
def rng():
    return np.random.default_rng(20240117)


@pytest.fixture(scope="session")
def model_path():
    """OPS_TRANSFORMER_TEST_MODEL, or where scripts/get_model.sh puts the model."""
    default = pathlib.Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path = pathlib.Path(os.environ.get("OPS_TRANSFORMER_TEST_MODEL", default))
    if not path.exists():
        pytest.skip(f"no model at {path}: scripts/get_model.sh fetches it, OPS_TRANSFORMER_TEST_MODEL names another place")
    return path
