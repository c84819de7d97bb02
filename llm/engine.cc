// SPDX-License-Identifier: Apache-2.0
#include "llm/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "llm/tokenizer/text_stream.h"
#include "ops_transformer/base/validate.h"

namespace ops_transformer::llm {

std::string_view finish_reason_name(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::running:
      return "running";
    case FinishReason::end_of_text:
      return "end_of_text";
    case FinishReason::stop_string:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
  }
  return "";
}

namespace {

std::int64_t checked_context_len(const Model& model, std::int64_t context_len) {
  const std::int64_t longest = model.config().context_len;
  if (context_len < 0 || context_len > longest) {
    invalid("generate",
            fmt::format("context_len is {}, must be from 1 to {}, the model's, or 0 for that", context_len, longest));
  }
  return context_len > 0 ? context_len : longest;
}

// Tokens that the answer to a request may have, in a sequence that already has `length`.
std::int64_t answer_len(const GenerateRequest& request, std::int64_t length, std::int64_t context_len) {
  if (request.prompt.empty()) invalid("generate", "the prompt has no tokens");
  if (request.options.max_tokens < 1) {
    invalid("generate", fmt::format("max_tokens is {}, must be at least 1", request.options.max_tokens));
  }
  const auto used = std::int64_t(request.prompt.size()) + length;
  if (used >= context_len) {
    invalid("generate",
            fmt::format("the prompt takes {} tokens, the context holds {}: no room for an answer", used, context_len));
  }
  return std::min(request.options.max_tokens, context_len - used);
}

}  // namespace

std::int64_t cache_tokens(const Model& model, std::span<const GenerateRequest> requests, std::int64_t context_len) {
  if (requests.empty()) invalid("generate", "requests is empty, must hold at least one");
  std::int64_t tokens = 0;
  for (const GenerateRequest& request : requests) {
    tokens += std::int64_t(request.prompt.size()) + answer_len(request, 0, checked_context_len(model, context_len));
  }
  return tokens;
}

struct Generation::Answer {
  Answer(const Model& model, GenerateRequest wanted, std::size_t position)
      : request(std::move(wanted)),
        index(position),
        sampler(request.options.sampler),
        text(model.tokenizer(), request.options.stop, request.prompt.back()) {}

  bool in_prefill() const { return num_read < std::int64_t(request.prompt.size()); }

  GenerateRequest request;
  std::size_t index;
  SequenceId sequence{};
  std::int64_t num_read = 0;    // prompt tokens in the cache
  std::int64_t max_tokens = 0;  // what fits
  Sampler sampler;
  TextStream text;
  GenerateResult result;
  bool cancel = false;
};

Generation::Generation(Context& context, const Model& model, KvPool& pool, std::vector<GenerateRequest> requests,
                       const Options& options)
    : context_(context), model_(model), pool_(pool), options_(options) {
  if (options.prefill_chunk < 1)
    invalid("generate", fmt::format("prefill_chunk is {}, must be at least 1", options.prefill_chunk));
  const std::int64_t context_len = checked_context_len(model, options.context_len);
  for (GenerateRequest& request : requests) {
    const std::int64_t length = request.sequence ? pool.length(*request.sequence) : 0;
    const std::int64_t max_tokens = answer_len(request, length, context_len);
    answers_.push_back(std::make_unique<Answer>(model, std::move(request), answers_.size()));
    Answer& answer = *answers_.back();
    answer.max_tokens = max_tokens;
    if (answer.request.sequence) answer.sequence = *answer.request.sequence;
    for (TokenId token : answer.request.prompt) answer.sampler.accept(token);
  }
  for (auto& answer : answers_) {
    if (!answer->request.sequence) answer->sequence = pool_.add_sequence();
  }
}

Generation::~Generation() {
  for (auto& answer : answers_) {
    if (!answer->request.sequence && answer->result.finish == FinishReason::running)
      pool_.remove_sequence(answer->sequence);
  }
}

bool Generation::done() const noexcept {
  return std::ranges::all_of(answers_, [](const auto& a) { return a->result.finish != FinishReason::running; });
}

void Generation::cancel(std::size_t request) noexcept {
  if (request < answers_.size()) answers_[request]->cancel = true;
}

const GenerateResult& Generation::result(std::size_t request) const {
  if (request >= answers_.size()) {
    invalid("generate", fmt::format("request is {}, there are {}", request, answers_.size()));
  }
  return answers_[request]->result;
}

