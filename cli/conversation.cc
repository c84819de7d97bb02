// SPDX-License-Identifier: Apache-2.0
#include "cli/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/generate_options.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::cli {

Conversation::Conversation(Context& context, const llm::Model& model, const llm::ChatTemplate& chat,
                           ConversationOptions options)
    : context_(context),
      model_(model),
      chat_(chat),
      options_(std::move(options)),
      context_len_(options_.context_len > 0 ? options_.context_len : model.config().context_len),
      pool_(model.make_kv_pool(context_len_)),
      sequence_(pool_.add_sequence()) {
  if (!options_.system.empty()) messages_.push_back({"system", options_.system});
  num_system_ = messages_.size();
}

void Conversation::reset() { messages_.resize(num_system_); }

// The prompt, with the oldest turns forgotten where that is asked for.
std::vector<llm::TokenId> Conversation::make_room(Turn& turn) {
  const std::int64_t longest = std::min(options_.answer.max_tokens, context_len_);
  for (;; ++turn.num_forgotten) {
    std::vector<llm::TokenId> prompt = encode(model_.tokenizer(), chat_.render(messages_));
    const bool fits = std::int64_t(prompt.size()) <= context_len_ - longest;
    if (fits || options_.overflow != Overflow::shift || messages_.size() == num_system_ + 1) return prompt;
    const auto oldest = messages_.begin() + std::ptrdiff_t(num_system_);
    messages_.erase(oldest, oldest + 2);
  }
}

llm::GenerateResult Conversation::answer(const std::vector<llm::TokenId>& prompt,
                                         const std::function<void(std::string_view)>& on_text,
                                         const std::function<bool()>& stops) {
  // Only what the cache does not yet hold of the conversation is read.
  const auto known = std::min({tokens_.size(), std::size_t(pool_.length(sequence_)), prompt.size() - 1});
  const auto [differs, unused] = std::mismatch(prompt.begin(), prompt.begin() + std::ptrdiff_t(known), tokens_.begin());
  pool_.truncate(sequence_, differs - prompt.begin());
  tokens_ = prompt;
  const llm::GenerateRequest request{
      .prompt = {differs, prompt.end()}, .options = options_.answer, .sequence = sequence_};
  llm::Generation generation(context_, model_, pool_, {request}, {.context_len = context_len_});
  while (!generation.done()) {
    if (stops()) generation.cancel(0);
    for (const llm::TextEvent& event : generation.step()) on_text(event.text);
  }
  const llm::GenerateResult& result = generation.result(0);
  tokens_.insert(tokens_.end(), result.tokens.begin(), result.tokens.end());
  return result;
}

Turn Conversation::ask(const std::string& question, const std::function<void(std::string_view)>& on_text,
                       const std::function<bool()>& stops) {
  const std::vector<llm::ChatMessage> before = messages_;
  try {
    Turn turn;
    messages_.push_back({"user", question});
    const std::vector<llm::TokenId> prompt = make_room(turn);
    turn.answer = answer(prompt, on_text, stops);
    turn.context_full = turn.answer.finish == llm::FinishReason::length && std::int64_t(tokens_.size()) >= context_len_;
    if (turn.context_full && options_.overflow == Overflow::error) {
      throw InvalidArgument(
          fmt::format("chat: the question takes the conversation to {} tokens, the context holds {}: the answer does "
                      "not fit",
                      prompt.size(), context_len_));
    }
    if (turn.answer.text.empty() && turn.answer.finish == llm::FinishReason::cancelled) {
      messages_ = before;
    } else {
      messages_.push_back({"assistant", turn.answer.text});
    }
    return turn;
  } catch (...) {
    messages_ = before;
    throw;
  }
}

}  // namespace ops_transformer::cli
