// SPDX-License-Identifier: Apache-2.0
#include "llm/model.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "llm/engine.h"
#include "llm/perplexity.h"
#include "ops_transformer/base/error.h"
#include "python/array.h"
#include "python/bindings.h"
#include "python/text.h"

namespace ops_transformer::python {
namespace {

using namespace nb::literals;
using llm::Model;
using llm::TokenId;

/// The library leaves locking to its user, and here that is any Python thread.
struct KvCache {
  KvPool pool;
  std::mutex mutex;

  KvCache(const Model& model, std::int64_t num_tokens, std::int64_t num_sequences)
      : pool(model.make_kv_pool(num_tokens, num_sequences)) {}
  template <class Body>
  auto locked(Body&& body) {
    const nb::gil_scoped_release released;
    const std::lock_guard lock(mutex);
    return body(pool);
  }
};

class NumpyArray : public nb::object {
 public:
  using nb::object::object;
  explicit NumpyArray(nb::object array) : nb::object(std::move(array)) {}
  static constexpr auto Name = nb::detail::const_name("numpy.typing.NDArray[numpy.float32]");
};

using Slices = std::vector<std::pair<SequenceId, std::vector<TokenId>>>;

NumpyArray forward(const Model& model, KvCache& cache, const Slices& slices, bool all_logits, Context* context) {
  std::vector<TokenId> tokens;
  std::vector<llm::BatchSlice> batch;
  std::vector<std::int64_t> rows;
  for (const auto& [sequence, added] : slices) {
    tokens.insert(tokens.end(), added.begin(), added.end());
    batch.push_back({sequence, std::int64_t(added.size())});
    if (!added.empty()) rows.push_back(std::int64_t(tokens.size()) - 1);
  }
  if (all_logits) {
    rows.resize(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
  }
  const std::int64_t shape[] = {std::int64_t(rows.size()), model.config().vocab_size};
  Output logits = new_numpy_array(shape);
  cache.locked([&](KvPool& pool) {
    model.forward(context_or_default(context), pool, {.tokens = tokens, .slices = batch, .logit_rows = rows},
                  logits.view);
  });
  return NumpyArray(logits.source);
}

/// One run of the engine over its own cache.
class Generation {
 public:
  Generation(const Model& model, std::vector<std::vector<TokenId>> prompts, std::int64_t max_tokens,
             std::vector<std::string> stop, bool ignore_eos, float temperature, std::int32_t top_k, float top_p,
             float min_p, float repetition_penalty, std::int32_t repetition_window, std::uint64_t seed,
             Context* context) {
    const llm::SamplerOptions sampler{.temperature = temperature,
                                      .top_k = top_k,
                                      .top_p = top_p,
                                      .min_p = min_p,
                                      .repetition_penalty = repetition_penalty,
                                      .repetition_window = repetition_window,
                                      .seed = seed};
    std::vector<llm::GenerateRequest> requests;
    for (std::vector<TokenId>& prompt : prompts) {
      requests.push_back({std::move(prompt), {sampler, max_tokens, stop, ignore_eos}, std::nullopt});
    }
    num_requests_ = requests.size();
    const nb::gil_scoped_release released;
    cache_ = std::make_unique<KvCache>(model, llm::cache_tokens(model, requests), std::int64_t(num_requests_));
    engine_.emplace(context_or_default(context), model, cache_->pool, std::move(requests),
                    llm::Generation::Options{.context_len = model.config().context_len});
  }

  /// New text as (request, text); none once all requests are done.
  std::optional<std::vector<std::pair<std::size_t, std::string>>> step() {
    return cache_->locked([&](KvPool&) -> std::optional<std::vector<std::pair<std::size_t, std::string>>> {
      if (engine_->done()) return std::nullopt;
      std::vector<std::pair<std::size_t, std::string>> texts;
      for (llm::TextEvent& event : engine_->step()) {
        if (!event.text.empty()) texts.emplace_back(event.request, std::move(event.text));
      }
      return texts;
    });
  }
  void cancel() {
    cache_->locked([&](KvPool&) {
      for (std::size_t i = 0; i < num_requests_; ++i) engine_->cancel(i);
    });
  }
  llm::GenerateResult result(std::size_t request) {
    if (request >= num_requests_) {
      throw InvalidArgument(fmt::format("request is {}, must be below {}", request, num_requests_));
    }
    return cache_->locked([&](KvPool&) { return engine_->result(request); });
  }
  llm::GenerateTiming timing() {
    return cache_->locked([&](KvPool&) { return engine_->timing(); });
  }

 private:
  std::size_t num_requests_;
  std::unique_ptr<KvCache> cache_;
  std::optional<llm::Generation> engine_;
};

std::unique_ptr<Model> load(const std::string& path, bool exact, Context* context) {
  const nb::gil_scoped_release released;
  return llm::load_model(context_or_default(context), path,
                         {.arithmetic = exact ? Arithmetic::exact : Arithmetic::fast});
}

std::pair<double, std::int64_t> run_perplexity(const Model& model, const std::vector<TokenId>& tokens,
                                               std::int64_t context_len, std::int64_t max_windows, Context* context) {
  const nb::gil_scoped_release released;
  const auto result = llm::perplexity(context_or_default(context), model, tokens,
                                      {.context_len = context_len, .max_windows = max_windows});
  return {result.perplexity, result.tokens};
}

void bind_config(nb::module_& module) {
  using llm::ModelConfig;
  nb::class_<ModelConfig>(module, "ModelConfig", "Sizes and constants of a decoder-only transformer.")
      .def_ro("architecture", &ModelConfig::architecture)
      .def_prop_ro("name", [](const ModelConfig& self) { return to_str(self.name); })
      .def_ro("num_layers", &ModelConfig::num_layers)
      .def_ro("hidden_size", &ModelConfig::hidden_size)
      .def_ro("intermediate_size", &ModelConfig::intermediate_size)
      .def_ro("num_q_heads", &ModelConfig::num_q_heads)
      .def_ro("num_kv_heads", &ModelConfig::num_kv_heads)
      .def_ro("head_dim", &ModelConfig::head_dim)
      .def_ro("rotary_dim", &ModelConfig::rotary_dim)
      .def_ro("context_len", &ModelConfig::context_len, "Positions that the model was trained for.")
      .def_ro("vocab_size", &ModelConfig::vocab_size)
      .def_ro("window", &ModelConfig::window, "Keys visible to a query, itself included; None: all.")
      .def_ro("norm_eps", &ModelConfig::norm_eps)
      .def_ro("rope_theta", &ModelConfig::rope_theta);
}

void bind_cache(nb::module_& module) {
  nb::class_<KvCache>(module, "KvCache", "Keys and values of sequences, for LoadedModel.forward.")
      .def(
          "__init__",
          [](KvCache* self, const Model& model, std::int64_t num_tokens, std::int64_t num_sequences) {
            const nb::gil_scoped_release released;
            new (self) KvCache(model, num_tokens, num_sequences);
          },
          "model"_a, "num_tokens"_a, "num_sequences"_a = 1,
          "Room for num_tokens tokens in num_sequences sequences of any lengths.")
      .def("add_sequence", [](KvCache& self) { return self.locked([](KvPool& pool) { return pool.add_sequence(); }); })
      .def(
          "remove_sequence",
          [](KvCache& self, SequenceId sequence) {
            self.locked([&](KvPool& pool) { pool.remove_sequence(sequence); });
          },
          "sequence"_a)
      .def(
          "fork",
          [](KvCache& self, SequenceId sequence) {
            return self.locked([&](KvPool& pool) { return pool.fork(sequence); });
          },
          "sequence"_a, "A new sequence with the same tokens; their pages are shared.")
      .def(
          "length",
          [](KvCache& self, SequenceId sequence) {
            return self.locked([&](KvPool& pool) { return pool.length(sequence); });
          },
          "sequence"_a)
      .def(
          "truncate",
          [](KvCache& self, SequenceId sequence, std::int64_t new_length) {
            self.locked([&](KvPool& pool) { pool.truncate(sequence, new_length); });
          },
          "sequence"_a, "new_length"_a, "Drops the tokens from new_length on.");
}

void bind_generation(nb::module_& module) {
  using llm::GenerateResult;
  using llm::GenerateTiming;
  nb::class_<GenerateTiming>(module, "GenerateTiming", "Steps that read any prompt tokens count as prefill.")
      .def_ro("prefill_tokens", &GenerateTiming::prefill_tokens)
      .def_ro("prefill_seconds", &GenerateTiming::prefill_seconds)
      .def_ro("decode_tokens", &GenerateTiming::decode_tokens)
      .def_ro("decode_seconds", &GenerateTiming::decode_seconds);
  nb::class_<GenerateResult>(module, "GenerateResult", "An answer so far.")
      .def_prop_ro("text", [](const GenerateResult& self) { return to_str(self.text); })
      .def_ro("tokens", &GenerateResult::tokens, "As sampled, the one that ended the answer included.")
      .def_prop_ro("finish_reason", [](const GenerateResult& self) { return llm::finish_reason_name(self.finish); });
  nb::class_<Generation>(module, "BatchGeneration", "Answers several prompts together; Model.generate drives it.")
      .def(nb::init<const Model&, std::vector<std::vector<TokenId>>, std::int64_t, std::vector<std::string>, bool,
                    float, std::int32_t, float, float, float, std::int32_t, std::uint64_t, Context*>(),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 14>(), "model"_a, "prompts"_a, "max_tokens"_a = 256,
           "stop"_a = std::vector<std::string>(), "ignore_eos"_a = false, nb::kw_only(), "temperature"_a = 0.0f,
           "top_k"_a = 0, "top_p"_a = 1.0f, "min_p"_a = 0.0f, "repetition_penalty"_a = 1.0f, "repetition_window"_a = 64,
           "seed"_a = 0, "context"_a = nb::none())
      .def("step", &Generation::step, "New texts as (prompt, text); None once all answers are done.")
      .def("cancel", &Generation::cancel, "Ends the answers at the next step.")
      .def("result", &Generation::result, "prompt"_a)
      .def_prop_ro("timing", &Generation::timing);
}

}  // namespace

void bind_model(nb::module_& module) {
  bind_config(module);
  nb::class_<Model>(module, "LoadedModel", "A model whose layers run on the library's operators; Model wraps it.")
      .def_static("load", &load, "path"_a, "exact"_a = false, "context"_a = nb::none())
      .def_prop_ro("config", &Model::config, nb::rv_policy::reference_internal)
      .def_prop_ro("tokenizer", &Model::tokenizer, nb::rv_policy::reference_internal)
      .def_prop_ro("weight_bytes", &Model::weight_bytes, "Bytes of weights that a decoded token reads.")
      .def_prop_ro("kv_bytes_per_token", &Model::kv_bytes_per_token)
      .def("forward", &forward, "cache"_a, "slices"_a, "all_logits"_a = false, "context"_a = nb::none(),
           "Appends tokens to sequences, (sequence, tokens) each, and gives the logits [rows, vocab_size] of the last "
           "token of each or of all tokens.")
      .def("perplexity", &run_perplexity, "tokens"_a, "context_len"_a = 512, "max_windows"_a = 0,
           "context"_a = nb::none(),
           "exp of the mean negative log likelihood of the tokens after the middle of non-overlapping windows, and how "
           "many those are.");
  bind_cache(module);
  bind_generation(module);
}

}  // namespace ops_transformer::python