void Generation::finish(Answer& answer, FinishReason reason, TextEvent& event) {
  if (reason != FinishReason::stop_string) {
    event.text += answer.text.finish();
    if (answer.text.stopped()) reason = FinishReason::stop_string;
  }
  event.finish = answer.result.finish = reason;
  if (!answer.request.sequence) pool_.remove_sequence(answer.sequence);
}

TextEvent Generation::accept(Answer& answer, TokenId token) {
  TextEvent event{answer.index, "", FinishReason::running};
  answer.result.tokens.push_back(token);
  answer.sampler.accept(token);
  if (model_.tokenizer().is_end_of_generation(token) && !answer.request.options.ignore_eos) {
    finish(answer, FinishReason::end_of_text, event);
  } else {
    event.text = answer.text.push(token);
    if (answer.text.stopped()) {
      finish(answer, FinishReason::stop_string, event);
    } else if (std::int64_t(answer.result.tokens.size()) >= answer.max_tokens) {
      finish(answer, FinishReason::length, event);
    }
  }
  answer.result.text += event.text;
  return event;
}

TokenId Generation::sample(Answer& answer, std::span<const float> logits) const {
  try {
    return answer.sampler.sample(logits);
  } catch (const InvalidArgument& error) {
    throw InvalidFile(fmt::format("the model's logits after {} tokens are not numbers: {}",
                                  pool_.length(answer.sequence), error.what()));
  }
}

std::vector<TextEvent> Generation::step() {
  std::vector<TextEvent> events;
  std::vector<TokenId> tokens;
  std::vector<BatchSlice> slices;
  std::vector<std::int64_t> logit_rows;
  std::vector<Answer*> running, sampled;
  std::int64_t room = options_.prefill_chunk, prompt_tokens = 0;
  for (auto& answer : answers_) {
    if (answer->result.finish != FinishReason::running) continue;
    if (answer->cancel) {
      TextEvent event{answer->index, "", FinishReason::running};
      finish(*answer, FinishReason::cancelled, event);
      answer->result.text += event.text;
      events.push_back(std::move(event));
      continue;
    }
    const std::int64_t unread = std::int64_t(answer->request.prompt.size()) - answer->num_read;
    const std::int64_t count = unread > 0 ? std::min(room, unread) : 1;
    if (count == 0) continue;
    if (unread > 0) {
      const auto first = answer->request.prompt.begin() + answer->num_read;
      tokens.insert(tokens.end(), first, first + count);
      room -= count;
      prompt_tokens += count;
    } else {
      tokens.push_back(answer->result.tokens.back());
    }
    slices.push_back({answer->sequence, count});
    running.push_back(answer.get());
    if (count >= unread) {
      logit_rows.push_back(std::int64_t(tokens.size()) - 1);
      sampled.push_back(answer.get());
    }
  }
  // Cancelled requests are reported at once, so that a failure below can't lose their events.
  if (tokens.empty() || !events.empty()) return events;

  const auto start = std::chrono::steady_clock::now();
  const std::int64_t vocab_size = model_.config().vocab_size;
  logits_.resize(std::max(logits_.size(), logit_rows.size() * std::size_t(vocab_size)));
  model_.forward(context_, pool_, {tokens, slices, logit_rows},
                 {logits_.data(), DType::f32, {std::int64_t(logit_rows.size()), vocab_size}});
  std::vector<TokenId> next;
  try {
    for (std::size_t i = 0; i < sampled.size(); ++i) {
      next.push_back(sample(*sampled[i], {logits_.data() + std::int64_t(i) * vocab_size, std::size_t(vocab_size)}));
    }
  } catch (...) {
    for (const BatchSlice& slice : slices) {
      pool_.truncate(slice.sequence, pool_.length(slice.sequence) - slice.num_tokens);
    }
    throw;
  }
  for (std::size_t i = 0; i < running.size(); ++i) {
    if (running[i]->in_prefill()) running[i]->num_read += slices[i].num_tokens;
  }
  for (std::size_t i = 0; i < sampled.size(); ++i) events.push_back(accept(*sampled[i], next[i]));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (prompt_tokens > 0) {
    timing_.prefill_tokens += prompt_tokens;
    timing_.prefill_seconds += seconds;
  } else {
    timing_.decode_tokens += std::int64_t(tokens.size());
    timing_.decode_seconds += seconds;
  }
  return events;
}

}  // namespace ops_transformer::llm
