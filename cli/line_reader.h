// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace ops_transformer::cli {

/// While one lives, Ctrl-C (SIGINT) raises a flag and does not end the program.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  static bool raised() noexcept;
  static void lower() noexcept;
};

enum class LineEnd { complete, interrupted, closed };

/// Lines of standard input. On a terminal they can be edited and earlier ones brought back with the arrow keys (where
/// the build had libedit), after a prompt on standard error; anything else is read as it comes. A backslash at the end
/// of a line joins the next one.
class LineReader {
 public:
  explicit LineReader(bool terminal);

  /// interrupted: Ctrl-C came (InterruptFlag must live) and what was typed is dropped. closed: the input has ended.
  LineEnd read(std::string& line);

 private:
  LineEnd read_part(const char* prompt, std::string& part);

  bool terminal_;
};

}  // namespace ops_transformer::cli
