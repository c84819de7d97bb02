// SPDX-License-Identifier: Apache-2.0
#include "cli/child.h"

#include <sys/wait.h>
#include <unistd.h>

#include "ops_transformer/base/error.h"

namespace ops_transformer::cli {

Json run_in_child(std::vector<std::string> words) {
  words.insert(words.begin(), "ops-transformer");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int ends[2];
  if (pipe(ends) != 0) throw SystemFailure("can't make a pipe");
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  close(ends[1]);
  std::string output;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) output.append(buffer, std::size_t(n));
  close(ends[0]);
  int status = 0;
  constexpr const char* kFailure = "the measuring process failed";
  if (child < 0 || waitpid(child, &status, 0) != child) throw SystemFailure(kFailure);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kUsage) throw InvalidArgument(kFailure);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kBadFile) throw InvalidFile(kFailure);
  if (status != 0) throw SystemFailure(kFailure);
  return Json::parse(output);
}

}  // namespace ops_transformer::cli
