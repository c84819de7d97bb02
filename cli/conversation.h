// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "llm/chat_template.h"
#include "llm/engine.h"
#include "llm/model.h"

namespace ops_transformer::cli {

/// What becomes of a turn that the context has no room for.
enum class Overflow : std::uint8_t {
  error,  // it is undone, and the error has both counts
  cut,    // the answer ends where the context does; a question that alone leaves no room is undone
  shift,  // the oldest turns are forgotten until the question and the longest answer fit; then as cut
};

struct ConversationOptions {
  llm::GenerateOptions answer{};
  std::string system{};          // empty: the template's own
  std::int64_t context_len = 0;  // 0: the model's
  Overflow overflow = Overflow::error;
};

struct Turn {
  llm::GenerateResult answer;
  std::size_t num_forgotten = 0;  // earlier turns that made room for this one
  bool context_full = false;      // the answer ends where the context does
};

/// A talk with a model. Its cache keeps what the turns have in common, so that a turn costs its new tokens alone.
class Conversation {
 public:
  /// All but `options` must outlive the conversation. Throws InvalidArgument.
  Conversation(Context& context, const llm::Model& model, const llm::ChatTemplate& chat, ConversationOptions options);

  /// Answers `question`. on_text is given the answer piece by piece; where `stops` is true between two tokens the
  /// answer ends there and stays. Throws InvalidArgument where the context has no room, and what Generation throws; the
  /// conversation is then as it was.
  Turn ask(const std::string& question, const std::function<void(std::string_view)>& on_text,
           const std::function<bool()>& stops);

  /// Forgets all turns, not the system message.
  void reset();

  const std::vector<llm::ChatMessage>& messages() const noexcept { return messages_; }

 private:
  std::vector<llm::TokenId> make_room(Turn& turn);
  llm::GenerateResult answer(const std::vector<llm::TokenId>& prompt,
                             const std::function<void(std::string_view)>& on_text, const std::function<bool()>& stops);

  Context& context_;
  const llm::Model& model_;
  const llm::ChatTemplate& chat_;
  ConversationOptions options_;
  std::int64_t context_len_;
  KvPool pool_;
  SequenceId sequence_;
  std::vector<llm::ChatMessage> messages_;
  std::size_t num_system_;
  std::vector<llm::TokenId> tokens_;  // of the last turn, question and answer: the cache holds the first of them
};

}  // namespace ops_transformer::cli
