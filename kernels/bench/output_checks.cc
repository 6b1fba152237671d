#include "bench/output_checks.h"

#include <bit>
#include <cstdio>
#include <vector>

#include "norm/cuda/copy.h"

namespace norm::bench {
namespace {

constexpr const char* kNames[norm_device::kCheckedCount] = {
    "y",  "residual_sum", "mean",  "rstd",     "new_running_mean", "new_running_var",
    "dx", "dweight",      "dbias", "row_scale"};
constexpr size_t kBytes = sizeof(norm_device::OutputCheck) * norm_device::kCheckedCount;

}  // namespace

Result<OutputChecks> OutputChecks::Create(TensorArena& arena, const cuda::Stream& stream) {
  const Result<void*> data = arena.Take("checks", static_cast<int64_t>(kBytes));
  NORM_RETURN_IF_ERROR(data.status());
  NORM_RETURN_IF_ERROR(cuda::FillAsync(data.value(), std::byte{0}, kBytes, stream.view()));
  return OutputChecks(static_cast<norm_device::OutputCheck*>(data.value()), stream.view());
}

Result<Verdict> OutputChecks::Read() const {
  std::vector<norm_device::OutputCheck> checks(norm_device::kCheckedCount);
  NORM_RETURN_IF_ERROR(cuda::CopyAsync(checks.data(), data_, kBytes, stream_));
  NORM_RETURN_IF_ERROR(stream_.Synchronize());
  Verdict verdict;
  unsigned long long values = 0;
  for (int output = 0; output < norm_device::kCheckedCount; ++output) {
    const norm_device::OutputCheck& check = checks[static_cast<size_t>(output)];
    values += check.values;
    const auto worst = std::bit_cast<double>(check.worst_bits);
    verdict.worst = worst > verdict.worst ? worst : verdict.worst;
    if (check.wrong == 0) continue;
    char text[128];
    std::snprintf(
        text, sizeof(text), "%s%llu of %llu values of %s wrong, worst %.3g times the tolerance",
        verdict.message.empty() ? "" : "; ", check.wrong, check.values, kNames[output], worst);
    verdict.message += text;
  }
  if (values == 0) verdict.message = "nothing was checked";
  verdict.right = verdict.message.empty();
  return verdict;
}

}  // namespace norm::bench
