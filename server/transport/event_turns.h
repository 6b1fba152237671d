// In which order the events of a completion queue are completed.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "server/transport/call.h"

namespace norm::server {

/// Events that have come and are not taken yet: those of one flow in order, flows in turn. gRPC
/// hands events out as they came: behind a connection with a hundred calls in flight, each call of
/// another one would wait for a hundred decodings and, when it is done, for a hundred responses.
///
/// Threads:  the caller orders its use.
class EventTurns {
 public:
  struct Event {
    CompletionEvent* event = nullptr;
    bool ok = false;
  };

  void Add(Event event, uint64_t flow);
  /// The first event of the flow whose turn it is.
  std::optional<Event> Take();

 private:
  absl::flat_hash_map<uint64_t, std::deque<Event>> flows_;  // none without events
  std::deque<uint64_t> turns_;                              // the flows, the next one first
};

}  // namespace norm::server
