// Which case of a mix each request is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace norm::normctl {

/// Cases in proportion to their shares, each spread evenly (smooth weighted round-robin): among any
/// `length` requests in a row each case comes exactly share / gcd times.
class MixSequence {
 public:
  /// `shares` are positive; there is at least one.
  explicit MixSequence(const std::vector<int64_t>& shares);

  struct Place {
    size_t case_index = 0;
    int64_t ordinal = 0;  // how many requests before were of this case
  };
  /// The place of request `index`, 0 or more.
  Place At(int64_t index) const;

  /// After this many requests the sequence repeats.
  int64_t length() const { return static_cast<int64_t>(cycle_.size()); }

 private:
  std::vector<Place> cycle_;
  std::vector<int64_t> per_cycle_;
};

}  // namespace norm::normctl
