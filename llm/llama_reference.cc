// SPDX-License-Identifier: Apache-2.0
#include "llm/llama_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <variant>

#include "ops_transformer/posembedding/rope_reference.h"

namespace ops_transformer::llm::reference {
namespace {

namespace ops = ops_transformer::reference;
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

long double frequency(const ModelConfig& config, std::int64_t pair, bool local) {
  const std::int64_t dim = config.rotary_dim;
  if (local && config.local_rope_theta) return ops::rope_angle(1, pair, dim, *config.local_rope_theta, 1.0);
  const double theta = config.rope_theta;
  if (const auto* ntk = std::get_if<NtkScaling>(&config.rope_scaling)) {
    return ops::ntk_frequency(pair, dim, theta, ntk->factor);
  }
  if (const auto* llama3 = std::get_if<Llama3Scaling>(&config.rope_scaling)) {
    return ops::llama3_frequency(pair, dim, theta, llama3->factor, llama3->low_frequency_factor,
                                 llama3->high_frequency_factor, double(llama3->original_context_len));
  }
  if (const auto* yarn = std::get_if<YarnScaling>(&config.rope_scaling)) {
    return ops::yarn_frequency(pair, dim, theta, yarn->factor, double(yarn->original_context_len), yarn->beta_fast,
                               yarn->beta_slow);
  }
  return ops::rope_angle(1, pair, dim, theta, config.position_scale);
}

void rotate(Vector& x, const ModelConfig& config, std::size_t position, bool local, const Tensors& tensors) {
  const auto factors = tensors.find("rope_freqs.weight");
  const auto half = std::size_t(config.rotary_dim / 2);
  const auto* yarn = std::get_if<YarnScaling>(&config.rope_scaling);
  const double amplitude = yarn ? 0.1 * std::log(yarn->factor) + 1.0 : 1.0;
  const bool neighbours = config.rope_style == RopeStyle::interleaved;
  for (std::size_t head = 0; head < x.size(); head += std::size_t(config.head_dim)) {
    for (std::size_t i = 0; i < half; ++i) {
      const double factor = factors == tensors.end() ? 1.0 : factors->second[i];
      const double angle = double(position) * double(frequency(config, std::int64_t(i), local)) / factor;
      double &first = x[head + (neighbours ? 2 * i : i)], &second = x[head + (neighbours ? 2 * i + 1 : i + half)];
      const double a = first, b = second;
      first = amplitude * (a * std::cos(angle) - b * std::sin(angle));
      second = amplitude * (a * std::sin(angle) + b * std::cos(angle));
    }
  }
}

// Every head, where there is a norm for them.
void normalise_heads(Vector& x, std::size_t head_dim, const std::string& name, const Tensors& tensors, double eps) {
  const auto weight = tensors.find(name);
  for (std::size_t head = 0; weight != tensors.end() && head < x.size(); head += head_dim) {
    const auto begin = x.begin() + std::ptrdiff_t(head);
    const Vector y = normalise(Vector(begin, begin + std::ptrdiff_t(head_dim)), weight->second, eps);
    std::copy(y.begin(), y.end(), begin);
  }
}

void add(Vector& x, Vector y, const std::string& post_norm, const Tensors& tensors, double eps) {
  if (const auto weight = tensors.find(post_norm); weight != tensors.end()) y = normalise(y, weight->second, eps);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

double activate(const std::string& architecture, double v) {
  if (architecture != "gemma3") return v / (1.0 + std::exp(-v));
  return 0.5 * v * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (v + 0.044715 * v * v * v)));
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
    if (config.architecture == "gemma3") {
      for (double& v : x) v *= std::sqrt(double(hidden));
    }
    for (std::size_t l = 0; l < keys.size(); ++l) {
      const std::string block = "blk." + std::to_string(l) + ".";
      const Vector h = normalise(x, tensors.at(block + "attn_norm.weight"), config.norm_eps);
      Vector q = multiply(tensors, block + "attn_q", h), k = multiply(tensors, block + "attn_k", h);
      const bool local = config.window && (config.global_every == 0 || (l + 1) % std::size_t(config.global_every) != 0);
      normalise_heads(q, dim, block + "attn_q_norm.weight", tensors, config.norm_eps);
      normalise_heads(k, dim, block + "attn_k_norm.weight", tensors, config.norm_eps);
      rotate(q, config, t, local, tensors);
      rotate(k, config, t, local, tensors);
      keys[l].push_back(k);
      values[l].push_back(multiply(tensors, block + "attn_v", h));
      const std::size_t first = local && t + 1 > std::size_t(*config.window) ? t + 1 - std::size_t(*config.window) : 0;
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
      add(x, multiply(tensors, block + "attn_output", attended), block + "post_attention_norm.weight", tensors,
          config.norm_eps);
      const Vector g = normalise(x, tensors.at(block + "ffn_norm.weight"), config.norm_eps);
      Vector gate = multiply(tensors, block + "ffn_gate", g);
      const Vector up = multiply(tensors, block + "ffn_up", g);
      for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = activate(config.architecture, gate[i]) * up[i];
      add(x, multiply(tensors, block + "ffn_down", gate), block + "post_ffw_norm.weight", tensors, config.norm_eps);
    }
    logits.push_back(multiply(tensors, tensors.contains("output.weight") ? "output" : "token_embd",
                              normalise(x, tensors.at("output_norm.weight"), config.norm_eps)));
  }
  return logits;
}

}  // namespace ops_transformer::llm::reference
