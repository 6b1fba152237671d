// An HTTP/2 peer that begins a response and resets the call, as proxies do when a server behind them dies.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <thread>

#include "tests/support/loopback_listener.h"

namespace norm::client {

/// Takes one connection on a free port of the loopback interface and resets the first call on it
/// with INTERNAL_ERROR. Threads: one of its own, joined on destruction.
class ResettingServer {
 public:
  ResettingServer() : thread_([this] { Run(); }) {}
  ~ResettingServer() {
    listener_.Stop();
    thread_.join();
  }

  const std::string& address() const { return listener_.address(); }

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
    const int fd = listener_.Accept();
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

  test::LoopbackListener listener_;
  std::thread thread_;
};

}  // namespace norm::client
