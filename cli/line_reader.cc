// SPDX-License-Identifier: Apache-2.0
#include "cli/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#if defined(OPS_TRANSFORMER_HAVE_LIBEDIT)
  #include <editline/readline.h>
#endif

namespace ops_transformer::cli {
namespace {

volatile std::sig_atomic_t interrupt_raised = 0;
struct sigaction action_before;

}  // namespace

InterruptFlag::InterruptFlag() {
  lower();
  struct sigaction action{};
  action.sa_handler = [](int) { interrupt_raised = 1; };  // no SA_RESTART: reading a line must end too
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &action_before);
}
InterruptFlag::~InterruptFlag() { sigaction(SIGINT, &action_before, nullptr); }
bool InterruptFlag::raised() noexcept { return interrupt_raised != 0; }
void InterruptFlag::lower() noexcept { interrupt_raised = 0; }

LineReader::LineReader(bool terminal) : terminal_(terminal) {
#if defined(OPS_TRANSFORMER_HAVE_LIBEDIT)
  rl_outstream = stderr;
  rl_catch_signals = 0;
#endif
}

LineEnd LineReader::read(std::string& line) {
  line.clear();
  for (std::string part;; line += '\n') {
    const LineEnd end = read_part(line.empty() ? "> " : "… ", part);
    if (end == LineEnd::interrupted) return end;
    if (end == LineEnd::closed) return line.empty() ? end : LineEnd::complete;
    const bool goes_on = part.ends_with('\\');
    if (goes_on) part.pop_back();
    line += part;
    if (!goes_on) break;
  }
#if defined(OPS_TRANSFORMER_HAVE_LIBEDIT)
  if (terminal_ && !line.empty()) add_history(line.c_str());
#endif
  return LineEnd::complete;
}

#if defined(OPS_TRANSFORMER_HAVE_LIBEDIT)

namespace {

struct Edited {
  bool done = false;
  std::optional<std::string> line;
} edited;  // the library's callback has no argument of ours

}  // namespace

LineEnd LineReader::read_part(const char* prompt, std::string& part) {
  if (!terminal_) {
    return std::getline(std::cin, part) ? LineEnd::complete : LineEnd::closed;
  }
  edited = {};
  InterruptFlag::lower();
  rl_callback_handler_install(prompt, [](char* line) {
    rl_callback_handler_remove();
    edited = {true, line ? std::optional<std::string>(line) : std::nullopt};
    std::free(line);
  });
  while (!edited.done) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (poll(&input, 1, -1) > 0) {
      rl_callback_read_char();
    } else if (InterruptFlag::raised()) {
      rl_callback_handler_remove();
      std::fputs("\n", stderr);
      return LineEnd::interrupted;
    }
  }
  if (!edited.line) return LineEnd::closed;
  part = *edited.line;
  return LineEnd::complete;
}

#else

LineEnd LineReader::read_part(const char* prompt, std::string& part) {
  if (terminal_) std::fputs(prompt, stderr);
  InterruptFlag::lower();
  if (std::getline(std::cin, part)) return LineEnd::complete;
  if (!InterruptFlag::raised()) return LineEnd::closed;
  std::cin.clear();
  clearerr(stdin);
  std::fputs("\n", stderr);
  return LineEnd::interrupted;
}

#endif

}  // namespace ops_transformer::cli
