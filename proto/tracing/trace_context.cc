#include "proto/tracing/trace_context.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace norm::tracing {
namespace {

constexpr size_t kVersion00Length = 55;  // 2 + 32 + 16 + 2 digits and three dashes
constexpr size_t kMaxMembers = 32;
constexpr size_t kMaxStateLength = 512;
constexpr size_t kLongMember = 128;

/// What surrounds a header's value.
absl::string_view StripBlanks(absl::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Lower-case hexadecimal digits, at most 16.
std::optional<uint64_t> ParseHex(absl::string_view digits) {
  uint64_t value = 0;
  for (const char digit : digits) {
    if (digit >= '0' && digit <= '9') {
      value = value << 4 | static_cast<uint64_t>(digit - '0');
    } else if (digit >= 'a' && digit <= 'f') {
      value = value << 4 | static_cast<uint64_t>(digit - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return value;
}

bool IsKey(absl::string_view key) {
  const auto alphanumeric = [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c));
  };
  return !key.empty() && key.size() <= 256 && alphanumeric(key.front()) &&
         std::all_of(key.begin(), key.end(), [&](char c) {
           return alphanumeric(c) || absl::string_view("_-*/@").find(c) != absl::string_view::npos;
         });
}

bool IsValue(absl::string_view value) {
  return !value.empty() && value.size() <= 256 && value.back() != ' ' &&
         std::all_of(value.begin(), value.end(),
                     [](char c) { return c >= ' ' && c <= '~' && c != ',' && c != '='; });
}

bool IsMember(absl::string_view member) {
  const size_t equals = member.find('=');
  return equals != absl::string_view::npos && IsKey(member.substr(0, equals)) &&
         IsValue(member.substr(equals + 1));
}

size_t ListLength(const std::vector<absl::string_view>& members) {
  size_t length = members.empty() ? 0 : members.size() - 1;
  for (const absl::string_view member : members) length += member.size();
  return length;
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(absl::string_view text) {
  text = StripBlanks(text);
  if (text.size() < kVersion00Length || text[2] != '-' || text[35] != '-' || text[52] != '-') {
    return std::nullopt;
  }
  const auto version = ParseHex(text.substr(0, 2));
  const auto high = ParseHex(text.substr(3, 16));
  const auto low = ParseHex(text.substr(19, 16));
  const auto parent = ParseHex(text.substr(36, 16));
  const auto flags = ParseHex(text.substr(53, 2));
  if (!version.has_value() || !high.has_value() || !low.has_value() || !parent.has_value() ||
      !flags.has_value() || *version == 0xff || (*high | *low) == 0 || *parent == 0) {
    return std::nullopt;
  }
  if (text.size() > kVersion00Length && (*version == 0 || text[kVersion00Length] != '-')) {
    return std::nullopt;
  }
  return TraceContext{*high, *low, *parent, (*flags & 1) != 0, {}};
}

std::string FormatTraceparent(const TraceContext& context) {
  return absl::StrCat("00-", TraceIdText(context), "-", SpanIdText(context.span_id),
                      context.sampled ? "-01" : "-00");
}

std::optional<TraceContext> ParseTraceContext(absl::Span<const absl::string_view> traceparents,
                                              absl::Span<const absl::string_view> tracestates) {
  if (traceparents.size() != 1) return std::nullopt;
  std::optional<TraceContext> context = ParseTraceparent(traceparents.front());
  if (context.has_value()) context->state = CombineTracestate(tracestates);
  return context;
}

std::string CombineTracestate(absl::Span<const absl::string_view> values) {
  std::vector<absl::string_view> members;
  for (const absl::string_view value : values) {
    for (const absl::string_view part : absl::StrSplit(value, ',')) {
      const absl::string_view member = StripBlanks(part);
      if (member.empty()) continue;
      if (!IsMember(member) || members.size() == kMaxMembers) return "";
      members.push_back(member);
    }
  }
  for (auto at = members.begin(); ListLength(members) > kMaxStateLength && at != members.end();) {
    at = at->size() > kLongMember ? members.erase(at) : at + 1;
  }
  while (ListLength(members) > kMaxStateLength) members.pop_back();
  return absl::StrJoin(members, ",");
}

uint64_t NewId() {
  thread_local absl::InsecureBitGen generator;
  return absl::Uniform<uint64_t>(absl::IntervalClosed, generator, 1, UINT64_MAX);
}

TraceContext NewTrace() { return TraceContext{NewId(), NewId(), NewId(), false, {}}; }

std::string SpanIdText(uint64_t span_id) {
  return absl::StrCat(absl::Hex(span_id, absl::kZeroPad16));
}

std::string TraceIdText(const TraceContext& context) {
  return absl::StrCat(absl::Hex(context.trace_id_high, absl::kZeroPad16),
                      absl::Hex(context.trace_id_low, absl::kZeroPad16));
}

}  // namespace norm::tracing
