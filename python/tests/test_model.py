# SPDX-License-Identifier: Apache-2.0
"""SmolLM2 through the whole library, against its definition in float64 (reference_model.py)."""

import pathlib
import threading

import numpy as np
import pytest
from reference_model import ReferenceModel

import ops_transformer as ops

LENGTHS = [1, 7, 33, 180, 600]


@pytest.fixture(scope="module")
def reference(model_path):
    return ReferenceModel(model_path)


@pytest.fixture(scope="module")
def fast(model_path):
    return ops.Model.load(model_path)


@pytest.fixture(scope="module")
def exact(model_path):
    return ops.Model.load(model_path, exact=True)


@pytest.fixture(scope="module")
def text_ids(fast, english):
    return fast.tokenize(english)


@pytest.fixture(scope="module")
def prompts(fast, text_ids):
    question = fast.tokenize("The capital of France is")
    prompts = [(question + text_ids[800 * i :])[:length] for i, length in enumerate(LENGTHS)]
    assert [len(prompt) for prompt in prompts] == LENGTHS
    return prompts


@pytest.fixture(scope="module")
def expected(reference, prompts):
    return reference.logits(prompts)


def logits_in_pieces(model, tokens, pieces, context=None, neighbours=()):
    """Appends the tokens in pieces of these lengths (the last one over and over), with other sequences beside them."""
    cache = model.new_cache(len(tokens) + 64 * len(neighbours), 1 + len(neighbours))
    sequence = cache.add_sequence()
    others = [(cache.add_sequence(), list(ids)) for ids in neighbours]
    rows, first = [], 0
    while first < len(tokens):
        last = first + pieces[min(len(rows), len(pieces) - 1)]
        # Neighbours come before and after, and with other lengths than ours.
        before = [(id, [ids.pop() for _ in range(min(3, len(ids)))]) for id, ids in others[::2] if ids]
        after = [(id, [ids.pop()]) for id, ids in others[1::2] if ids]
        batch = [*before, (sequence, tokens[first:last]), *after]
        start = sum(len(ids) for _, ids in before)
        logits = model.forward(cache, batch, all_logits=True, context=context)
        rows.append(logits[start : start + len(tokens[first:last])])
        first = last
    assert cache.length(sequence) == len(tokens)
    return np.concatenate(rows)


@pytest.mark.parametrize("index", range(len(LENGTHS)), ids=LENGTHS)
def test_exact_logits(exact, prompts, expected, index):
    logits = exact.logits(prompts[index])
    assert logits.dtype == np.float32 and logits.shape == expected[index].shape
    assert np.max(np.abs(logits - expected[index])) <= 1e-3


@pytest.mark.parametrize("pieces", [[1], [64], [13, 50, 1, 1, 7], [179, 1]], ids=str)
def test_exact_logits_in_pieces(exact, prompts, expected, pieces):
    logits = logits_in_pieces(exact, prompts[3], pieces)
    assert np.max(np.abs(logits - expected[3])) <= 1e-3


def test_perplexity_with_int8_activations(fast, exact, reference, text_ids):
    losses = reference.losses(text_ids)
    perplexity, scored = fast.perplexity(text_ids)
    assert scored == losses.size
    assert abs(perplexity / np.exp(losses.mean()) - 1) <= 0.005
    perplexity, scored = exact.perplexity(text_ids, max_windows=2)
    assert scored == losses[:2].size
    assert abs(perplexity / np.exp(losses[:2].mean()) - 1) <= 1e-5


@pytest.mark.parametrize("kind", ["fast", "exact"])
def test_deterministic_bits(request, kind, prompts):
    model, tokens = request.getfixturevalue(kind), prompts[3][:100]
    expected = logits_in_pieces(model, tokens, [100], ops.Context(num_threads=1, deterministic=True))
    for threads in (1, 2, 3):
        context = ops.Context(num_threads=threads, deterministic=True)
        for pieces in ([100], [1], [37], [64, 1, 1, 20]):
            for neighbours in ((), (prompts[2], prompts[1]), (prompts[4][:40],)):
                logits = logits_in_pieces(model, tokens, pieces, context, neighbours)
                np.testing.assert_array_equal(logits, expected, f"{threads} threads, {pieces}, {len(neighbours)} more")


def test_greedy_text_does_not_depend_on_threads(model_path, prompts):
    """64 tokens."""
    answers = set()
    for threads in (1, 2, 3):
        context = ops.Context(num_threads=threads, deterministic=True)
        generation = ops.Model.load(model_path, context=context).generate(prompts[2], 64, ignore_eos=True)
        assert len(generation.read()) > 0 and len(generation.tokens) == 64
        answers.add(tuple(generation.tokens))
    assert len(answers) == 1


def test_generate_streams(fast):
    generation = fast.generate("The capital of France is", max_tokens=12)
    pieces = list(generation)
    assert len(pieces) > 3 and "".join(pieces) == generation.text
    assert "Paris" in generation.text
    assert generation.finish_reason == "length" and len(generation.tokens) == 12
    assert generation.timing.prefill_tokens == 5 and generation.timing.decode_tokens == 11
    assert list(generation) == [] and generation.read() == generation.text


