# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 270M (Q4_K_M) through the whole library, against its definition in float64 (reference_model.py)."""

import numpy as np
import pytest
from reference_model import ReferenceModel

import ops_transformer as ops

LENGTHS = [1, 7, 33, 180, 600]  # the last one is longer than the local layers' window of 512
ROWS = 24  # logits of the last tokens: 262144 in each row


@pytest.fixture(scope="module")
def reference(gemma_path):
    return ReferenceModel(gemma_path)


@pytest.fixture(scope="module")
def exact(gemma_path):
    return ops.Model.load(gemma_path, exact=True)


@pytest.fixture(scope="module")
def fast(gemma_path):
    return ops.Model.load(gemma_path)


@pytest.fixture(scope="module")
def text_ids(fast, english):
    return fast.tokenize(english)


@pytest.fixture(scope="module")
def prompts(fast, text_ids):
    question = fast.tokenize("The capital of France is")
    return [(question + text_ids[800 * i :])[:length] for i, length in enumerate(LENGTHS)]


def last_logits(model, tokens, pieces, context=None):
    """Appends all but the last tokens in pieces of these lengths (the last one over and over), then those."""
    cache = model.new_cache(len(tokens))
    sequence = cache.add_sequence()
    first, index = 0, 0
    while first < len(tokens) - ROWS:
        last = min(first + pieces[min(index, len(pieces) - 1)], len(tokens) - ROWS)
        model.forward(cache, [(sequence, tokens[first:last])], context=context)
        first, index = last, index + 1
    return model.forward(cache, [(sequence, tokens[first:])], all_logits=True, context=context)


@pytest.mark.parametrize("index", range(len(LENGTHS)), ids=LENGTHS)
def test_exact_logits(exact, reference, prompts, index):
    assert len(prompts[index]) == LENGTHS[index]
    (expected,) = reference.logits([prompts[index]], slice(-ROWS, None))
    for pieces in ([600], [64, 1, 37]):
        assert np.max(np.abs(last_logits(exact, prompts[index], pieces) - expected)) <= 1e-3


@pytest.mark.slow  # 3 minutes: the float64 forward of 5000 tokens
def test_perplexity_with_int8_activations(fast, reference, text_ids):
    losses = reference.losses(text_ids)
    perplexity, scored = fast.perplexity(text_ids)
    assert scored == losses.size
    assert abs(perplexity / np.exp(losses.mean()) - 1) <= 0.005


def test_deterministic_bits(fast, prompts):
    tokens = prompts[4][-560:]
    expected = last_logits(fast, tokens, [600], ops.Context(num_threads=1, deterministic=True))
    for threads, pieces in ((1, [64, 1, 37]), (2, [600]), (2, [211]), (3, [64, 1, 1, 90])):
        logits = last_logits(fast, tokens, pieces, ops.Context(num_threads=threads, deterministic=True))
        np.testing.assert_array_equal(logits, expected, f"{threads} threads, {pieces}")


def test_generates(fast):
    assert "Paris" in fast.generate("France's capital city is called", max_tokens=12).read()
