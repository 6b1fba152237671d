// A value or the Status that explains its absence. Standard library only.
#pragma once

#include <optional>
#include <utility>

#include "norm/kernels/status.h"

namespace norm {

/// Holds a T exactly when status() is OK. value() of a failed Result is undefined.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit, so that functions can return T
  Result(Status status)
      : status_(std::move(status)) {}  // NOLINT: implicit, so that functions can return Status

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace norm