def test_greedy_tokens_are_the_likeliest(exact):
    prompt = exact.tokenize("Once upon a time")
    generation = exact.generate(prompt, max_tokens=20, ignore_eos=True)
    generation.read()
    logits = exact.logits(prompt + generation.tokens)
    np.testing.assert_array_equal(np.argmax(logits[len(prompt) - 1 : -1], axis=-1), generation.tokens)


def test_stop_and_cancel(fast):
    whole = fast.generate("The capital of France is", max_tokens=12).read()
    stopped = fast.generate("The capital of France is", max_tokens=12, stop=["nowhere", "Paris"])
    assert stopped.read() == whole[: whole.index("Paris")] and stopped.finish_reason == "stop"
    cancelled = fast.generate("The capital of France is", max_tokens=100)
    next(iter(cancelled))
    cancelled.cancel()
    assert len(cancelled.read()) < 100 and cancelled.finish_reason == "cancelled"


def test_sampling_follows_its_seed(fast):
    def answer(seed):
        return fast.generate("Once upon a time", 24, temperature=1.0, top_k=50, top_p=0.95, min_p=0.01, seed=seed).read()

    assert answer(1) == answer(1)
    assert len({answer(seed) for seed in range(4)}) > 1


def test_batch_equals_single_answers(model_path):
    model = ops.Model.load(model_path, context=ops.Context(num_threads=2, deterministic=True))
    questions = ["The capital of France is", "Water boils at", "def add(a, b):\n", b"\xf0\x9f\x98"]
    answers = model.generate_batch(questions, 10)
    assert answers == [model.generate(question, 10).read() for question in questions]


def test_chat(fast, exact):
    answer = exact.chat("What is the capital of France?", max_tokens=40)
    assert "Paris" in answer.read() and answer.finish_reason == "end_of_text"
    messages = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "<|im_end|>2 + 2?"}]
    assert fast.chat(messages, max_tokens=5).read()


def test_cache(exact, prompts):
    cache = exact.new_cache(600, 3)
    first = cache.add_sequence()
    (expected,) = exact.forward(cache, [(first, prompts[2])])
    second = cache.fork(first)
    assert cache.length(second) == 33
    a, b = exact.forward(cache, [(first, [5]), (second, [5])])
    np.testing.assert_allclose(a, b, atol=1e-3)
    cache.truncate(second, 32)
    (again,) = exact.forward(cache, [(second, prompts[2][32:])])
    np.testing.assert_allclose(again, expected, atol=1e-3)
    cache.remove_sequence(second)
    with pytest.raises(ValueError, match="sequence"):
        cache.length(second)


def test_a_full_cache_is_still_usable(fast, prompts):
    cache = fast.new_cache(64)
    sequence = cache.add_sequence()
    with pytest.raises(ops.ResourceExhausted):
        fast.forward(cache, [(sequence, prompts[3])])
    assert cache.length(sequence) == 0
    assert fast.forward(cache, [(sequence, prompts[2])]).shape == (1, fast.config.vocab_size)


def test_threads_share_a_model(fast):
    expected = fast.generate("Water boils at", 8).read()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(fast.generate("Water boils at", 8).read())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert answers == [expected] * 3


def test_answers_outlive_the_model(model_path):
    generation = ops.Model.load(model_path, num_threads=1).generate("Once", 5)
    tokenizer = ops.Model.load(model_path).tokenizer
    assert generation.read() and tokenizer.encode("Once")


def test_text_of_a_file_that_is_not_utf8(model_path, tmp_path):
    data = bytearray(model_path.read_bytes())
    for key in (b"general.name", b"tokenizer.chat_template"):
        data[data.index(key) + len(key) + 4 + 8] = 0xFF  # type and length stand between key and text
    path = tmp_path / "not_utf8.gguf"
    path.write_bytes(data)
    model = ops.Model.load(path)
    assert model.config.name[0] == model.tokenizer.chat_template[0] == "\ufffd"


def test_errors(fast, model_path, tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        ops.Model.load("/nowhere")
    with pytest.raises(ValueError, match="num_threads or context"):
        ops.Model.load(model_path, 1, context=ops.default_context())
    cut = tmp_path / "cut.gguf"
    with open(model_path, "rb") as file:
        cut.write_bytes(file.read(3_000_000))
    with pytest.raises(ops.InvalidFile, match="needs|cut|bytes"):
        ops.Model.load(cut)
    for arguments, message in [
        (dict(prompt=[]), "prompt"),
        (dict(prompt=[fast.config.vocab_size]), str(fast.config.vocab_size)),
        (dict(prompt=[1] * (fast.config.context_len + 1)), str(fast.config.context_len)),
        (dict(prompt="x", max_tokens=0), "max_tokens"),
        (dict(prompt="x", temperature=-1.0), "temperature"),
        (dict(prompt="x", top_p=0.0), "top_p"),
        (dict(prompt="x", stop=""), "stop"),
    ]:
        with pytest.raises(ValueError, match=message):
            fast.generate(**arguments).read()
    with pytest.raises(TypeError):
        fast.generate("x", typo=1)
    with pytest.raises(ValueError, match="tokens"):
        fast.perplexity("too short")
