// A span log, read back.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tests/unit/client/scratch_folder.h"

namespace norm::test {

struct Span {
  std::string trace_id;
  std::string id;
  std::string parent_id;
  std::string state;
  std::string name;
  int kind = 0;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int status = 0;  // 2: ERROR
  std::string message;
  nlohmann::json attributes;  // by key, text or number as it came
  size_t events = 0;

  std::string attribute(const std::string& key) const {
    return attributes.contains(key) ? attributes[key].get<std::string>() : "";
  }
};

class SpanFile {
 public:
  explicit SpanFile(const std::string& path) : text_(client::ScratchFolder::Read(path)) {
    for (const absl::string_view line : absl::StrSplit(text_, '\n', absl::SkipEmpty())) {
      const nlohmann::json traces = nlohmann::json::parse(line);
      for (const nlohmann::json& one : traces["resourceSpans"][0]["scopeSpans"][0]["spans"])
        Add(one);
    }
  }

  const std::string& text() const { return text_; }
  const std::vector<Span>& spans() const { return spans_; }

  /// Those of a name, or below a parent.
  std::vector<Span> Named(const std::string& name) const {
    std::vector<Span> found;
    for (const Span& span : spans_) {
      if (span.name == name) found.push_back(span);
    }
    return found;
  }
  std::vector<Span> ChildrenOf(const Span& parent) const {
    std::vector<Span> found;
    for (const Span& span : spans_) {
      if (span.parent_id == parent.id) {
        EXPECT_EQ(span.trace_id, parent.trace_id);
        EXPECT_GE(span.start_ns, parent.start_ns) << span.name;
        EXPECT_LE(span.end_ns, parent.end_ns) << span.name;
        found.push_back(span);
      }
    }
    return found;
  }
  /// The stages of a request, which follow each other within it.
  std::vector<std::string> StagesOf(const Span& request) const {
    std::vector<std::string> names;
    int64_t at = request.start_ns;
    for (const Span& stage : ChildrenOf(request)) {
      EXPECT_GE(stage.start_ns, at) << stage.name;
      EXPECT_GE(stage.end_ns, stage.start_ns) << stage.name;
      EXPECT_EQ(stage.kind, 1) << stage.name;
      at = stage.end_ns;
      names.push_back(stage.name);
    }
    return names;
  }

 private:
  void Add(const nlohmann::json& from) {
    Span span;
    span.trace_id = from["traceId"];
    span.id = from["spanId"];
    span.parent_id = from.value("parentSpanId", "");
    span.state = from.value("traceState", "");
    span.name = from["name"];
    span.kind = from["kind"];
    EXPECT_TRUE(absl::SimpleAtoi(from["startTimeUnixNano"].get<std::string>(), &span.start_ns));
    EXPECT_TRUE(absl::SimpleAtoi(from["endTimeUnixNano"].get<std::string>(), &span.end_ns));
    if (from.contains("status")) {
      span.status = from["status"]["code"];
      span.message = from["status"]["message"];
    }
    if (from.contains("events")) span.events = from["events"].size();
    if (from.contains("attributes")) {
      for (const nlohmann::json& one : from["attributes"]) {
        span.attributes[one["key"].get<std::string>()] = *one["value"].begin();
      }
    }
    spans_.push_back(std::move(span));
  }

  const std::string text_;
  std::vector<Span> spans_;
};

}  // namespace norm::test
