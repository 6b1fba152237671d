// Long sums whose error does not grow with their length.
#pragma once

#include <type_traits>

namespace norm_device {

/// The running sum and, apart, the sum of its rounding errors (Knuth's TwoSum, exact in any order
/// of magnitude): about twice the precision of C. An infinite term leaves the sum infinite and not
/// NaN.
template <typename C>
class ExactSum {
 public:
  __device__ void Add(C term) {
    const C next = sum_ + term;
    const C kept = next - sum_;
    error_ += (sum_ - (next - kept)) + (term - kept);
    sum_ = next;
  }
  __device__ double Total() const {
    const double total = static_cast<double>(sum_) + static_cast<double>(error_);
    return isfinite(sum_) ? total : static_cast<double>(sum_);
  }

 private:
  C sum_ = 0;
  C error_ = 0;
};

template <typename C>
class PlainSum {
 public:
  __device__ void Add(C term) { sum_ += term; }
  __device__ double Total() const { return static_cast<double>(sum_); }

 private:
  C sum_ = 0;
};

/// For parameter gradients: f64 on its own is exact enough over as many rows as fit in memory.
template <typename C>
using CompensatedSum = std::conditional_t<std::is_same_v<C, double>, PlainSum<double>, ExactSum<C>>;

}  // namespace norm_device
