# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="ops_transformer" beside "sdpa" ("eager" where sdpa lacks a rule), tiny models and a real one."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import ops_transformer.transformers as ours

TINY = dict(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
CONFIGS = {
    "llama": ("LlamaConfig", {}, "sdpa"),
    "mistral": ("MistralConfig", {"sliding_window": 9}, "sdpa"),
    "qwen2": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}, "sdpa"),
    "gemma2": (
        "Gemma2Config",
        {"sliding_window": 8, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16},
        "eager",
    ),
    "gpt_oss": ("GptOssConfig", {"sliding_window": 8, "num_local_experts": 2, "num_experts_per_tok": 1}, "eager"),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def model_and_peer(request):
    name, extra, peer = CONFIGS[request.param]
    torch.manual_seed(7)
    config = getattr(transformers, name)(**TINY, **extra)
    return transformers.AutoModelForCausalLM.from_config(config).eval(), peer


def both(model, peer, run):
    results = []
    for implementation in (peer, ours.NAME):
        model.set_attn_implementation(implementation)
        with torch.inference_mode():
            results.append(run(model))
    return results


def prompt(batch, length):
    return torch.randint(2, 97, (batch, length), generator=torch.Generator().manual_seed(length))


def test_logits(model_and_peer):
    """Longer than the windows, so that they hide keys; no mask is built for it."""
    expected, actual = both(*model_and_peer, lambda model: model(prompt(2, 40)).logits)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_padded_batch(model_and_peer):
    tokens, mask = prompt(3, 20), torch.ones(3, 20, dtype=torch.long)
    mask[0, :6] = 0
    mask[1, :13] = 0
    expected, actual = both(*model_and_peer, lambda model: model(tokens, attention_mask=mask).logits)
    seen = mask.bool()
    torch.testing.assert_close(actual[seen], expected[seen], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_greedy_tokens(model_and_peer, cache):
    tokens, mask = prompt(2, 12), torch.ones(2, 12, dtype=torch.long)
    mask[1, :4] = 0
    arguments = dict(attention_mask=mask, max_new_tokens=20, do_sample=False, disable_compile=True)
    if cache == "static":
        arguments["cache_implementation"] = "static"
    expected, actual = both(*model_and_peer, lambda model: model.generate(tokens, **arguments))
    assert actual.tolist() == expected.tolist()


def test_prompt_in_pieces(model_and_peer):
    """Later queries over a cache: the rule counts from the last key."""
    tokens = prompt(1, 30)

    def run(model):
        cache = transformers.DynamicCache(config=model.config)
        return torch.cat([model(piece, cache=cache).logits for piece in tokens.split([11, 18, 1], 1)], 1)

    expected, actual = both(*model_and_peer, run)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_growing_cache(model_and_peer):
    """Appended in place, cropped, and reordered by beams: the same tokens as DynamicCache gives."""
    tokens = prompt(2, 12)

    def run(kind):
        def greedy_then_cropped(model):
            cache = kind(model.config)
            first = model(tokens, cache=cache).logits
            rest = [model(tokens[:, i : i + 1], cache=cache).logits for i in range(5)]
            cropped = all(type(layer).__name__ in ("GrowingLayer", "DynamicLayer") for layer in cache.layers)
            if cropped:
                cache.crop(-5)
                rest.append(model(tokens[:, :3], cache=cache).logits)
            return torch.cat([first, *rest], 1)

        return both(*model_and_peer, greedy_then_cropped)

    expected, actual = run(lambda config: transformers.DynamicCache(config=config)), run(ours.GrowingCache)
    for ours_here, theirs in zip(actual, expected):
        torch.testing.assert_close(ours_here, theirs, rtol=1e-4, atol=1e-4)
    model = model_and_peer[0]
    arguments = dict(max_new_tokens=12, do_sample=False, num_beams=3)
    beams = model.generate(tokens, cache=ours.GrowingCache(model.config), **arguments)
    assert beams.tolist() == model.generate(tokens, **arguments).tolist()


def test_growing_cache_copies_seldom():
    config = transformers.LlamaConfig(**TINY)
    cache, places = ours.GrowingCache(config), set()
    for i in range(1000):
        keys, values = cache.update(torch.full((1, 2, 1, 16), float(i)), torch.full((1, 2, 1, 16), -float(i)), 0)
        places.add(keys.data_ptr())
    assert len(places) <= 5 and cache.get_seq_length() == 1000
    assert torch.equal(keys[0, 1, :, 3], torch.arange(1000.0))
    assert torch.equal(values[0, 0, :, 3], -torch.arange(1000.0))
    with torch.inference_mode():
        cache.update(keys[:, :, :1], values[:, :, :1], 0)
    assert cache.update(keys[:, :, :1], values[:, :, :1], 0)[0].shape[2] == 1002
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.update(keys[:, :, :1], values[:, :, :1], 0)[0].shape[2] == 1
    grown = cache.update(keys[:, :, :1].clone().requires_grad_(), values[:, :, :1], 0)[0]
    grown.sum().backward()


def test_encoder():
    torch.manual_seed(7)
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, intermediate_size=64
    )
    model = transformers.BertModel(config).eval()
    tokens, mask = prompt(2, 15), torch.ones(2, 15, dtype=torch.long)
    for padded in (0, 5):
        mask[0, 15 - padded :] = 0
        expected, actual = both(model, "sdpa", lambda model: model(tokens, attention_mask=mask).last_hidden_state)
        torch.testing.assert_close(actual[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-4)


def test_no_mask_is_built_where_the_rule_says_it():
    config = transformers.MistralConfig(**TINY, sliding_window=4)
    assert ours.attention_mask(1, 9, 9, attention_mask=torch.ones(1, 9, dtype=torch.bool), config=config) is None
    assert ours.attention_mask(1, 2, 9, q_offset=7, local_size=4, config=config) is None
    # Room of a static cache; padding; another local rule.
    assert ours.attention_mask(1, 3, 9, q_offset=0, config=config).shape == (1, 1, 3, 9)
    assert ours.attention_mask(1, 9, 9, attention_mask=torch.arange(9)[None] > 2, config=config) is not None
    assert ours.attention_mask(1, 9, 9, local_size=5, config=config) is not None


def test_dropout_is_refused():
    q = torch.zeros(1, 2, 3, 8)
    with pytest.raises(NotImplementedError, match="dropout is 0.1"):
        ours.attention_forward(torch.nn.Module(), q, q, q, None, dropout=0.1)


def test_compiled_model():
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)).eval()
    model.set_attn_implementation(ours.NAME)
    tokens = prompt(2, 10)
    with torch.inference_mode():
        expected = model(tokens).logits
        compiled = torch.compile(model, backend="eager")(tokens).logits
    torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-4)


def test_real_model(model_path):
    """64 greedy tokens of SmolLM2, the same as sdpa's."""
    pytest.importorskip("gguf")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_path.parent,
        gguf_file=model_path.name,
        dtype=torch.float32,
        quantization_config=transformers.GgufConfig(dequantize=True),
        local_files_only=True,
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        model_path.parent, gguf_file=model_path.name, local_files_only=True
    )
    question = "<|im_start|>user\nTell me about the capital of France.<|im_end|>\n<|im_start|>assistant\n"
    tokens = tokenizer(question, return_tensors="pt").input_ids
    arguments = dict(max_new_tokens=64, min_new_tokens=64, do_sample=False)
    expected, actual = both(model, "sdpa", lambda model: model.generate(tokens, **arguments)[0, tokens.shape[1] :])
    assert len(actual) == 64 and actual.tolist() == expected.tolist()
