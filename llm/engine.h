// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llm/model.h"
#include "llm/sampler.h"

namespace ops_transformer::llm {

struct GenerateOptions {
  SamplerOptions sampler{};
  std::int64_t max_tokens = 256;    // at least 1
  std::vector<std::string> stop{};  // text that ends the answer and is not part of it
  bool ignore_eos = false;          // go on past end-of-generation tokens
};

enum class FinishReason : std::uint8_t { running, end_of_text, stop_string, length, cancelled };
OPS_TRANSFORMER_API std::string_view finish_reason_name(FinishReason reason) noexcept;

struct GenerateRequest {
  std::vector<TokenId> prompt;  // at least one token
  GenerateOptions options{};
  std::optional<SequenceId> sequence{};  // continue this sequence of the pool, and leave it there
};

/// Tokens of cache that new sequences for these requests can fill: what to make a pool for. Throws what Generation
/// throws for such requests. context_len as in Generation::Options.
OPS_TRANSFORMER_API std::int64_t cache_tokens(const Model& model, std::span<const GenerateRequest> requests,
                                              std::int64_t context_len = 0);

struct GenerateResult {
  std::string text;
  std::vector<TokenId> tokens;  // as sampled, the one that ended the answer included
  FinishReason finish = FinishReason::running;
};

/// What the steps of a Generation took. A step that reads any prompt tokens counts as prefill.
struct GenerateTiming {
  std::int64_t prefill_tokens = 0, decode_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
};

/// New text of one request. Bytes are whole UTF-8 characters, and never part of a stop string.
struct TextEvent {
  std::size_t request;
  std::string text;
  FinishReason finish;
};

/// Answers one or more requests in one batch: each step runs the next token of every running sequence and the next
/// chunk of waiting prompts through the model together.
class OPS_TRANSFORMER_API Generation {
 public:
  struct Options {
    std::int64_t context_len = 0;      // longest sequence, at most the model's; 0: the model's
    std::int64_t prefill_chunk = 512;  // prompt tokens of one step
  };

  /// `pool` holds the sequences (Model::make_kv_pool). Throws InvalidArgument: an empty prompt, one that leaves no room
  /// for an answer in context_len (the message has both counts), options out of range.
  Generation(Context& context, const Model& model, KvPool& pool, std::vector<GenerateRequest> requests,
             const Options& options);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  bool done() const noexcept;
  /// Runs one step; what it made certain. Throws what Model::forward throws, and InvalidFile where the model's logits
  /// are not numbers; requests and sequences are then as they were, and another step tries again.
  std::vector<TextEvent> step();
  /// Ends a request at the next step.
  void cancel(std::size_t request) noexcept;

  const GenerateResult& result(std::size_t request) const;
  const GenerateTiming& timing() const noexcept { return timing_; }

 private:
  struct Answer;

  TokenId sample(Answer& answer, std::span<const float> logits) const;
  void finish(Answer& answer, FinishReason reason, TextEvent& event);
  TextEvent accept(Answer& answer, TokenId token);

  Context& context_;
  const Model& model_;
  KvPool& pool_;
  Options options_;
  std::vector<std::unique_ptr<Answer>> answers_;
  std::vector<float> logits_;
  GenerateTiming timing_;
};

}  // namespace ops_transformer::llm
