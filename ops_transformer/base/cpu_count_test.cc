// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/cpu_count.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "ops_transformer/base/error.h"

namespace ops_transformer {
namespace {

class Cgroup : public testing::Test {
 protected:
  Cgroup() : root_(testing::TempDir() + "cgroup_test") { std::filesystem::remove_all(root_); }
  ~Cgroup() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }
  double cpus() const { return cgroup_cpus(root_ + "/self", root_ + "/mount"); }

  std::string root_;
};

TEST_F(Cgroup, WithoutFilesThereIsNoQuota) { EXPECT_TRUE(std::isinf(cpus())); }

TEST_F(Cgroup, Version2TakesTheTightestOnTheWayUp) {
  write("/self", "0::/system.slice/job.service");
  write("/mount/system.slice/job.service/cpu.max", "max 100000");
  EXPECT_TRUE(std::isinf(cpus()));
  write("/mount/system.slice/cpu.max", "150000 100000");
  EXPECT_EQ(cpus(), 1.5);
  write("/mount/system.slice/job.service/cpu.max", "50000 100000");
  EXPECT_EQ(cpus(), 0.5);
}

TEST_F(Cgroup, Version1ReadsQuotaAndPeriod) {
  write("/self", "3:memory:/other\n2:cpu,cpuacct:/job\n1:cpuset:/job");
  write("/mount/cpu/job/cpu.cfs_quota_us", "-1");
  write("/mount/cpu/job/cpu.cfs_period_us", "100000");
  EXPECT_TRUE(std::isinf(cpus()));
  write("/mount/cpu/job/cpu.cfs_quota_us", "300000");
  EXPECT_EQ(cpus(), 3.0);
}

// In a container the path may be the host's; the mount is then the container's own group.
TEST_F(Cgroup, PathsOfTheHostFallBackToTheMount) {
  write("/self", "0::/docker/0123abc");
  write("/mount/cpu.max", "200000 100000");
  EXPECT_EQ(cpus(), 2.0);
}

TEST_F(Cgroup, NonsenseIsNoQuota) {
  write("/self", "0::/a\nnonsense\n::\n0::");
  write("/mount/a/cpu.max", "many of");
  write("/mount/cpu.max", "0 0");
  EXPECT_TRUE(std::isinf(cpus()));
}

TEST(DefaultNumThreads, TheEnvironmentDecides) {
  EXPECT_GE(default_num_threads(), 1);
  for (const char* bad : {"0", "-2", "two", "3x", "1025", "99999999999"}) {
    setenv("OPS_TRANSFORMER_NUM_THREADS", bad, 1);
    EXPECT_THROW(default_num_threads(), InvalidArgument) << bad;
  }
  setenv("OPS_TRANSFORMER_NUM_THREADS", "7", 1);
  EXPECT_EQ(default_num_threads(), 7);
  unsetenv("OPS_TRANSFORMER_NUM_THREADS");
}

}  // namespace
}  // namespace ops_transformer
