// Chunked requests while jobs run, fail and are called off, with an executor driven by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/chunked_stream.h"
#include "tests/integration/lifecycle_fixture.h"

namespace norm::server {
namespace {

using norm::test::ChunkedMessages;
using norm::test::ChunkedResult;
using norm::test::F32Tensor;
using norm::test::F32Values;
using norm::test::OpenStream;
using norm::test::Zeros;
using norm::v1::NormalizeBackwardRequest;
using norm::v1::NormalizeRequest;
using ::testing::HasSubstr;

constexpr uint64_t kId = 3;

/// x [8, 4] with value i in row i.
NormalizeRequest EightRows() {
  NormalizeRequest request;
  request.mutable_rms_norm();
  std::vector<float> x(32);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i / 4);
  *request.mutable_x() = F32Tensor({8, 4}, x);
  return request;
}

class ChunkedLifecycleTest : public LifecycleTest {
 protected:
  /// Ends the i-th running batch, one job, with y = x.
  void FinishWithCopy(int i) {
    const Job& job = *executor_->batch(i).jobs.front();
    auto y = std::make_shared<std::string>();
    for (const auto& run : job.inputs[static_cast<size_t>(TensorRole::kX)].runs) {
      y->append(reinterpret_cast<const char*>(run.data()), run.size());
    }
    JobResult result;
    result.outputs[static_cast<size_t>(TensorRole::kY)] = {
        reinterpret_cast<const std::byte*>(y->data()), static_cast<int64_t>(y->size()), y};
    executor_->FinishAs(i, {std::move(result)});
  }

