// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ops_transformer/base/export.h"

namespace ops_transformer {

/// Threads that the process may use: the smaller of its CPU affinity at load and its cgroup's quota, or
/// OPS_TRANSFORMER_NUM_THREADS. Throws InvalidArgument where that variable is no number from 1 to 1024.
OPS_TRANSFORMER_API int default_num_threads();

/// CPUs' worth of time that the process's cgroups grant (v1 or v2, the tightest up to the root); infinity without a
/// quota.
double cgroup_cpus(const std::string& self_cgroup = "/proc/self/cgroup", const std::string& mount = "/sys/fs/cgroup");

/// Lets the calling thread run on every CPU that the process had at load. A thread made later may have inherited less:
/// OpenMP pins its master.
void use_process_cpus() noexcept;

}  // namespace ops_transformer
