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
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

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
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in any = Loopback(0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&any), sizeof(any)), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    socklen_t length = sizeof(any);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&any), &length), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(any.sin_port));
    EXPECT_EQ(pipe(wake_), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~TcpRelay() { Break(); }
  TcpRelay(const TcpRelay&) = delete;
  TcpRelay& operator=(const TcpRelay&) = delete;

  const std::string& address() const { return address_; }

  /// Resets the connection on both sides and takes no other. Returns when that is done.
  void Break() {
    if (!thread_.joinable()) return;
    const char byte = 0;
    EXPECT_EQ(write(wake_[1], &byte, 1), 1);
    thread_.join();
    for (const int fd : {listener_, wake_[0], wake_[1]}) close(fd);
  }

 private:
  static sockaddr_in Loopback(uint16_t network_port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = network_port;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
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
    if (!AwaitReadable(listener_)) return;
    const int client = accept(listener_, nullptr, nullptr);
    const int server = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to = Loopback(server_port_);
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

  uint16_t server_port_ = 0;
  int listener_ = -1;
  int wake_[2] = {-1, -1};
  std::string address_;
  std::thread thread_;
};

}  // namespace norm::test
