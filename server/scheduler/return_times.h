// When refused callers are to come back.
#pragma once

#include "absl/time/time.h"

namespace norm::server {

/// Callers who are all told the time at which the queue moves up come back together, find it full and
/// are refused again: receiving, parsing and answering a refused request costs more than half of what
/// a served one does. So they are told times one after another, each leaving room for the requests
/// of callers who were served meanwhile and ask again: with many more callers than places, one
/// returns for every kServedPerReturn served. Not thread-safe.
class ReturnTimes {
 public:
  static constexpr int kServedPerReturn = 4;
  /// Callers who come back earlier than they were told are told a new time, so that of others grows:
  /// to so many times what one alone would be told, and over kLongest only where that is longer.
  static constexpr int kLongestOfAlone = 32;
  static constexpr absl::Duration kLongest = absl::Seconds(10);

  /// How long the next caller refused at `now` waits: `alone`, which is positive, or as much longer
  /// as those before it need. `service`: what its request will take of the server's time.
  absl::Duration Next(absl::Time now, absl::Duration alone, absl::Duration service);

 private:
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace norm::server
