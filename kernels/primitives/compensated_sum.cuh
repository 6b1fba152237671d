// Long sums whose error does not grow with their length.
#pragma once

namespace norm_device {

/// f32: the running sum and, apart, the sum of its rounding errors (Knuth's TwoSum, exact in any
/// order of magnitude), so that an infinite term leaves the sum infinite and not NaN.
template <typename C>
class CompensatedSum {
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

/// f64: the plain sum is exact enough (2^-53 of the sum of |terms| per term).
template <>
class CompensatedSum<double> {
 public:
  __device__ void Add(double term) { sum_ += term; }
  __device__ double Total() const { return sum_; }

 private:
  double sum_ = 0.0;
};

}  // namespace norm_device
