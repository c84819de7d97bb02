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


def model_file(name, variable, argument=""):
    """What `variable` names, or where scripts/get_model.sh puts the model."""
    path = pathlib.Path(os.environ.get(variable, pathlib.Path(__file__).parents[2] / "models" / name))
    if not path.exists():
        pytest.skip(f"no model at {path}: scripts/get_model.sh{argument} fetches it, {variable} names another place")
    return path


@pytest.fixture(scope="session")
def english():
    """20 kB of English that every Debian has."""
    return pathlib.Path("/usr/share/common-licenses/GPL-3").read_bytes()[:20000]


@pytest.fixture(scope="session")
def model_path():
    return model_file("SmolLM2-135M-Instruct.Q4_1.gguf", "OPS_TRANSFORMER_TEST_MODEL")


@pytest.fixture(scope="session")
def gemma_path():
    return model_file("gemma-3-270m-q4_k_m.gguf", "OPS_TRANSFORMER_TEST_GEMMA", " gemma3")
