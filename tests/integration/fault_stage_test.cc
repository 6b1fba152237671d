// What can go wrong with a request, at each stage of its way: the right code reaches the client,
// everything it took comes back, and others are served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>

#include "absl/cleanup/cleanup.h"
#include "tests/integration/gated_server.h"

namespace norm::test {
namespace {

enum class Stage { kDecode, kQueue, kCopy, kKernel, kSend };
enum class Fault { kDeadline, kCancel, kReset, kDrain };

std::string Name(const testing::TestParamInfo<std::tuple<Stage, Fault>>& info) {
  constexpr const char* kStages[] = {"Decode", "Queue", "Copy", "Kernel", "Send"};
  constexpr const char* kFaults[] = {"Deadline", "Cancel", "Reset", "Drain"};
  return std::string(kFaults[static_cast<int>(std::get<1>(info.param))]) + "In" +
         kStages[static_cast<int>(std::get<0>(info.param))];
}

class FaultStageTest : public testing::TestWithParam<std::tuple<Stage, Fault>> {
 protected:
  static Stage stage() { return std::get<0>(GetParam()); }
  static Fault fault() { return std::get<1>(GetParam()); }

  ~FaultStageTest() override { OpenAll(); }

  void CloseGate() {
    if (stage() == Stage::kDecode) server_.clock().Close();
    if (stage() == Stage::kQueue || stage() == Stage::kCopy) server_.gates().before_copy.Close();
    if (stage() == Stage::kKernel) server_.gates().after_kernel.Close();
  }
  void OpenAll() {
    server_.clock().Open();
    server_.gates().before_copy.Open();
    server_.gates().after_kernel.Open();
  }
  /// Whether the request has come to its stage.
  bool AtStage() {
    return Await([this] {
      switch (stage()) {
        case Stage::kDecode:
          return server_.clock().waiting() > 0;
        case Stage::kQueue:
          return server_.Load().queued_requests == 1;
        case Stage::kCopy:
          return server_.gates().before_copy.waiting() == 1;
        case Stage::kKernel:
          return server_.gates().after_kernel.waiting() == 1;
        case Stage::kSend:
          return server_.HoldsResponses();
      }
      return false;
    });
  }
  /// Past every deadline and time limit of the server, without waiting for them.
  void LetTimePass() {
    server_.clock().Advance(absl::Minutes(20));
    // While the clock is closed, whoever reads it in the scheduler holds its mutex.
    if (stage() != Stage::kDecode) server_.server().scheduler().ReapQueue();
  }
  std::future<absl::Status> Drain() {
    return std::async(std::launch::async, [this] { return server_.server().server().Drain(); });
  }
  /// Whether Drain has come to refusing calls.
  bool Draining() {
    const auto stub = norm::v1::NormalizationService::NewStub(server_.server().Connect());
    return Await([&] {
      grpc::ClientContext context;
      norm::v1::NormalizeResponse response;
      return stub->Normalize(&context, norm::v1::NormalizeRequest(), &response).error_code() ==
             grpc::StatusCode::UNAVAILABLE;
    });
  }

  GatedServer server_{[] {
    InProcessServerOptions options;
    options.grpc.write_timeout = absl::Minutes(10);
    options.grpc.drain_timeout = absl::Minutes(1);
    return options;
  }()};
};

TEST_P(FaultStageTest, TheClientIsToldAndNothingIsLeft) {
  TcpRelay relay(server_.address());
  std::unique_ptr<PendingCall> before;  // takes the only slot
  CloseGate();
  if (stage() == Stage::kQueue) {
    before = std::make_unique<PendingCall>(server_.address(), CanaryRequest());
    ASSERT_TRUE(Await([this] { return server_.gates().before_copy.waiting() == 1; }));
  }
  std::unique_ptr<PendingCall> call;
  std::unique_ptr<UnreadCall> unread;
  if (stage() == Stage::kSend) {
    unread =
        std::make_unique<UnreadCall>(InProcessServer::Connect(relay.address()), LargeRequest());
  } else {
    call = std::make_unique<PendingCall>(relay.address(), CanaryRequest());
  }
  std::future<absl::Status> drained;
  // Whatever fails below, what waits at a gate goes on before it is waited for.
  const absl::Cleanup open = [this] { OpenAll(); };
  ASSERT_TRUE(AtStage());

  switch (fault()) {
    case Fault::kDeadline:
      LetTimePass();
      // In sending it is the time for reading a response that is up.
      if (stage() == Stage::kSend) {
        ASSERT_TRUE(server_.Shows("normd_write_timeouts_total 1"));
      }
      break;
    case Fault::kCancel:
      if (call != nullptr) call->Cancel();
      if (unread != nullptr) unread->Cancel();
      break;
    case Fault::kReset:
      relay.Break();
      break;
    case Fault::kDrain:
      drained = Drain();
      // Held in decode, the threads that would refuse a call are stopped too.
      ASSERT_TRUE(stage() == Stage::kDecode ? server_.Shows("normd_draining 1") : Draining());
      break;
  }
  grpc::StatusCode expected = grpc::StatusCode::OK;
  switch (fault()) {
    case Fault::kDeadline:
      expected = stage() == Stage::kSend ? grpc::StatusCode::CANCELLED
                                         : grpc::StatusCode::DEADLINE_EXCEEDED;
      break;
    case Fault::kCancel:
      expected = grpc::StatusCode::CANCELLED;
      break;
    case Fault::kReset:
      expected = grpc::StatusCode::UNAVAILABLE;
      break;
    case Fault::kDrain:
      break;  // what was accepted is finished
  }
  // The client that left is told at once; the server finds out behind the gate.
  const bool left = fault() == Fault::kCancel || fault() == Fault::kReset;
  grpc::Status status;
  if (call != nullptr) {
    if (left) status = call->Await();
    OpenAll();
    if (!left) status = call->Await();
  } else {
    norm::v1::NormalizeResponse response;
    if (!left) {
      // A client that is broken off learns of it when it reads at last.
      EXPECT_EQ(unread->Read(&response), fault() == Fault::kDrain);
    }
    if (fault() == Fault::kDrain) {
      EXPECT_EQ(response.y().data().size(), size_t{4} << 20);
    }
    status = unread->Finish();
  }
  if (stage() == Stage::kDecode && fault() == Fault::kDrain) {
    // Not accepted yet: either is right, and a refusal says when to come back.
    if (!status.ok()) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
      EXPECT_TRUE(call->has_pushback());
    }
  } else {
    EXPECT_EQ(status.error_code(), expected) << status.error_message();
  }
  if (before != nullptr) {
    EXPECT_EQ(before->Await().error_code(),
              fault() == Fault::kDeadline ? expected : grpc::StatusCode::OK);
  }
  if (drained.valid()) {
    EXPECT_TRUE(drained.get().ok());
  }
  server_.ExpectNothingLeft();
  if (fault() != Fault::kDrain) server_.ExpectServes();
}

INSTANTIATE_TEST_SUITE_P(All, FaultStageTest,
                         testing::Combine(testing::Values(Stage::kDecode, Stage::kQueue,
                                                          Stage::kCopy, Stage::kKernel,
                                                          Stage::kSend),
                                          testing::Values(Fault::kDeadline, Fault::kCancel,
                                                          Fault::kReset, Fault::kDrain)),
                         Name);

}  // namespace
}  // namespace norm::test
