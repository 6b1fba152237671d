// Files as kernels write them: proc_pid_mountinfo(5), cgroups(7), "CPU Interface Files" of cgroup-v2.
#include "server/device/usable_cores.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "tests/unit/client/scratch_folder.h"

namespace norm::server {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr char kOtherMounts[] =
    "22 27 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n"
    "not a mount\n"
    "30 22 0:26 / /sys/fs/pstore rw,nosuid shared:9 - pstore pstore rw\n";
constexpr char kV2[] =
    "31 22 0:27 / /sys/fs/cgroup ro,nosuid shared:10 - cgroup2 cgroup rw,nsdelegate\n";
constexpr char kV1Cpu[] = "/sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";

class CpuLimitTest : public testing::Test {
 protected:
  void Write(const std::filesystem::path& path, const std::string& text) {
    const std::filesystem::path whole = folder_ / path.string();
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  void Mounts(const std::string& lines) {
    Write("proc/self/mountinfo", std::string(kOtherMounts) + lines);
  }
  void Groups(const std::string& lines) { Write("proc/self/cgroup", lines); }
  double Limit() const { return CpuLimit(std::filesystem::path(folder_ / "")); }

 private:
  const client::ScratchFolder folder_;
};

TEST_F(CpuLimitTest, IsThatOfTheContainerWhoseRootIsItsGroup) {
  Mounts(kV2);
  Groups("0::/\n");
  Write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(Limit(), 1.5);
}

TEST_F(CpuLimitTest, IsTheLeastOfTheGroupsFromTheMountDown) {
  Mounts(kV2);
  Groups("0::/kubepods/burstable/pod1/one\n");
  Write("sys/fs/cgroup/kubepods/cpu.max", "1600000 100000\n");
  Write("sys/fs/cgroup/kubepods/burstable/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/kubepods/burstable/pod1/cpu.max", "50000 20000\n");
  Write("sys/fs/cgroup/kubepods/burstable/pod1/one/cpu.max", "400000 100000\n");
  Write("sys/fs/cgroup/kubepods/burstable/pod2/cpu.max", "1000 100000\n");
  EXPECT_EQ(Limit(), 2.5);
}

TEST_F(CpuLimitTest, IsNoneWhereNothingLimits) {
  Mounts(kV2);
  Groups("0::/system.slice/normd.service\n");
  EXPECT_EQ(Limit(), kNoLimit);
  Write("sys/fs/cgroup/system.slice/normd.service/cpu.max", "max 100000\n");
  EXPECT_EQ(Limit(), kNoLimit);
}

TEST_F(CpuLimitTest, IsThatOfVersion1BesideVersion2) {
  Mounts(std::string(kV2) + "33 22 0:29 / " + kV1Cpu +
         "34 22 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n");
  Groups("12:cpuset:/elsewhere\n4:cpu,cpuacct:/system.slice/normd.service\n0::/\n");
  Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Limit(), kNoLimit);
  Write("sys/fs/cgroup/cpu,cpuacct/system.slice/normd.service/cpu.cfs_quota_us", "300000\n");
  Write("sys/fs/cgroup/cpu,cpuacct/system.slice/normd.service/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Limit(), 3);
}

// Docker with version 1: the mount shows the container's group, /proc its path on the host.
TEST_F(CpuLimitTest, IsFoundBelowAMountOfTheContainersGroup) {
  Mounts(std::string("33 22 0:29 /docker/4f ") + kV1Cpu);
  Groups("4:cpu,cpuacct:/docker/4f\n");
  Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
  Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Limit(), 0.5);
  Groups("4:cpu,cpuacct:/docker/4f/inner\n");
  Write("sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us", "25000\n");
  Write("sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Limit(), 0.25);
}

TEST_F(CpuLimitTest, IsNoneOfFilesThatAreMissingOrBroken) {
  EXPECT_EQ(Limit(), kNoLimit);
  Mounts("33 22 0:29 / /sys/fs/cgroup\n" + std::string(kV2));
  EXPECT_EQ(Limit(), kNoLimit);
  Groups("broken\n0::/\n");
  for (const char* text : {"", "100000", "0 100000\n", "100000 0\n", "many 100000\n", "1 2 3\n"}) {
    Write("sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(Limit(), kNoLimit) << text;
  }
}

TEST(UsableCoresTest, AreOneAtLeastAndNoMoreThanTheLimit) {
  EXPECT_GE(UsableCores(), 1);
  EXPECT_LT(UsableCores(), CpuLimit() + 1);
}

}  // namespace
}  // namespace norm::server
