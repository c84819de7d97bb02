# SPDX-License-Identifier: Apache-2.0
"""The llama architecture in float64, written from its definition: what the model has to compute, without any of our code.

Pre-normalised residual blocks of grouped-query causal attention and SwiGLU (Touvron et al., 2023). GGUF stores the q and
k projections with their rows permuted, so that the rotation pairs neighbours (2i, 2i + 1).
"""

import gguf
import numpy as np


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotate(x, theta, rotary_dim):
    """x [tokens, heads, head_dim] at positions 0, 1, 2, …"""
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    turn = np.exp(1j * angles)[:, None, :]
    turned = (x[..., 0:rotary_dim:2] + 1j * x[..., 1:rotary_dim:2]) * turn
    out = x.copy()
    out[..., 0:rotary_dim:2], out[..., 1:rotary_dim:2] = turned.real, turned.imag
    return out


def causal_attention(q, k, v):
    """q [tokens, heads, head_dim], k and v [tokens, kv_heads, head_dim]."""
    tokens, heads, head_dim = q.shape
    out = np.empty_like(q)
    hidden = np.triu(np.ones((tokens, tokens), bool), 1)
    for head in range(heads):
        kv_head = head // (heads // k.shape[1])
        scores = q[:, head] @ k[:, kv_head].T / np.sqrt(head_dim)
        scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=-1, keepdims=True) @ v[:, kv_head]
    return out


class ReferenceLlama:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.fields = reader.fields
        self._tensors = {t.name: t for t in reader.tensors}
        self._weights = {}
        assert self._value("general.architecture") == "llama"
        self.num_layers = self._value("llama.block_count")
        self.num_heads = self._value("llama.attention.head_count")
        self.num_kv_heads = self._value("llama.attention.head_count_kv")
        self.eps = self._value("llama.attention.layer_norm_rms_epsilon")
        self.theta = self._value("llama.rope.freq_base")
        self.rotary_dim = self._value("llama.rope.dimension_count")

    def _value(self, key, default=None):
        return self.fields[key].contents() if key in self.fields else default

    def weight(self, name):
        """Dequantised, in float64."""
        if name not in self._weights:
            tensor = self._tensors[name]
            self._weights[name] = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        return self._weights[name]

    def logits(self, sequences, rows=slice(None)):
        """For each list of token ids [tokens, vocab_size], or those `rows` of it."""
        starts = np.cumsum([0, *map(len, sequences)])
        spans = [slice(a, b) for a, b in zip(starts, starts[1:])]
        x = self.weight("token_embd.weight")[np.concatenate(sequences)]
        for layer in range(self.num_layers):
            block = f"blk.{layer}."
            h = rms_norm(x, self.weight(block + "attn_norm.weight"), self.eps)
            q, k, v = (
                (h @ self.weight(f"{block}attn_{name}.weight").T).reshape(len(x), heads, -1)
                for name, heads in (("q", self.num_heads), ("k", self.num_kv_heads), ("v", self.num_kv_heads))
            )
            attended = np.concatenate(
                [
                    causal_attention(
                        rotate(q[s], self.theta, self.rotary_dim), rotate(k[s], self.theta, self.rotary_dim), v[s]
                    )
                    for s in spans
                ]
            )
            x = x + attended.reshape(len(x), -1) @ self.weight(block + "attn_output.weight").T
            h = rms_norm(x, self.weight(block + "ffn_norm.weight"), self.eps)
            gate, up = h @ self.weight(block + "ffn_gate.weight").T, h @ self.weight(block + "ffn_up.weight").T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.weight(block + "ffn_down.weight").T
        x = rms_norm(x, self.weight("output_norm.weight"), self.eps)
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
