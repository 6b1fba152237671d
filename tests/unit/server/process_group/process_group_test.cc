#include "server/process_group/process_group.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace norm::server {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

TEST(DealDevicesTest, GoesRoundAndLeavesNobodyWithout) {
  EXPECT_THAT(DealDevices({"0", "1", "2", "3", "4"}, 2), ElementsAre("0,2,4", "1,3"));
  EXPECT_THAT(DealDevices({"GPU-a", "GPU-b"}, 2), ElementsAre("GPU-a", "GPU-b"));
  EXPECT_THAT(DealDevices({"5", "7"}, 1), ElementsAre("5,7"));
}

/// A socket that listens on 127.0.0.1 as a member does.
int ListenShared(const std::string& address) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0) << address;
  EXPECT_EQ(listen(fd, 1), 0);
  return fd;
}

TEST(SharedPortTest, LetsMembersListenAndNoOtherGroup) {
  const auto first = SharedPort::Reserve("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(first->address(), Not(EndsWith(":0")));
  const int member = ListenShared(first->address());
  const int another = ListenShared(first->address());
  const auto second = SharedPort::Reserve(first->address());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr("cannot listen on " + first->address()));
  close(member);
  close(another);
}

TEST(SharedPortTest, IsFreeAgainAfterwards) {
  std::string address;
  {
    const auto port = SharedPort::Reserve("127.0.0.1:0");
    ASSERT_TRUE(port.ok()) << port.status();
    address = port->address();
  }
  EXPECT_TRUE(SharedPort::Reserve(address).ok());
}

TEST(SharedPortTest, RefusesWhatIsNoAddress) {
  for (const char* listen : {"nowhere", ":80", "no.such.host.invalid:80", "127.0.0.1:port"}) {
    EXPECT_EQ(SharedPort::Reserve(listen).status().code(), absl::StatusCode::kInvalidArgument)
        << listen;
  }
}

}  // namespace
}  // namespace norm::server
