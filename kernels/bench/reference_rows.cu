// RMSNorm and LayerNorm in float64. A block takes one row after another: mean, centred squares, then
// a pass that compares. Columns are summed with float64 atomics.
#include "bench/reference_check.cuh"

namespace norm_device {
namespace {

using Params = RowReferenceParams;

/// What is normalized: x, or the sum with the residual rounded to x's type.
__device__ double Summed(const Params& p, int64_t i) {
  const double x = LoadAny(p.x, i);
  if (p.residual.data == nullptr) return x;
  return RoundAny(p.x.element, x + LoadAny(p.residual, i));
}

__device__ double Weight(const Params& p, int64_t column) {
  return LoadOr(p.weight, column, 1.0) + p.weight_offset;
}

__global__ void RowStatistics(const __grid_constant__ Params p) {
  __shared__ double scratch[kReferenceThreads];
  const auto n = static_cast<double>(p.hidden_size);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t begin = row * p.hidden_size;
    double sum = 0.0;
    if (p.center != 0) {
      for (int64_t h = threadIdx.x; h < p.hidden_size; h += blockDim.x) sum += Summed(p, begin + h);
    }
    const double mean = BlockSum(sum, scratch) / n;
    double squares = 0.0;
    for (int64_t h = threadIdx.x; h < p.hidden_size; h += blockDim.x) {
      const double d = Summed(p, begin + h) - mean;
      squares += d * d;
    }
    const double variance = BlockSum(squares, scratch) / n;
    if (threadIdx.x == 0) {
      p.row_mean[row] = mean;
      p.row_rstd[row] = 1.0 / sqrt(variance + p.eps);
    }
  }
}

/// What the statistics' outputs hold.
__device__ void CheckStatistics(const Params& p, int64_t row) {
  const double mean = p.row_mean[row];
  const double rstd = p.row_rstd[row];
  if (p.mean.data != nullptr) {
    CountValues(p.checks, kCheckedMean, 1);
    Judge(p.checks, kCheckedMean, LoadAny(p.mean, row), mean,
          Allowed(p.mean.element, mean, fabs(mean) + 1.0 / rstd, 1e-6));
  }
  if (p.rstd.data != nullptr) {
    CountValues(p.checks, kCheckedRstd, 1);
    Judge(p.checks, kCheckedRstd, LoadAny(p.rstd, row), rstd,
          Allowed(p.rstd.element, rstd, rstd, 5e-6));
  }
}

__global__ void CheckForward(const __grid_constant__ Params p) {
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t begin = row * p.hidden_size;
    const double mean = p.row_mean[row];
    const double rstd = p.row_rstd[row];
    for (int64_t h = threadIdx.x; h < p.hidden_size; h += blockDim.x) {
      const double s = Summed(p, begin + h);
      const double product = (s - mean) * rstd * Weight(p, h);
      const double bias = LoadOr(p.bias, h, 0.0);
      const double want = product + bias;
      const double scale =
          p.y.element == Element::kF32 ? 5.0 * fmax(1.0, fabs(want)) : fabs(product) + fabs(bias);
      Judge(p.checks, kCheckedY, LoadAny(p.y, begin + h), want,
            Allowed(p.y.element, want, scale, 1e-6));
      if (p.residual_sum.data != nullptr) {
        Judge(p.checks, kCheckedResidualSum, LoadAny(p.residual_sum, begin + h), s, 0.0);
      }
    }
    if (threadIdx.x == 0) {
      CountValues(p.checks, kCheckedY, p.hidden_size);
      if (p.residual_sum.data != nullptr) CountValues(p.checks, kCheckedResidualSum, p.hidden_size);
      CheckStatistics(p, row);
    }
  }
}

__global__ void CheckQuantized(const __grid_constant__ Params p) {
  __shared__ double scratch[kReferenceThreads];
  const double largest_q = p.y.element == Element::kInt8 ? 127.0 : 448.0;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t begin = row * p.hidden_size;
    const auto product = [&](int64_t h) {
      return (Summed(p, begin + h) - p.row_mean[row]) * p.row_rstd[row] * Weight(p, h);
    };
    double largest = 0.0;
    for (int64_t h = threadIdx.x; h < p.hidden_size; h += blockDim.x) {
      largest = fmax(largest, fabs(product(h) + LoadOr(p.bias, h, 0.0)));
    }
    largest = BlockMax(largest, scratch);
    // Values are judged by the scale that was returned, which is judged by itself.
    const double scale = LoadOr(p.row_scale, row, p.y_scale);
    for (int64_t h = threadIdx.x; h < p.hidden_size; h += blockDim.x) {
      const double bias = LoadOr(p.bias, h, 0.0);
      const double want = fmin(fmax((product(h) + bias) / scale, -largest_q), largest_q);
      const double terms = (fabs(product(h)) + fabs(bias)) / scale;
      Judge(p.checks, kCheckedY, LoadAny(p.y, begin + h), want,
            Allowed(p.y.element, want, terms, 2e-6));
    }
    if (threadIdx.x == 0) {
      CountValues(p.checks, kCheckedY, p.hidden_size);
      if (p.row_scale.data != nullptr) {
        CountValues(p.checks, kCheckedRowScale, 1);
        Judge(p.checks, kCheckedRowScale, scale, largest / largest_q, 1e-5 * largest / largest_q);
      }
      CheckStatistics(p, row);
    }
  }
}

