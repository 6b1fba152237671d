// A TCP connection through a third party that can break it.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "tests/support/loopback_listener.h"

namespace norm::test {

/// Forwards one connection to a server on the loopback interface.
///
/// Threads: one of its own, joined on destruction.
class TcpRelay {
 public:
  /// `server`: 127.0.0.1:port.
  explicit TcpRelay(const std::string& server) {
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(server.substr(server.rfind(':') + 1), &port)) << server;
    server_port_ = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(pipe(wake_), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~TcpRelay() { Break(); }
  TcpRelay(const TcpRelay&) = delete;
  TcpRelay& operator=(const TcpRelay&) = delete;

  const std::string& address() const { return listener_.address(); }

  /// Resets the connection on both sides and takes no other. Returns when that is done.
  void Break() {
    if (!thread_.joinable()) return;
    const char byte = 0;
    EXPECT_EQ(write(wake_[1], &byte, 1), 1);
    thread_.join();
    listener_.Close();
    for (const int fd : wake_) close(fd);
  }

 private:
  /// With an RST instead of a FIN.
  static void Reset(int fd) {
    const linger abort = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort, sizeof(abort));
    close(fd);
  }
  /// False when woken.
  bool AwaitReadable(int fd) const {
    std::array<pollfd, 2> fds = {pollfd{wake_[0], POLLIN, 0}, pollfd{fd, POLLIN, 0}};
    while (poll(fds.data(), fds.size(), -1) < 0) {
    }
    return fds[0].revents == 0;
  }
  static bool Forward(int from, int to) {
    std::array<char, 16384> buffer;
    const ssize_t got = recv(from, buffer.data(), buffer.size(), 0);
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t more =
          send(to, buffer.data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (more <= 0) return false;
      sent += more;
    }
    return got > 0;
  }

  void Run() {
    if (!AwaitReadable(listener_.fd())) return;
    const int client = listener_.Accept();
    const int server = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = server_port_;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(server, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    std::array<pollfd, 3> fds = {pollfd{wake_[0], POLLIN, 0}, pollfd{client, POLLIN, 0},
                                 pollfd{server, POLLIN, 0}};
    bool open = true;
    while (open) {
      if (poll(fds.data(), fds.size(), -1) < 0) continue;
      if (fds[0].revents != 0) break;
      if (fds[1].revents != 0) open = Forward(client, server);
      if (open && fds[2].revents != 0) open = Forward(server, client);
    }
    Reset(client);
    Reset(server);
  }

  uint16_t server_port_ = 0;  // in network order
  LoopbackListener listener_;
  int wake_[2] = {-1, -1};
  std::thread thread_;
};

}  // namespace norm::test