  int64_t InFlightBytes() { return server_->scheduler().Load().in_flight_bytes; }
  bool NothingLeft() {
    return Await([&] {
      const SchedulerLoad load = server_->scheduler().Load();
      return load.in_flight_requests == 0 && load.in_flight_bytes == 0;
    });
  }
};

TEST_F(ChunkedLifecycleTest, JobsStartWithTheFirstRowsAndResultsLeaveInOrder) {
  StartServer({}, /*slots=*/4);
  OpenStream stream(*stub_);
  const ChunkedMessages messages(kId, EightRows());
  stream.Write(messages.Header());
  for (int64_t i = 0; i < 3; ++i) {
    stream.Write(messages.Rows(2 * i, 2, false));
    ASSERT_TRUE(Running(static_cast<int>(i) + 1));
    EXPECT_EQ(executor_->batch(static_cast<int>(i)).jobs.front()->problem.rows, 2);
  }
  FinishWithCopy(2);
  FinishWithCopy(1);
  EXPECT_TRUE(stream.AwaitRows(kId, 0));
  FinishWithCopy(0);
  // While the upload is not complete.
  ASSERT_TRUE(stream.AwaitRows(kId, 3));
  EXPECT_EQ(stream.finals(kId), 0);
  stream.Write(messages.Rows(6, 2, true));
  ASSERT_TRUE(Running(1));
  FinishWithCopy(0);
  const ChunkedResult result = stream.AwaitFinal(kId);
  EXPECT_EQ(result.final.status().code(), 0);
  EXPECT_TRUE(result.rows.at("y") == EightRows().x().data());
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_TRUE(NothingLeft());
}

TEST_F(ChunkedLifecycleTest, TheWindowBoundsWhatRunsAndIsReserved) {
  InProcessServerOptions options;
  options.grpc.stream_window_bytes = 256;
  StartServer(options, /*slots=*/64);
  OpenStream stream(*stub_);
  NormalizeRequest request = EightRows();
  *request.mutable_x() = Zeros({200, 4});
  const ChunkedMessages messages(kId, request);
  stream.Write(messages.Header());
  ASSERT_TRUE(Await([&] { return InFlightBytes() == 256; }));
  std::thread writer([&] {
    for (int64_t i = 0; i < 200; ++i) stream.Write(messages.Rows(i, 1, i == 199));
  });
  // 16 bytes in and 16 out for each row: eight fit.
  ASSERT_TRUE(Running(8));
  EXPECT_EQ(InFlightBytes(), 256);
  for (int done = 0; done < 200;) {
    ASSERT_TRUE(Await([&] { return executor_->running() > 0; }));
    const int64_t rows = executor_->batch(0).jobs.front()->problem.rows;
    EXPECT_LE(executor_->running(), 8);
    FinishWithCopy(0);
    done += static_cast<int>(rows);
  }
  writer.join();
  EXPECT_EQ(stream.AwaitFinal(kId).final.status().code(), 0);
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_TRUE(NothingLeft());
}

TEST_F(ChunkedLifecycleTest, OneRequestsFullWindowDoesNotHoldUpAnother) {
  InProcessServerOptions options;
  options.grpc.stream_window_bytes = 256;
  StartServer(options, /*slots=*/64);
  OpenStream stream(*stub_);
  const ChunkedMessages messages(kId, EightRows());
  stream.Write(messages.Header());
  stream.Write(messages.Rows(0, 7, false));
  ASSERT_TRUE(Running(1));
  stream.Write(OneOf(4));
  stream.Write(ChunkedMessages(5, EightRows()).Header());
  stream.Write(ChunkedMessages(5, EightRows()).Rows(0, 8, true));
  ASSERT_TRUE(Running(3));
}

TEST_F(ChunkedLifecycleTest, GatheredRowsAreReservedAtTheHeaderAndRunOnce) {
  StartServer();
  OpenStream stream(*stub_);
  NormalizeBackwardRequest request;
  request.mutable_rms_norm();
  *request.mutable_x() = Zeros({8, 4});
  *request.mutable_dy() = Zeros({8, 4});
  *request.mutable_weight() = Zeros({4});
  const ChunkedMessages messages(kId, request);
  stream.Write(messages.Header());
  // x, dy, dx: 128 each; weight, dweight: 16.
  ASSERT_TRUE(Await([&] { return InFlightBytes() == 3 * 128 + 2 * 16; }));
  for (int64_t i = 0; i < 7; ++i) stream.Write(messages.Rows(i, 1, false));
  stream.Write(OneOf(4));
  ASSERT_TRUE(Running(1));  // that one; the gathered one still waits for its last row
  executor_->Finish(0, absl::InternalError("only to end it"));
  stream.AwaitFinal(4);
  stream.Write(messages.Rows(7, 1, true));
  ASSERT_TRUE(Running(1));
  EXPECT_EQ(executor_->batch(0).jobs.front()->problem.rows, 8);
  EXPECT_EQ(InFlightBytes(), 3 * 128 + 2 * 16);
  executor_->Finish(0, absl::InternalError("broken"));
  EXPECT_EQ(stream.AwaitFinal(kId).final.status().message(), "broken");
  EXPECT_TRUE(NothingLeft());
}

TEST_F(ChunkedLifecycleTest, WhatDoesNotFitIsRefusedAtTheHeader) {
  InProcessServerOptions options;
  options.scheduler.max_in_flight_bytes = 3000;
  StartServer(options);
  OpenStream stream(*stub_);
  NormalizeRequest request;
  request.mutable_batch_norm()->set_mode(norm::v1::BatchNorm::MODE_TRAINING);
  const auto open = [&](uint64_t id, int64_t rows) {
    *request.mutable_x() = Zeros({rows, 4});
    stream.Write(ChunkedMessages(id, request).Header());
  };
  open(1, 64);  // 1024 in, 1024 out
  ASSERT_TRUE(Await([&] { return InFlightBytes() == 2048; }));
  open(2, 64);
  const norm::v1::Status full = stream.AwaitFinal(2).final.status();
  EXPECT_EQ(full.code(), grpc::StatusCode::UNAVAILABLE);
  ASSERT_EQ(full.details_size(), 1);
  EXPECT_EQ(full.details(0).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  open(3, 128);
  EXPECT_EQ(stream.AwaitFinal(3).final.status().code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(InFlightBytes(), 2048);
  EXPECT_EQ(stream.finals(1), 0);
}

TEST_F(ChunkedLifecycleTest, AFullQueueDoesNotRefuseRowsOfAnAdmittedRequest) {
  InProcessServerOptions options;
  options.scheduler.max_queue_requests = 1;
  StartServer(options, /*slots=*/1);
  OpenStream stream(*stub_);
  const ChunkedMessages messages(kId, EightRows());
  stream.Write(messages.Header());
  stream.Write(OneOf(10));
  ASSERT_TRUE(Running(1));
  stream.Write(OneOf(11));
  ASSERT_TRUE(Queued(1));
  stream.Write(messages.Rows(0, 4, false));
  ASSERT_TRUE(Queued(2));
  stream.Write(OneOf(12));
  EXPECT_EQ(stream.AwaitFinal(12).final.status().code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(stream.finals(kId), 0);
}

TEST_F(ChunkedLifecycleTest, AFailedJobEndsTheRequestAndRowsAfterItAreDropped) {
  StartServer({}, /*slots=*/4);
  OpenStream stream(*stub_);
  const ChunkedMessages messages(kId, EightRows());
  stream.Write(messages.Header());
  stream.Write(messages.Rows(0, 2, false));
  stream.Write(messages.Rows(2, 2, false));
  ASSERT_TRUE(Running(2));
  executor_->Finish(1, absl::UnavailableError("the device is lost"));
  const norm::v1::Status status = stream.AwaitFinal(kId).final.status();
  EXPECT_EQ(status.code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.message(), "the device is lost");
  stream.Write(messages.Rows(4, 4, true));
  stream.Write(OneOf(10));
  ASSERT_TRUE(Running(2));  // the first job, and that one
  FinishWithCopy(0);        // its rows go nowhere
  executor_->Finish(0, absl::InternalError("only to end it"));
  stream.AwaitFinal(10);
  EXPECT_EQ(stream.finals(kId), 1);
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_TRUE(NothingLeft());
}

TEST_F(ChunkedLifecycleTest, CancelDropsWhatWaitsAndLetsWhatRunsEnd) {
  StartServer({}, /*slots=*/1);
  OpenStream stream(*stub_);
  const ChunkedMessages messages(kId, EightRows());
  stream.Write(messages.Header());
  stream.Write(messages.Rows(0, 2, false));
  ASSERT_TRUE(Running(1));
  stream.Write(OneOf(10));
  ASSERT_TRUE(Queued(1));
  stream.Write(messages.Rows(2, 2, false));
  ASSERT_TRUE(Queued(2));
  for (const uint64_t id : {kId, uint64_t{10}}) {
    StreamRequest cancel;
    cancel.set_id(id);
    cancel.mutable_cancel();
    stream.Write(cancel);
    EXPECT_EQ(stream.AwaitFinal(id).final.status().code(), grpc::StatusCode::CANCELLED);
  }
  ASSERT_TRUE(Queued(0));
  FinishWithCopy(0);
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_TRUE(NothingLeft());
  EXPECT_EQ(executor_->started(), 1);
}

TEST_F(ChunkedLifecycleTest, RowsOfAWholeRequestInFlightAreRefused) {
  StartServer();
  OpenStream stream(*stub_);
  stream.Write(OneOf(kId));
  ASSERT_TRUE(Running(1));
  stream.Write(ChunkedMessages(kId, EightRows()).Rows(0, 2, false));
  const norm::v1::Status status = stream.AwaitFinal(kId).final.status();
  EXPECT_EQ(status.code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.message(), HasSubstr("id 3 has no chunked request in flight"));
}

TEST_F(ChunkedLifecycleTest, RowsAfterTheLastEndTheRequest) {
  StartServer();
  OpenStream stream(*stub_);
  const ChunkedMessages messages(kId, EightRows());
  for (const StreamRequest& message : messages.All(8)) stream.Write(message);
  ASSERT_TRUE(Running(1));
  stream.Write(messages.Rows(0, 2, false));
  EXPECT_THAT(stream.AwaitFinal(kId).final.status().message(),
              HasSubstr("rows come after the last"));
  FinishWithCopy(0);
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_TRUE(NothingLeft());
}

TEST_F(ChunkedLifecycleTest, DrainLetsAnUploadFinish) {
  StartServer();
  OpenStream stream(*stub_);
  const ChunkedMessages messages(kId, EightRows());
  stream.Write(messages.Header());
  stream.Write(messages.Rows(0, 4, false));
  ASSERT_TRUE(Running(1));
  std::future<absl::Status> drained =
      std::async(std::launch::async, [&] { return server_->server().Drain(); });
  ASSERT_TRUE(Draining());
  // New work is refused; the rows that were promised are taken.
  stream.Write(OneOf(10));
  EXPECT_EQ(stream.AwaitFinal(10).final.status().code(), grpc::StatusCode::UNAVAILABLE);
  stream.Write(messages.Rows(4, 4, true));
  FinishWithCopy(0);
  ASSERT_TRUE(Running(1));
  FinishWithCopy(0);
  const ChunkedResult result = stream.AwaitFinal(kId);
  EXPECT_EQ(result.final.status().code(), 0);
  EXPECT_TRUE(result.rows.at("y") == EightRows().x().data());
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(drained.get().ok());
}

TEST_F(ChunkedLifecycleTest, DrainEndsUploadsThatDoNotFinishInTime) {
  InProcessServerOptions options;
  options.grpc.drain_timeout = absl::Milliseconds(100);
  StartServer(options);
  OpenStream stream(*stub_);
  const ChunkedMessages messages(kId, EightRows());
  stream.Write(messages.Header());
  stream.Write(messages.Rows(0, 4, false));
  ASSERT_TRUE(Running(1));
  FinishWithCopy(0);
  EXPECT_EQ(server_->server().Drain().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(stream.Finish().ok());
  EXPECT_EQ(InFlightBytes(), 0);
}

TEST_F(ChunkedLifecycleTest, DeadlineOfTheCallEndsAnUpload) {
  StartServer();
  OpenStream stream(*stub_);
  const ChunkedMessages messages(kId, EightRows());
  StreamRequest header = messages.Header();
  header.set_timeout_us(30'000);
  stream.Write(header);
  stream.Write(messages.Rows(0, 4, false));
  // A job is running when the time is up.
  EXPECT_EQ(stream.AwaitFinal(kId).final.status().code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  stream.Write(messages.Rows(4, 4, true));
  EXPECT_TRUE(stream.Finish().ok());
  while (executor_->running() > 0) executor_->Finish();
  EXPECT_TRUE(NothingLeft());
}

}  // namespace
}  // namespace norm::server
