// An HTTP/2 peer that begins a response and resets the call, as proxies do when a server behind them dies.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <thread>

namespace norm::client {

/// Takes one connection on a free port of the loopback interface and resets the first call on it
/// with INTERNAL_ERROR. Threads: one of its own, joined on destruction.
class ResettingServer {
 public:
  ResettingServer() {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~ResettingServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  static bool ReadExactly(int fd, size_t bytes, std::string* out) {
    out->resize(bytes);
    for (size_t done = 0; done < bytes;) {
      const ssize_t got = read(fd, out->data() + done, bytes - done);
      if (got <= 0) return false;
      done += static_cast<size_t>(got);
    }
    return true;
  }

  /// A frame: length in 24 bits, type, flags, stream in 32 bits, payload.
  static std::string Frame(uint8_t type, uint8_t stream, const std::string& payload) {
    const std::string header = {
        0, 0, static_cast<char>(payload.size()), static_cast<char>(type), 0, 0,
        0, 0, static_cast<char>(stream)};
    return header + payload;
  }

  void Run() {
    const int fd = accept(listener_, nullptr, nullptr);
    if (fd < 0) return;
    const auto send = [fd](const std::string& bytes) {
      EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    };
    constexpr uint8_t kHeaders = 1, kReset = 3, kSettings = 4;
    std::string bytes;
    ReadExactly(fd, 24, &bytes);  // the preface
    send(Frame(kSettings, 0, ""));
    while (ReadExactly(fd, 9, &bytes)) {
      const std::string header = bytes;
      size_t length = 0;
      for (size_t i = 0; i < 3; ++i) length = length << 8 | static_cast<uint8_t>(header[i]);
      ReadExactly(fd, length, &bytes);
      if (header[3] == kHeaders)
        send(Frame(kReset, static_cast<uint8_t>(header[8]), std::string("\0\0\0\2", 4)));
    }
    close(fd);
  }

  int listener_ = -1;
  uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace norm::client
