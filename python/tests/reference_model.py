# SPDX-License-Identifier: Apache-2.0
"""GGUF's llama, qwen2, qwen3 and gemma3 in float64, written from their definitions, without any of our code.

Residual blocks of grouped-query causal attention and a gated FFN, normalised before (Touvron et al., 2023); Qwen 3 and
Gemma 3 normalise every head of q and k before the rotation, Gemma 3 also what each half of a block adds. GGUF stores
llama's q and k projections with their rows permuted, so that the rotation pairs neighbours (2i, 2i + 1); the others
pair halves (i, i + d / 2). Gemma's norm weights have the 1 of (1 + w) in them.
"""

import math

import gguf
import numpy as np


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotate(x, frequencies, amplitude, neighbours):
    """x [tokens, heads, head_dim] at positions 0, 1, 2, …"""
    turn = amplitude * np.exp(1j * np.arange(len(x))[:, None] * frequencies)[:, None, :]
    rotary_dim = 2 * len(frequencies)
    first, second = (
        (slice(0, rotary_dim, 2), slice(1, rotary_dim, 2))
        if neighbours
        else (slice(0, rotary_dim // 2), slice(rotary_dim // 2, rotary_dim))
    )
    turned = (x[..., first] + 1j * x[..., second]) * turn
    out = x.copy()
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


def yarn(theta, rotary_dim, factor, original_len, beta_fast=32.0, beta_slow=1.0):
    """Frequencies and amplitude (Peng et al., 2023)."""

    def index(turns):
        return rotary_dim * math.log(original_len / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(index(beta_fast)), 0), min(math.ceil(index(beta_slow)), rotary_dim - 1)
    interpolated = np.clip((np.arange(rotary_dim // 2) - low) / max(high - low, 0.001), 0, 1)
    plain = theta ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    return plain * (1 - interpolated) + plain / factor * interpolated, 0.1 * math.log(factor) + 1


def causal_attention(q, k, v, scale, window):
    """q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]; window None: all keys."""
    tokens, heads, _ = q.shape
    out = np.empty_like(q)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    hidden = (distance < 0) | (distance >= (window or tokens))
    for head in range(heads):
        kv_head = head // (heads // k.shape[1])
        scores = q[:, head] @ k[:, kv_head].T * scale
        scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=-1, keepdims=True) @ v[:, kv_head]
    return out


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class ReferenceModel:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.fields = reader.fields
        self._tensors = {t.name: t for t in reader.tensors}
        self._weights = {}
        self.architecture = self._value("general.architecture")
        assert self.architecture in ("llama", "qwen2", "qwen3", "gemma3")
        self.num_layers = self._key("block_count")
        self.num_heads = self._key("attention.head_count")
        self.num_kv_heads = self._key("attention.head_count_kv")
        self.eps = self._key("attention.layer_norm_rms_epsilon")
        self.head_dim = self._key("attention.key_length", self._key("embedding_length") // self.num_heads)
        self.window = self._key("attention.sliding_window")
        gemma = self.architecture == "gemma3"
        self.global_every = self._key("attention.sliding_window_pattern", 6) if gemma else None
        self.activation = gelu_tanh if gemma else silu
        self.embedding_scale = math.sqrt(self._key("embedding_length")) if gemma else 1.0
        self.rotations = {False: self._rotation(), True: self._rotation()}
        if gemma:
            self.rotations[True] = 10000.0 ** (-np.arange(0, self.head_dim, 2) / self.head_dim), 1.0

    def _value(self, key, default=None):
        return self.fields[key].contents() if key in self.fields else default

    def _key(self, key, default=None):
        return self._value(f"{self.architecture}.{key}", default)

    def _rotation(self):
        """Frequencies and amplitude of all layers, or of the global ones."""
        theta, dim = self._key("rope.freq_base", 10000.0), self._key("rope.dimension_count", self.head_dim)
        scaling, factor = self._key("rope.scaling.type", "none"), self._key("rope.scaling.factor", 1.0)
        if scaling == "yarn":
            return yarn(theta, dim, factor, self._key("rope.scaling.original_context_length"))
        assert scaling in ("none", "linear")
        frequencies = theta ** (-np.arange(0, dim, 2) / dim) / (factor if scaling == "linear" else 1.0)
        if "rope_freqs.weight" in self._tensors:
            frequencies = frequencies / self.weight("rope_freqs.weight")
        return frequencies, 1.0

    def weight(self, name):
        """Dequantised, in float64."""
        if name not in self._weights:
            tensor = self._tensors[name]
            self._weights[name] = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        return self._weights[name]

    def _linear(self, x, name):
        y = x @ self.weight(f"{name}.weight").T
        return y + self.weight(f"{name}.bias") if f"{name}.bias" in self._tensors else y

    def _norm(self, x, name):
        return rms_norm(x, self.weight(name), self.eps) if name in self._tensors else x

    def _attention(self, h, layer, spans):
        block = f"blk.{layer}."
        local = self.window is not None and (self.global_every is None or (layer + 1) % self.global_every != 0)
        q, k, v = (
            self._linear(h, f"{block}attn_{name}").reshape(len(h), heads, -1)
            for name, heads in (("q", self.num_heads), ("k", self.num_kv_heads), ("v", self.num_kv_heads))
        )
        q, k = self._norm(q, block + "attn_q_norm.weight"), self._norm(k, block + "attn_k_norm.weight")
        turn = (*self.rotations[local], self.architecture == "llama")
        window, scale = self.window if local else None, 1 / math.sqrt(self.head_dim)
        attended = [causal_attention(rotate(q[s], *turn), rotate(k[s], *turn), v[s], scale, window) for s in spans]
        return self._linear(np.concatenate(attended).reshape(len(h), -1), block + "attn_output")

    def _ffn(self, h, block):
        gate, up = self._linear(h, block + "ffn_gate"), self._linear(h, block + "ffn_up")
        return self._linear(self.activation(gate) * up, block + "ffn_down")

    def logits(self, sequences, rows=slice(None)):
        """For each list of token ids [tokens, vocab_size], or those `rows` of it."""
        starts = np.cumsum([0, *map(len, sequences)])
        spans = [slice(a, b) for a, b in zip(starts, starts[1:])]
        x = self.weight("token_embd.weight")[np.concatenate(sequences)] * self.embedding_scale
        for layer in range(self.num_layers):
            block = f"blk.{layer}."
            a = self._attention(self._norm(x, block + "attn_norm.weight"), layer, spans)
            x = x + self._norm(a, block + "post_attention_norm.weight")
            f = self._ffn(self._norm(x, block + "ffn_norm.weight"), block)
            x = x + self._norm(f, block + "post_ffw_norm.weight")
        x = self._norm(x, "output_norm.weight")
        output = self.weight("output.weight" if "output.weight" in self._tensors else "token_embd.weight")
        return [x[s][rows] @ output.T for s in spans]

    def losses(self, tokens, context_len=512):
        """Negative log likelihoods [windows, context_len / 2 - 1] of the tokens after the middle of each window.

        The exponential of their mean is the perplexity. Windows don't overlap; where the model asks for BOS it replaces
        a window's first token.
        """
        windows = np.asarray(tokens)[: len(tokens) // context_len * context_len].reshape(-1, context_len).copy()
        if self._value("tokenizer.ggml.add_bos_token", False):
            windows[:, 0] = self._value("tokenizer.ggml.bos_token_id")
        half, losses = context_len // 2, []
        for window in windows:
            (logits,) = self.logits([window], slice(half, context_len - 1))
            largest = logits.max(axis=-1)
            log_sum = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=-1))
            losses.append(log_sum - logits[np.arange(half - 1), window[half + 1 :]])
        return np.array(losses)
