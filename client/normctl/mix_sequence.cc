#include "client/normctl/mix_sequence.h"

#include <numeric>

namespace norm::normctl {

MixSequence::MixSequence(const std::vector<int64_t>& shares) {
  int64_t divisor = 0;
  for (const int64_t share : shares) divisor = std::gcd(divisor, share);
  for (const int64_t share : shares) per_cycle_.push_back(share / divisor);
  const int64_t length = std::accumulate(per_cycle_.begin(), per_cycle_.end(), int64_t{0});
  // Each case earns its share a step; the richest is taken and pays the sum of all shares.
  struct Standing {
    int64_t credit = 0;
    int64_t taken = 0;
  };
  std::vector<Standing> standings(shares.size());
  for (int64_t step = 0; step < length; ++step) {
    size_t richest = 0;
    for (size_t i = 0; i < standings.size(); ++i) {
      standings[i].credit += per_cycle_[i];
      if (standings[i].credit > standings[richest].credit) richest = i;
    }
    standings[richest].credit -= length;
    cycle_.push_back({richest, standings[richest].taken++});
  }
}

MixSequence::Place MixSequence::At(int64_t index) const {
  const Place& place = cycle_[static_cast<size_t>(index % length())];
  return {place.case_index, index / length() * per_cycle_[place.case_index] + place.ordinal};
}

}  // namespace norm::normctl
