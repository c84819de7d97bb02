// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/cpu_count.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string_view>
#include <system_error>

#include "ops_transformer/base/error.h"

namespace ops_transformer {
namespace {

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

struct ProcessCpus {
  cpu_set_t set;
  bool known;  // false on machines with more CPUs than a cpu_set_t holds
};
const ProcessCpus kProcessCpus = [] {
  ProcessCpus cpus;
  CPU_ZERO(&cpus.set);
  cpus.known = sched_getaffinity(0, sizeof cpus.set, &cpus.set) == 0;
  return cpus;
}();

double quota_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return kNoQuota;
  const double cpus = std::strtod(quota.c_str(), nullptr) / period;
  return cpus > 0 ? cpus : kNoQuota;
}

double quota_v1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
  double quota = -1, period = 0;
  if (!(quota_file >> quota && period_file >> period) || quota <= 0 || period <= 0) return kNoQuota;
  return quota / period;
}

// The least that `read` finds in root + path and the folders above it. In a container the path may be the host's and
// not exist; the root itself is then the container's group.
double tightest(double read(const std::string&), const std::string& root, std::string path) {
  double least = kNoQuota;
  while (true) {
    least = std::min(least, read(root + path));
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return least;
    path.resize(slash);
  }
}

bool lists_cpu(std::string_view controllers) {
  while (!controllers.empty()) {
    const std::size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == "cpu") return true;
    controllers = comma == std::string_view::npos ? std::string_view{} : controllers.substr(comma + 1);
  }
  return false;
}

}  // namespace

double cgroup_cpus(const std::string& self_cgroup, const std::string& mount) {
  double least = kNoQuota;
  std::ifstream groups(self_cgroup);
  for (std::string line; std::getline(groups, line);) {  // "id:controllers:path"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) {
      least = std::min(least, tightest(quota_v2, mount, path));
    } else if (lists_cpu(controllers)) {
      least =
          std::min({least, tightest(quota_v1, mount + "/cpu", path), tightest(quota_v1, mount + "/cpu,cpuacct", path)});
    }
  }
  return least;
}

void use_process_cpus() noexcept {
  if (kProcessCpus.known) pthread_setaffinity_np(pthread_self(), sizeof kProcessCpus.set, &kProcessCpus.set);
}

int default_num_threads() {
  if (const char* wanted = std::getenv("OPS_TRANSFORMER_NUM_THREADS"); wanted && *wanted) {
    const std::string_view text = wanted;
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > 1024) {
      throw InvalidArgument(fmt::format("OPS_TRANSFORMER_NUM_THREADS is '{}', must be a number from 1 to 1024", text));
    }
    return value;
  }
  const double cpus = kProcessCpus.known ? CPU_COUNT(&kProcessCpus.set) : double(sysconf(_SC_NPROCESSORS_ONLN));
  return int(std::clamp(std::min(cpus, cgroup_cpus()) + 0.5, 1.0, 1024.0));
}

}  // namespace ops_transformer
