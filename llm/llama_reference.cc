// SPDX-License-Identifier: Apache-2.0
#include "llm/llama_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace ops_transformer::llm::reference {
namespace {

using Vector = std::vector<double>;

Vector multiply(const Tensors& tensors, const std::string& name, const Vector& x) {
  const Vector& w = tensors.at(name + ".weight");
  const std::size_t cols = x.size(), rows = w.size() / cols;
  Vector y(rows, 0.0);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < cols; ++c) y[r] += w[r * cols + c] * x[c];
  }
  if (const auto bias = tensors.find(name + ".bias"); bias != tensors.end()) {
    for (std::size_t r = 0; r < rows; ++r) y[r] += bias->second[r];
  }
  return y;
}

Vector normalise(const Vector& x, const Vector& weight, double eps) {
  double squares = 0;
  for (double v : x) squares += v * v;
  Vector y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] / std::sqrt(squares / double(x.size()) + eps) * weight[i];
  return y;
}

void rotate(Vector& x, std::size_t head_dim, std::size_t rotary_dim, double theta, double position,
            const Tensors& tensors) {
  const auto factors = tensors.find("rope_freqs.weight");
  for (std::size_t head = 0; head < x.size(); head += head_dim) {
    for (std::size_t i = 0; i < rotary_dim / 2; ++i) {
      const double factor = factors == tensors.end() ? 1.0 : factors->second[i];
      const double angle = position * std::pow(theta, -2.0 * double(i) / double(rotary_dim)) / factor;
      const double a = x[head + 2 * i], b = x[head + 2 * i + 1];
      x[head + 2 * i] = a * std::cos(angle) - b * std::sin(angle);
      x[head + 2 * i + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
  }
}

}  // namespace

std::vector<Vector> llama_logits(const ModelConfig& config, const Tensors& tensors,
                                 const std::vector<std::int32_t>& tokens) {
  const auto hidden = std::size_t(config.hidden_size), dim = std::size_t(config.head_dim);
  const auto num_heads = std::size_t(config.num_q_heads), group = num_heads / std::size_t(config.num_kv_heads);
  std::vector<std::vector<Vector>> keys(std::size_t(config.num_layers)), values(std::size_t(config.num_layers));
  std::vector<Vector> logits;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const Vector& table = tensors.at("token_embd.weight");
    const auto row = table.begin() + std::ptrdiff_t(std::size_t(tokens[t]) * hidden);
    Vector x(row, row + std::ptrdiff_t(hidden));
    for (std::size_t l = 0; l < keys.size(); ++l) {
      const std::string block = "blk." + std::to_string(l) + ".";
      const Vector h = normalise(x, tensors.at(block + "attn_norm.weight"), config.norm_eps);
      Vector q = multiply(tensors, block + "attn_q", h), k = multiply(tensors, block + "attn_k", h);
      const double position = double(t) / config.position_scale;
      rotate(q, dim, std::size_t(config.rotary_dim), config.rope_theta, position, tensors);
      rotate(k, dim, std::size_t(config.rotary_dim), config.rope_theta, position, tensors);
      keys[l].push_back(k);
      values[l].push_back(multiply(tensors, block + "attn_v", h));
      const std::size_t first =
          config.window && t + 1 > std::size_t(*config.window) ? t + 1 - std::size_t(*config.window) : 0;
      Vector attended(num_heads * dim, 0.0);
      for (std::size_t head = 0; head < num_heads; ++head) {
        const std::size_t kv = head / group * dim;
        Vector scores;
        for (std::size_t j = first; j <= t; ++j) {
          double dot = 0;
          for (std::size_t d = 0; d < dim; ++d) dot += q[head * dim + d] * keys[l][j][kv + d];
          scores.push_back(dot / std::sqrt(double(dim)));
        }
        const double most = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (double& s : scores) sum += s = std::exp(s - most);
        for (std::size_t j = first; j <= t; ++j) {
          for (std::size_t d = 0; d < dim; ++d)
            attended[head * dim + d] += scores[j - first] / sum * values[l][j][kv + d];
        }
      }
      const Vector projected = multiply(tensors, block + "attn_output", attended);
      for (std::size_t i = 0; i < hidden; ++i) x[i] += projected[i];
      const Vector g = normalise(x, tensors.at(block + "ffn_norm.weight"), config.norm_eps);
      Vector gate = multiply(tensors, block + "ffn_gate", g);
      const Vector up = multiply(tensors, block + "ffn_up", g);
      for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
      const Vector down = multiply(tensors, block + "ffn_down", gate);
      for (std::size_t i = 0; i < hidden; ++i) x[i] += down[i];
    }
    logits.push_back(multiply(tensors, tensors.contains("output.weight") ? "output" : "token_embd",
                              normalise(x, tensors.at("output_norm.weight"), config.norm_eps)));
  }
  return logits;
}

}  // namespace ops_transformer::llm::reference
