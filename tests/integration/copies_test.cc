// What a request costs in host memory: bytes copied, buffers made, bytes kept.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "norm/client/client.h"
#include "server/observability/metrics_impl.h"
#include "tests/integration/await.h"
#include "tests/support/cpu_server.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NORM_TEST_HAS_COPY_HOOK 0  // a sanitizer has its own memcpy
#else
#define NORM_TEST_HAS_COPY_HOOK 1

namespace {

using Copy = void* (*)(void*, const void*, size_t);
std::atomic<int64_t> copied_bytes{0};
std::atomic<Copy> next_memcpy{nullptr};
std::atomic<Copy> next_memmove{nullptr};

[[gnu::constructor]] void FindNext() {
  next_memcpy = reinterpret_cast<Copy>(dlsym(RTLD_NEXT, "memcpy"));
  next_memmove = reinterpret_cast<Copy>(dlsym(RTLD_NEXT, "memmove"));
}

/// Before the constructor has run.
void* CopyByteByByte(void* to, const void* from, size_t count) {
  auto* out = static_cast<volatile unsigned char*>(to);
  const auto* in = static_cast<const volatile unsigned char*>(from);
  if (out < in) {
    for (size_t i = 0; i < count; ++i) out[i] = in[i];
  } else {
    for (size_t i = count; i > 0; --i) out[i - 1] = in[i - 1];
  }
  return to;
}

void* Count(const std::atomic<Copy>& next, void* to, const void* from, size_t count) {
  copied_bytes.fetch_add(static_cast<int64_t>(count), std::memory_order_relaxed);
  const Copy copy = next.load(std::memory_order_relaxed);
  return copy != nullptr ? copy(to, from, count) : CopyByteByByte(to, from, count);
}

}  // namespace

// The whole process copies through these: the server, the client and gRPC between them.
extern "C" void* memcpy(void* to, const void* from, size_t count) {
  return Count(next_memcpy, to, from, count);
}
extern "C" void* memmove(void* to, const void* from, size_t count) {
  return Count(next_memmove, to, from, count);
}
#endif

namespace norm::server {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kMiB = int64_t{1} << 20;

class CopiesTest : public testing::Test {
 protected:
  /// RMSNorm of `mib` MiB of f32, from memory that the client may share.
  void Send(int64_t mib, int requests) {
    const client::Tensor x = *client::Tensor::Allocate(DType::kF32, {mib * 256, 1024});
    for (int i = 0; i < requests; ++i) {
      const auto result = client_->RmsNorm({.x = x.view()}, kTimeout);
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_EQ(result->y.size_bytes(), mib * kMiB);
    }
  }

  /// Pooled memory, leased or not.
  int64_t PoolBytes() {
    const DeviceMetrics& device = *cpu_.metrics.impl()->devices[0];
    return device.pinned_used + device.pinned_free;
  }

  int64_t LeasedBytes() { return cpu_.metrics.impl()->devices[0]->pinned_used; }

  norm::test::CpuServer cpu_;
  const std::unique_ptr<client::Client> client_ = *client::Client::Create(cpu_.server.address());
};

#if NORM_TEST_HAS_COPY_HOOK
TEST_F(CopiesTest, ARequestIsCopiedOnceOnItsWayInAndNotOnItsWayOut) {
  constexpr int kRequests = 10;
  for (const int64_t mib : {1, 16}) {
    Send(mib, 2);
    const int64_t before = copied_bytes;
    Send(mib, kRequests);
    const int64_t per_request = (copied_bytes - before) / kRequests;
    EXPECT_GE(per_request, mib * kMiB) << "the hook counts the gathering of rows";
    // Headers, and what gRPC copies for itself.
    EXPECT_LE(per_request, mib * kMiB + 64 * 1024);
  }
}
#endif

TEST_F(CopiesTest, RequestsOfOneSizeMakeNoNewBuffers) {
  // One after another: gRPC may drop a response's memory after the caller has the response.
  const auto send = [&] {
    Send(4, 1);
    return norm::test::Await([this] { return LeasedBytes() == 0; });
  };
  ASSERT_TRUE(send());
  const int64_t bytes = PoolBytes();
  EXPECT_GE(bytes, 8 * kMiB);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(send());
  EXPECT_EQ(PoolBytes(), bytes);
}

TEST_F(CopiesTest, RequestsLeaveNothingBehind) {
#if !NORM_TEST_HAS_COPY_HOOK
  GTEST_SKIP() << "a sanitizer has its own heap";
#endif
  constexpr int kRequests = 3000;
  const client::Tensor x = *client::Tensor::Allocate(DType::kF32, {4, 64});
  const auto send = [&] {
    for (int i = 0; i < kRequests; ++i)
      ASSERT_TRUE(client_->RmsNorm({.x = x.view()}, kTimeout).ok());
  };
  const auto in_use = [] { return static_cast<int64_t>(::mallinfo2().uordblks); };
  send();
  const int64_t before = in_use();
  send();
  // Threads keep freed blocks, more or fewer of them; one that is lost with each request is more.
  EXPECT_LT(in_use() - before, kRequests * 16);
}

}  // namespace
}  // namespace norm::server