__global__ void CheckBackward(const __grid_constant__ Params p) {
  __shared__ double scratch[kReferenceThreads];
  const auto n = static_cast<double>(p.hidden_size);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t begin = row * p.hidden_size;
    const double mean = p.row_mean[row];
    const double rstd = p.row_rstd[row];
    double sum_g = 0.0;
    double sum_gh = 0.0;
    double largest_g = 0.0;
    for (int64_t h = threadIdx.x; h < p.hidden_size; h += blockDim.x) {
      const double g = LoadAny(p.dy, begin + h) * Weight(p, h);
      sum_g += p.center != 0 ? g : 0.0;
      sum_gh += g * (Summed(p, begin + h) - mean) * rstd;
      largest_g = fmax(largest_g, fabs(g));
    }
    const double mean_g = BlockSum(sum_g, scratch) / n;
    const double mean_gh = BlockSum(sum_gh, scratch) / n;
    const double floor = rstd * BlockMax(largest_g, scratch);
    const auto gradient = [&](int64_t h) {
      const double g = LoadAny(p.dy, begin + h) * Weight(p, h);
      const double normalized = (Summed(p, begin + h) - mean) * rstd;
      return rstd * (g - mean_g - normalized * mean_gh) + LoadOr(p.dresidual_sum, begin + h, 0.0);
    };
    double largest_dx = 0.0;
    for (int64_t h = threadIdx.x; h < p.hidden_size; h += blockDim.x) {
      largest_dx = fmax(largest_dx, fabs(gradient(h)));
    }
    const double scale = BlockMax(largest_dx, scratch);
    for (int64_t h = threadIdx.x; h < p.hidden_size; h += blockDim.x) {
      const double want = gradient(h);
      Judge(p.checks, kCheckedDx, LoadAny(p.dx, begin + h), want,
            Allowed(p.dx.element, want, scale + 0.08 * floor, 5e-6));
    }
    if (threadIdx.x == 0) CountValues(p.checks, kCheckedDx, p.hidden_size);
  }
}

__global__ void ColumnSums(const __grid_constant__ Params p) {
  const int64_t column = GlobalThread();
  if (column >= p.hidden_size) return;
  double sums[4] = {};
  for (int64_t row = blockIdx.y; row < p.rows; row += gridDim.y) {
    const int64_t i = row * p.hidden_size + column;
    const double dy = LoadAny(p.dy, i);
    const double term = dy * (Summed(p, i) - p.row_mean[row]) * p.row_rstd[row];
    sums[0] += term;
    sums[1] += dy;
    sums[2] += fabs(term);
    sums[3] += fabs(dy);
  }
  for (int k = 0; k < 4; ++k) atomicAdd(&p.column_sums[k * p.hidden_size + column], sums[k]);
}

__global__ void CheckColumns(const __grid_constant__ Params p) {
  const int64_t column = GlobalThread();
  if (column >= p.hidden_size) return;
  const auto sum = [&](int k) { return p.column_sums[k * p.hidden_size + column]; };
  if (p.dweight.data != nullptr) {
    if (column == 0) CountValues(p.checks, kCheckedDweight, p.hidden_size);
    Judge(p.checks, kCheckedDweight, LoadAny(p.dweight, column), sum(0),
          Allowed(p.dweight.element, sum(0), sum(2), 1e-6));
  }
  if (p.dbias.data != nullptr) {
    if (column == 0) CountValues(p.checks, kCheckedDbias, p.hidden_size);
    Judge(p.checks, kCheckedDbias, LoadAny(p.dbias, column), sum(1),
          Allowed(p.dbias.element, sum(1), sum(3), 1e-6));
  }
}

__global__ void Convert(const __grid_constant__ ConvertParams p) {
  for (int64_t i = GlobalThread(); i < p.count; i += GlobalThreads()) StoreAny(p.to, i, p.from[i]);
}

}  // namespace

const void* RowStatisticsReference() { return reinterpret_cast<const void*>(RowStatistics); }
const void* CheckRowForward() { return reinterpret_cast<const void*>(CheckForward); }
const void* CheckRowQuantized() { return reinterpret_cast<const void*>(CheckQuantized); }
const void* CheckRowBackward() { return reinterpret_cast<const void*>(CheckBackward); }
const void* RowColumnSums() { return reinterpret_cast<const void*>(ColumnSums); }
const void* CheckRowColumns() { return reinterpret_cast<const void*>(CheckColumns); }
const void* ConvertKernel() { return reinterpret_cast<const void*>(Convert); }

}  // namespace norm_device
