#include "tests/unit/server/device/engine_bench_requests.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "absl/strings/str_format.h"
#include "tests/support/job_builder.h"

namespace norm::test {
namespace {

using server::InputTensor;
using server::Job;
using server::JobResult;
using Role = server::TensorRole;

constexpr int64_t kReceiveRunBytes = int64_t{64} << 10;

uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
double FromBf16(uint16_t value) {
  const uint32_t bits = uint32_t{value} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

}  // namespace

void Die(const std::string& why) {
  std::fprintf(stderr, "norm_engine_bench: %s\n", why.c_str());
  std::exit(1);
}

BenchInputs::BenchInputs(int64_t rows, int weight_sets, uint32_t seed)
    : rows_(rows),
      memory_(Must(
          cuda::PinnedBuffer::Allocate(static_cast<size_t>((rows + weight_sets) * kHidden * 2)))) {
  auto* values = reinterpret_cast<uint16_t*>(memory_.data());
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  const int64_t distinct = std::min<int64_t>(rows, 61) * kHidden;
  for (int64_t i = 0; i < distinct; ++i) values[i] = ToBf16(normal(random));
  for (int64_t i = distinct; i < rows * kHidden; ++i) values[i] = values[i - distinct];
  for (int64_t i = rows * kHidden; i < (rows + weight_sets) * kHidden; ++i) {
    values[i] = ToBf16(1.0F + 0.1F * normal(random));
  }
}

std::unique_ptr<Job> MakeJob(const BenchInputs& inputs, int weight_set, Where where) {
  auto job = std::make_unique<Job>();
  job->problem = RmsNormProblem(inputs.rows(), kHidden);
  job->problem.dtype = job->problem.weight_dtype = DType::kBF16;
  const auto set = [&](Role role, const uint16_t* values, int64_t count) {
    InputTensor& input = job->inputs[static_cast<size_t>(role)];
    input.size_bytes = 2 * count;
    input.page_locked = where == Where::kPinned;
    const auto* bytes = reinterpret_cast<const std::byte*>(values);
    const int64_t run = input.page_locked ? input.size_bytes : kReceiveRunBytes;
    for (int64_t at = 0; at < input.size_bytes; at += run) {
      input.runs.emplace_back(bytes + at,
                              static_cast<size_t>(std::min(run, input.size_bytes - at)));
    }
  };
  set(Role::kX, inputs.x(), inputs.rows() * kHidden);
  set(Role::kWeight, inputs.weight(weight_set), kHidden);
  return job;
}

void Check(const BenchInputs& inputs, int weight_set, const JobResult& result) {
  if (!result.status.ok()) Die(std::string(result.status.message()));
  const auto* y =
      reinterpret_cast<const uint16_t*>(result.outputs[static_cast<size_t>(Role::kY)].data);
  for (int64_t row = 0; row < inputs.rows();
       row = row + 97 < inputs.rows() || row == inputs.rows() - 1 ? row + 97 : inputs.rows() - 1) {
    double squares = 0;
    for (int64_t h = 0; h < kHidden; ++h) {
      const double value = FromBf16(inputs.x()[row * kHidden + h]);
      squares += value * value;
    }
    const double rstd = 1.0 / std::sqrt(squares / kHidden + 1e-6);
    for (int64_t h = 0; h < kHidden; ++h) {
      const double expected =
          FromBf16(inputs.x()[row * kHidden + h]) * rstd * FromBf16(inputs.weight(weight_set)[h]);
      const double actual = FromBf16(y[row * kHidden + h]);
      if (!(std::fabs(actual - expected) <= std::fabs(expected) / 256 + 1e-6)) {
        Die(absl::StrFormat("y[%d, %d] is %g, expected %g", row, h, actual, expected));
      }
    }
  }
}

}  // namespace norm::test
