// Which Submit a thread is in.
#pragma once

#include <utility>

namespace norm::server {

/// A Submit of this thread that is not over. One within another, of a `done` that submits, must not
/// run its job on this thread as well: the calls would nest as long as jobs come.
class Submitting {
 public:
  Submitting() : nested_(std::exchange(active_, true)) {}
  ~Submitting() { active_ = nested_; }
  Submitting(const Submitting&) = delete;
  Submitting& operator=(const Submitting&) = delete;

  bool nested() const { return nested_; }

 private:
  static inline thread_local bool active_ = false;
  const bool nested_;
};

}  // namespace norm::server
