// Errors that name the request field they are about.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace norm::server {

/// INVALID_ARGUMENT with the message "<field> <rule and values>". The field also travels on its own
/// and becomes google.rpc.BadRequest in status_mapping.
absl::Status InvalidField(absl::string_view field, absl::string_view rule);

/// The field an error is about; empty when it names none.
std::string ViolatedField(const absl::Status& status);

/// A shape as messages show it: "[2,3,4]".
template <typename Shape>
std::string ShapeText(const Shape& shape) {
  std::string text = "[";
  for (const auto& dimension : shape) {
    absl::StrAppend(&text, text.size() > 1 ? "," : "", dimension);
  }
  absl::StrAppend(&text, "]");
  return text;
}

}  // namespace norm::server
