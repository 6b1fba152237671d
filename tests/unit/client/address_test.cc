// Addresses that Client::Create takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "address.h"
#include "norm/client/client.h"

namespace norm::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

TEST(AddressTest, TakesHostsWithPortsAndTargetsOfGrpc) {
  for (const char* address :
       {"127.0.0.1:8470", "localhost:1", "a-b_c.example.org:65535", "[::1]:8470",
        "[fe80::1%eth0]:8470", "unix:/run/normd.sock", "unix:///run/normd.sock",
        "unix-abstract:normd", "dns:///name:8470", "dns:name:8470", "dns://8.8.8.8/name:8470",
        "ipv4:127.0.0.1:8470,127.0.0.2:8470", "ipv6:[::1]:8470",
        "10.0.0.1:8470,normd-2:8470,[::1]:8470", "dns:///normd:8470,unix:/run/normd.sock"}) {
    const absl::Status status = Client::Create(address).status();
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(AddressTest, TellsServersOfAnAddressApart) {
  const struct {
    std::string address;
    std::vector<std::string> names;
    TargetKind kind;
  } cases[] = {
      {"127.0.0.1:8470", {"127.0.0.1:8470"}, TargetKind::kOneServer},
      {"[::1]:8470", {"[::1]:8470"}, TargetKind::kOneServer},
      {"a:1,[::1]:2,10.0.0.1:3", {"a:1", "[::1]:2", "10.0.0.1:3"}, TargetKind::kReplicas},
      {"dns:///normd:8470", {"dns:///normd:8470"}, TargetKind::kReplicas},
      {"dns:///a:1,dns:b:2", {"dns:///a:1", "dns:b:2"}, TargetKind::kReplicas},
      {"ipv4:127.0.0.1:1", {"ipv4:127.0.0.1:1"}, TargetKind::kOneServer},
      {"ipv4:127.0.0.1:1,127.0.0.2:2", {"ipv4:127.0.0.1:1,127.0.0.2:2"}, TargetKind::kReplicas},
      {"ipv6:[::1]:1,[::2]:2", {"ipv6:[::1]:1,[::2]:2"}, TargetKind::kReplicas},
      {"vsock:2:8470", {"vsock:2:8470"}, TargetKind::kOneServer},
      {"xds:///normd", {"xds:///normd"}, TargetKind::kOneServer},
      {"unix:/run/normd.sock", {"unix:/run/normd.sock"}, TargetKind::kOneServer},
      {"unix:/run/a,b:1", {"unix:/run/a", "b:1"}, TargetKind::kReplicas},
      {"unix:///run/a,unix:b", {"unix:///run/a", "unix:b"}, TargetKind::kReplicas},
      {"a:1,unix-abstract:b,d:2", {"a:1", "unix-abstract:b", "d:2"}, TargetKind::kReplicas},
      {"unix-abstract:normd", {"unix-abstract:normd"}, TargetKind::kOneServer},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(CheckAddress(one.address), absl::OkStatus());
    const Targets targets = SplitTargets(one.address);
    EXPECT_THAT(targets.names, ElementsAreArray(one.names)) << one.address;
    EXPECT_EQ(targets.kind, one.kind) << one.address;
    EXPECT_THAT(Replicas(one.address), ElementsAreArray(one.names));
  }
}

TEST(AddressTest, NamesTheAddressAndTheRule) {
  const struct {
    std::string address;
    std::string rule;
  } cases[] = {
      {"", "is empty"},
      {"localhost", "has no port"},
      {"localhost:", "port '' is not a number"},
      {"localhost:http", "port 'http' is not a number"},
      {"localhost:-1", "port '-1' is not a number"},
      {"localhost:+80", "port '+80' is not a number"},
      {"localhost:0", "port 0 is outside [1, 65535]"},
      {"127.0.0.1:65536", "port 65536 is outside [1, 65535]"},
      {"127.0.0.1:111325", "port 111325 is outside [1, 65535]"},
      {"127.0.0.1:99999999999999999999", "port 99999999999999999999 is outside [1, 65535]"},
      {":8470", "the host is empty"},
      {"[]:8470", "the host is empty"},
      {" localhost:8470", "a space"},
      {"local host:8470", "a space"},
      {"localhost:8470\n", "a space"},
      {"::1:8470", "an IPv6 address stands in brackets"},
      {"[::1:8470", "is not [IPv6]:port"},
      {"[::1]8470", "is not [IPv6]:port"},
      {"[localhost]:8470", "is not [IPv6]:port"},
      {"http://localhost:8470", "the host 'http://localhost' has a '/'"},
      {"user@localhost:8470", "the host 'user@localhost' has a '@'"},
      {"dns:///name:70000", "port 70000 is outside [1, 65535]"},
      {"dns:///:8470", "the host is empty"},
      {"ipv4:127.0.0.1:8470,127.0.0.2:0", "port 0 is outside [1, 65535]"},
      {"unix:", "no path"},
      {"unix:/run/a,b:http", "address 'b:http': port 'http' is not a number"},
      {"unix:/run/a, b", "address 'unix:/run/a, b': a space"},
      {"unix:/run/a,b.sock", "address 'unix:/run/a,b.sock': gRPC can reach no Unix socket"},
      {"unix:/run/a%2cb.sock", "address 'unix:/run/a%2cb.sock': gRPC can reach no Unix socket"},
      {"h:1,unix-abstract:a,0,h:2", "address 'unix-abstract:a,0': gRPC can reach no Unix socket"},
      {"a:1,", "address '': is empty"},
      {"a:1,b", "address 'b': has no port"},
      {"a:1, b:2", "address ' b:2': a space"},
  };
  for (const auto& wrong : cases) {
    const absl::Status status = Client::Create(wrong.address).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.address;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("address"), HasSubstr(wrong.rule)));
  }
}

}  // namespace
}  // namespace norm::client
