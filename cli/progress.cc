// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace ops_transformer::cli {

ProgressBar::ProgressBar(std::string title) : title_(std::move(title)), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::update(double fraction, const std::string& note) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  constexpr int kWidth = 30;
  const int filled = int(std::clamp(fraction, 0.0, 1.0) * kWidth);
  fmt::print(stderr, "\r{} [{:#<{}}{:.<{}}] {:3.0f} % {}\033[K", title_, "", filled, "", kWidth - filled,
             fraction * 100, note);
  std::fflush(stderr);
}

}  // namespace ops_transformer::cli
