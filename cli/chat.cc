// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/generate_options.h"
#include "cli/line_reader.h"
#include "llm/formats/output_file.h"
#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::cli {

namespace {

struct Options {
  ModelOptions model;
  AnswerOptions answer;
  ConversationOptions conversation;
};

constexpr std::string_view kHelp =
    "  /reset      forget the conversation, not the system message\n"
    "  /save FILE  write the conversation as JSON\n"
    "  /quit       end, as Ctrl-D does\n"
    "  //TEXT      say /TEXT to the model\n"
    "  TEXT\\       the message goes on in the next line\n"
    "  Ctrl-C      stop the answer, or drop the line\n";

/// The loop of questions, answers and the words that begin with a slash.
class Chat {
 public:
  Chat(Conversation& conversation, const llm::Model& model, bool terminal, bool json)
      : conversation_(conversation), model_(model), terminal_(terminal), json_(json) {}

  /// Returns at the end of the input. Throws what a turn throws, where no person is there to try another one.
  void run() {
    LineReader reader(terminal_);
    for (std::string line; !quits_;) {
      const LineEnd end = reader.read(line);
      if (end == LineEnd::closed) break;
      if (end == LineEnd::interrupted || line.empty()) continue;
      try {
        take(line);
      } catch (const std::exception& error) {
        if (!terminal_) throw;
        fmt::print(stderr, "{}\n", error.what());
      }
    }
  }
  const Json& turns() const { return turns_; }

 private:
  void take(const std::string& line) {
    if (line.starts_with("//")) return ask(line.substr(1));
    if (!line.starts_with('/')) return ask(line);
    constexpr std::string_view kBlanks = " \t";
    const std::size_t last = line.find_last_not_of(kBlanks), blank = std::min(line.find_first_of(kBlanks), last + 1);
    const std::string word = line.substr(0, blank);
    const std::size_t first = std::min(line.find_first_not_of(kBlanks, blank), last + 1);
    const std::string rest = line.substr(first, last + 1 - first);
    if (word == "/save") return save(rest);
    if (!rest.empty()) throw InvalidArgument(fmt::format("chat: {} takes nothing, '{}' stands behind it", word, rest));
    if (word == "/reset") {
      conversation_.reset();
    } else if (word == "/quit") {
      quits_ = true;
    } else if (word == "/help") {
      fmt::print(stderr, "{}", kHelp);
    } else {
      throw InvalidArgument(fmt::format("chat: unknown word '{}'; /help tells which there are", llm::shown(word)));
    }
  }

  void ask(const std::string& question) {
    InterruptFlag::lower();
    const auto show = [&](std::string_view text) {
      if (!json_) print(text);
    };
    const Turn turn = conversation_.ask(question, show, InterruptFlag::raised);
    if (!json_) print("\n");
    if (turn.num_forgotten > 0) {
      fmt::print(stderr, "({} turns forgotten, since the context is full)\n", turn.num_forgotten);
    }
    if (turn.context_full) fmt::print(stderr, "(the answer ends where the context does)\n");
    turns_.push_back({{"user", question},
                      {"assistant", turn.answer.text},
                      {"finish", llm::finish_reason_name(turn.answer.finish)},
                      {"forgotten_turns", turn.num_forgotten},
                      {"context_full", turn.context_full}});
  }

  void save(const std::string& path) {
    if (path.empty()) throw InvalidArgument("chat: /save takes the name of a file");
    Json messages = Json::array();
    for (const llm::ChatMessage& message : conversation_.messages()) {
      messages.push_back({{"role", message.role}, {"content", message.content}});
    }
    const Json saved = {{"model", model_.config().name}, {"messages", messages}};
    const std::string text = saved.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    llm::OutputFile file(path, text.size(), saved_.contains(path));
    file.write(std::as_bytes(std::span(text)));
    file.finish();
    saved_.insert(path);
    fmt::print(stderr, "({} messages saved in {})\n", messages.size(), path);
  }

  Conversation& conversation_;
  const llm::Model& model_;
  bool terminal_, json_, quits_ = false;
  Json turns_ = Json::array();
  std::set<std::string> saved_;  // files of this talk, which may be written again
};

void run(const Options& options) {
  Context context(options.model.context());
  const auto model = options.model.load(context);
  Profiling profiling(context, options.model);
  const bool terminal = isatty(STDIN_FILENO) != 0;
  const auto chat = chat_template(model->tokenizer(), options.answer);
  ConversationOptions conversation_options = options.conversation;
  conversation_options.answer = options.answer.generate_options();
  Conversation conversation(context, *model, *chat, conversation_options);
  Chat talk(conversation, *model, terminal, options.model.json);
  if (terminal) {
    fmt::print(stderr, "{}: /help tells how to talk, Ctrl-D ends\n", llm::shown(model->config().name));
    const InterruptFlag interrupts;
    talk.run();
  } else {
    talk.run();
  }
  if (options.model.json) print_json({{"turns", talk.turns()}});
  profiling.report();
}

}  // namespace

void add_chat(CLI::App& program) {
  static const std::map<std::string, Overflow> kOverflows = {
      {"error", Overflow::error}, {"cut", Overflow::cut}, {"shift", Overflow::shift}};
  auto* command = program.add_subcommand("chat", "Talk with a model: one line a turn, the conversation is kept.");
  auto options = std::make_shared<Options>();
  options->model.add_to(*command);
  ConversationOptions& conversation = options->conversation;
  command->add_option("--system", conversation.system, "system message (default: the template's own)");
  command->add_option("--context", conversation.context_len, "longest conversation in tokens (default: the model's)")
      ->check(whole_number(std::int64_t{1}, kMostTokens));
  command
      ->add_option("--overflow", conversation.overflow,
                   "when the context is full: error undoes the turn, cut ends the answer there, shift forgets the "
                   "oldest turns (default: error)")
      ->transform(CLI::CheckedTransformer(kOverflows))
      ->type_name("error|cut|shift");
  options->answer.add_to(*command);
  command->footer("Words in place of a message:\n" + std::string(kHelp));
  command->callback([options] { run(*options); });
}

}  // namespace ops_transformer::cli
