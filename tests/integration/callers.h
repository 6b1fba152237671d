// Clients that go on calling while a test changes something under them.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "norm/client/client.h"
#include "tests/integration/await.h"

namespace norm::test {

/// Calls on a connection that stays and on one that is opened for each call, until told to stop.
class Callers {
 public:
  Callers(const std::string& address, const client::ClientOptions& options,
          const std::function<absl::Status(client::Client&)>& call) {
    for (const bool reconnect : {false, true}) {
      threads_.emplace_back([this, address, options, call, reconnect] {
        auto connected = client::Client::Create(address, options);
        while (!stop_.load()) {
          if (reconnect) connected = client::Client::Create(address, options);
          const absl::Status status = connected.ok() ? call(**connected) : connected.status();
          EXPECT_EQ(status, absl::OkStatus());
          if (status.ok()) (reconnect ? connected_ : called_).fetch_add(1);
        }
      });
    }
  }
  ~Callers() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }

  /// Until both have had `more` answers since now.
  bool AwaitMore(int more) {
    const int called = called_.load() + more;
    const int connected = connected_.load() + more;
    return Await([&] { return called_.load() >= called && connected_.load() >= connected; });
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> called_{0};
  std::atomic<int> connected_{0};
  std::vector<std::thread> threads_;
};

}  // namespace norm::test
