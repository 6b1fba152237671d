// A real server on the CPU backend that records spans, and calls that say who they are.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "server/observability/span_log.h"
#include "tests/integration/gated_server.h"
#include "tests/integration/span_file.h"

namespace norm::test {

using Metadata = std::vector<std::pair<std::string, std::string>>;

/// A trace and a parent that say which test case they are of.
inline std::string TraceId(int number) {
  return absl::StrCat("00000000000000000000000000000a", number + 10);
}
inline std::string Traceparent(int number, const char* flags = "01") {
  return absl::StrCat("00-", TraceId(number), "-00000000000000b", number % 10, "-", flags);
}

/// What came back of a unary call.
struct Answer {
  grpc::Status status;
  std::string request_id;  // empty: none came
  int request_ids = 0;
  double decode_us = 0;
};

/// Threads: each call has a thread of its own.
class TracedCall {
 public:
  TracedCall(const std::string& address, const norm::v1::NormalizeRequest& request,
             const Metadata& metadata,
             std::chrono::system_clock::time_point deadline = std::chrono::system_clock::now() +
                                                              std::chrono::minutes(10))
      : stub_(norm::v1::NormalizationService::NewStub(InProcessServer::Connect(address))) {
    context_.set_deadline(deadline);
    for (const auto& [key, value] : metadata) context_.AddMetadata(key, value);
    answer_ = std::async(std::launch::async, [this, request] {
      Answer answer;
      norm::v1::NormalizeResponse response;
      answer.status = stub_->Normalize(&context_, request, &response);
      answer.decode_us = response.timing().decode_us();
      const auto& trailers = context_.GetServerTrailingMetadata();
      answer.request_ids = static_cast<int>(trailers.count("x-request-id"));
      if (const auto id = trailers.find("x-request-id"); id != trailers.end()) {
        answer.request_id = std::string(id->second.data(), id->second.size());
      }
      return answer;
    });
  }
  void Cancel() { context_.TryCancel(); }
  Answer Await() { return answer_.get(); }

 private:
  std::unique_ptr<norm::v1::NormalizationService::Stub> stub_;
  grpc::ClientContext context_;
  std::future<Answer> answer_;
};

class TracingTest : public testing::Test {
 protected:
  static constexpr char kNormalize[] = "norm.v1.NormalizationService/Normalize";
  static constexpr char kStream[] = "norm.v1.NormalizationService/NormalizeStream";

  void Start(double sample_ratio = 0) {
    absl::StatusOr<std::unique_ptr<server::SpanLog>> spans =
        server::SpanLog::Open({path_, sample_ratio, "1.2.3"}, metrics_, log_);
    ASSERT_TRUE(spans.ok()) << spans.status();
    spans_ = *std::move(spans);
    StartWithoutSpans();
  }
  void StartWithoutSpans() {
    InProcessServerOptions options;
    options.grpc.spans = spans_.get();
    options.grpc.security = security_;
    options.grpc.drain_timeout = absl::Minutes(1);
    options.log = {server::LogLevel::kInfo, server::LogFormat::kJson};
    testing::internal::CaptureStderr();
    server_ = std::make_unique<GatedServer>(options);
  }
  void TearDown() override {
    if (server_ != nullptr) (void)End();
  }

  Answer Call(const Metadata& metadata,
              const norm::v1::NormalizeRequest& request = CanaryRequest()) {
    return TracedCall(server_->address(), request, metadata).Await();
  }
  /// A request that the server refuses as malformed.
  static norm::v1::NormalizeRequest BadRequest() {
    norm::v1::NormalizeRequest request = CanaryRequest();
    request.mutable_rms_norm()->set_eps(-1);
    return request;
  }

  /// Ends the server; what it has written.
  SpanFile End() {
    server_->gates().before_copy.Open();
    server_.reset();
    spans_.reset();
    const std::string log = testing::internal::GetCapturedStderr();
    for (const absl::string_view line : absl::StrSplit(log, '\n', absl::SkipEmpty())) {
      nlohmann::json parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      EXPECT_FALSE(parsed.is_discarded()) << line;
      const std::string message = parsed.value("message", "");
      if (message == "call failed" || message == "call refused") {
        failures_.push_back(std::move(parsed));
      }
    }
    log_text_ = log;
    return SpanFile(path_);
  }
  /// The one span of a name in a trace.
  static Span Only(const SpanFile& file, const std::string& name, const std::string& trace_id) {
    std::vector<Span> found;
    for (const Span& span : file.Named(name)) {
      if (span.trace_id == trace_id) found.push_back(span);
    }
    EXPECT_EQ(found.size(), 1U) << name << " of " << trace_id;
    return found.empty() ? Span() : found.front();
  }

  const client::ScratchFolder folder_;
  const std::string path_ = folder_ / "spans.jsonl";
  server::Metrics metrics_{{"cpu"}, {}};
  const server::Logger log_{{server::LogLevel::kError, server::LogFormat::kText}};
  server::SecurityOptions security_;  // of the server that Start makes
  std::unique_ptr<server::SpanLog> spans_;
  std::unique_ptr<GatedServer> server_;
  std::vector<nlohmann::json> failures_;  // after End
  std::string log_text_;
};

}  // namespace norm::test
