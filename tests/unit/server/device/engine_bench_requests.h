// Requests of norm_engine_bench: RMSNorm of bf16 rows, and the float64 check of their results.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "norm/cuda/pinned_buffer.h"
#include "norm/kernels/result.h"
#include "server/scheduler/job.h"

namespace norm::test {

inline constexpr int64_t kHidden = 4096;

/// Prints why and ends the program.
[[noreturn]] void Die(const std::string& why);

template <typename Value>
Value Must(Result<Value> result) {
  if (!result.ok()) Die(result.status().message());
  return std::move(result).value();
}
inline void Must(const Status& status) {
  if (!status.ok()) Die(status.message());
}

/// `rows` rows of x and `weight_sets` weights, all in pinned memory.
class BenchInputs {
 public:
  BenchInputs(int64_t rows, int weight_sets, uint32_t seed);

  const uint16_t* x() const { return reinterpret_cast<const uint16_t*>(memory_.data()); }
  const uint16_t* weight(int set) const { return x() + (rows_ + set) * kHidden; }
  int64_t rows() const { return rows_; }

 private:
  int64_t rows_;
  cuda::PinnedBuffer memory_;
};

enum class Where : uint8_t {
  kPinned,    // page-locked, for the device to copy from
  kReceived,  // in runs of 64 KiB, as gRPC receives them
};

/// Borrows the inputs; `done` is the caller's to set.
std::unique_ptr<server::Job> MakeJob(const BenchInputs& inputs, int weight_set, Where where);

/// Dies unless every 97th row of the result, and the last, is right to a rounding of bf16.
void Check(const BenchInputs& inputs, int weight_set, const server::JobResult& result);

}  // namespace norm::test
