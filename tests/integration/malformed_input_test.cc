// Bad input over the wire: the code, what the message says, and that the connection serves the next
// request as if nothing had been.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.grpc.pb.h"
#include "prometheus/text_serializer.h"
#include "server/observability/metrics_impl.h"
#include "tests/support/cpu_server.h"
#include "tests/support/request_builder.h"

namespace norm::server {
namespace {

using norm::test::CanaryRequest;
using norm::test::CanaryValues;
using norm::test::CpuServer;
using norm::test::F32Tensor;
using norm::test::F32Values;
using norm::test::InProcessServerOptions;
using norm::test::RawTensor;
using norm::test::Zeros;
using norm::v1::NormalizationService;
using norm::v1::NormalizeRequest;
using testing::HasSubstr;

constexpr char kNormalizePath[] = "/norm.v1.NormalizationService/Normalize";

InProcessServerOptions SmallMessages() {
  InProcessServerOptions options;
  options.grpc.max_message_bytes = int64_t{1} << 20;
  return options;
}

class MalformedInputTest : public testing::Test {
 protected:
  grpc::Status Call(const NormalizeRequest& request, norm::v1::NormalizeResponse* response) {
    grpc::ClientContext context;
    return stub_->Normalize(&context, request, response);
  }

  grpc::Status Call(const NormalizeRequest& request) {
    norm::v1::NormalizeResponse response;
    return Call(request, &response);
  }

  /// A call whose request is `bytes` as they are.
  grpc::Status CallRaw(const std::string& bytes) {
    grpc::Slice slice(bytes);
    grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    grpc::GenericStub stub(channel_);
    auto call = stub.PrepareUnaryCall(&context, kNormalizePath, request, &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(&response, &status, this);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }

  void ExpectCanary() {
    norm::v1::NormalizeResponse response;
    const grpc::Status status = Call(CanaryRequest(), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    const std::vector<float> y = F32Values(response.y());
    const std::vector<float> want = CanaryValues();
    ASSERT_EQ(y.size(), want.size());
    for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], want[i], 5e-6F);
  }

  CpuServer cpu_{SmallMessages()};
  std::shared_ptr<grpc::Channel> channel_ = cpu_.server.Connect();
  std::unique_ptr<NormalizationService::Stub> stub_ = NormalizationService::NewStub(channel_);
};

struct BadRequest {
  const char* name;
  std::function<void(NormalizeRequest*)> change;  // of the canary
  const char* message;
};

class MalformedRequestTest : public MalformedInputTest,
                             public testing::WithParamInterface<BadRequest> {};

TEST_P(MalformedRequestTest, IsRefusedByNameAndTheNextOneWorks) {
  NormalizeRequest request = CanaryRequest();
  GetParam().change(&request);
  const grpc::Status status = Call(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr(GetParam().message));
  norm::v1::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.BadRequest");
  ExpectCanary();
}

void MakeBatchNorm(NormalizeRequest* request, norm::v1::BatchNorm::Mode mode,
                   const std::vector<int64_t>& shape) {
  request->mutable_batch_norm()->set_mode(mode);
  *request->mutable_x() = Zeros(shape);
}

using R = NormalizeRequest*;

INSTANTIATE_TEST_SUITE_P(
    Rules, MalformedRequestTest,
    testing::Values(
        BadRequest{"UnknownDtype",
                   [](R r) { r->mutable_x()->set_dtype(static_cast<norm::v1::DType>(77)); },
                   "x.dtype 77 is not a known dtype"},
        BadRequest{"ByteSizeOverShape",
                   [](R r) {
                     *r->mutable_x() = F32Tensor({1, 5}, {1, 2, 3, 4, 5, 6, 7});
                   },
                   "x.data has 28 bytes != 20 bytes of shape [1,5] in f32"},
        BadRequest{"ByteSizeUnderShape",
                   [](R r) {
                     *r->mutable_x() = F32Tensor({1, 10}, {1, 2, 3, 4, 5});
                   },
                   "x.data has 20 bytes != 40 bytes of shape [1,10] in f32"},
        BadRequest{"NegativeDimension", [](R r) { r->mutable_x()->set_shape(0, -1); },
                   "x.shape dimension 0 is -1, must be >= 0"},
        BadRequest{
            "TwoNegativeDimensions",
            [](R r) {
              *r->mutable_x() = RawTensor(norm::v1::DTYPE_F32, {-2, -8}, std::string(64, '\0'));
            },
            "x.shape dimension 0 is -2, must be >= 0"},
        BadRequest{"OverflowingDimensions",
                   [](R r) { r->mutable_x()->set_shape(0, int64_t{1} << 62); },
                   "x.shape [4611686018427387904,4] of f32 overflows"},
        BadRequest{"EightGiBClaimed", [](R r) { r->mutable_x()->set_shape(0, int64_t{1} << 29); },
                   "x.data has 16 bytes != 8589934592 bytes"},
        BadRequest{"RankZero", [](R r) { r->mutable_x()->clear_shape(); }, "x.shape has rank 0"},
        BadRequest{"ShortWeight", [](R r) { *r->mutable_weight() = Zeros({3}); },
                   "weight length 3 != hidden_size 4"},
        BadRequest{"WeightDtype",
                   [](R r) {
                     *r->mutable_weight() =
                         RawTensor(norm::v1::DTYPE_BF16, {4}, std::string(8, '\0'));
                   },
                   "weight.dtype bf16 must be f32 or the dtype f32 of x"},
        BadRequest{"EpsNegative", [](R r) { r->mutable_rms_norm()->set_eps(-0.5); },
                   "rms_norm.eps -0.5 must be finite and >= 0"},
        BadRequest{
            "EpsNan",
            [](R r) { r->mutable_rms_norm()->set_eps(std::numeric_limits<double>::quiet_NaN()); },
            "rms_norm.eps nan must be finite"},
        BadRequest{
            "EpsInfinite",
            [](R r) { r->mutable_rms_norm()->set_eps(std::numeric_limits<double>::infinity()); },
            "rms_norm.eps inf must be finite"},
        BadRequest{"OneValuePerChannel",
                   [](R r) {
                     MakeBatchNorm(r, norm::v1::BatchNorm::MODE_TRAINING, {1, 4});
                   },
                   "x.shape [1,4] has 1 value per channel, training needs >= 2"},
        BadRequest{"NoRunningStatistics",
                   [](R r) {
                     MakeBatchNorm(r, norm::v1::BatchNorm::MODE_INFERENCE, {2, 4});
                   },
                   "running_mean is missing: inference mode needs it"}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

TEST_F(MalformedInputTest, GarbageBytesAreNoMessage) {
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff"), std::string(100, '\x0a'), std::string("GET / HTTP/1.1"),
        CanaryRequest().SerializeAsString().substr(0, 20)}) {
    const grpc::Status status = CallRaw(bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_FALSE(status.error_message().empty());
    ExpectCanary();
  }
  EXPECT_EQ(CallRaw("").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  ExpectCanary();
}

TEST_F(MalformedInputTest, GarbageEndsAStreamAfterTheAnswersBefore) {
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto stream = stub.PrepareCall(&context, "/norm.v1.NormalizationService/NormalizeStream", &queue);
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok;
  };
  stream->StartCall(nullptr);
  ASSERT_TRUE(next());
  norm::v1::StreamRequest good;
  good.set_id(5);
  *good.mutable_forward() = CanaryRequest();
  for (const std::string& bytes : {good.SerializeAsString(), std::string("\xff\xff\xff")}) {
    grpc::Slice slice(bytes);
    stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    ASSERT_TRUE(next());
  }
  grpc::ByteBuffer answer;
  stream->Read(&answer, nullptr);
  ASSERT_TRUE(next());
  stream->Read(&answer, nullptr);
  EXPECT_FALSE(next());
  grpc::Status status;
  stream->Finish(&status, nullptr);
  ASSERT_TRUE(next());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  ExpectCanary();
}

TEST_F(MalformedInputTest, MessagesUpToTheLimitPassAndLargerOnesAreExhausted) {
  // A request of exactly max_message_bytes: x takes what the rest of the message leaves.
  NormalizeRequest request;
  request.mutable_rms_norm();
  const auto sized = [&request](int64_t elements) {
    *request.mutable_x() = Zeros({1, elements});
    return static_cast<int64_t>(request.ByteSizeLong());
  };
  const int64_t limit = SmallMessages().grpc.max_message_bytes;
  int64_t elements = limit / 4;
  while (sized(elements) > limit) --elements;
  norm::v1::NormalizeResponse response;
  EXPECT_TRUE(Call(request, &response).ok());
  EXPECT_EQ(response.y().data().size(), static_cast<size_t>(elements) * 4);
  sized(elements + 1);
  const grpc::Status status = Call(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr(std::to_string(limit)));
  ExpectCanary();
}

TEST_F(MalformedInputTest, NothingOfOneRequestLeaksIntoAnother) {
  NormalizeRequest other = CanaryRequest();
  *other.mutable_x() = F32Tensor({1, 4}, {100, 101, 102, 103});
  norm::v1::NormalizeResponse alone;
  ASSERT_TRUE(Call(other, &alone).ok());
  for (const int64_t rows : {10, 2, 10}) {
    NormalizeRequest request = CanaryRequest();
    std::vector<float> x;
    for (int64_t i = 0; i < rows * 4; ++i) x.push_back(static_cast<float>(i % 4 + 1));
    *request.mutable_x() = F32Tensor({rows, 4}, x);
    norm::v1::NormalizeResponse response;
    ASSERT_TRUE(Call(request, &response).ok());
    const std::vector<float> y = F32Values(response.y());
    ASSERT_EQ(y.size(), x.size());
    for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], CanaryValues()[i % 4], 5e-6F);
    norm::v1::NormalizeResponse again;
    ASSERT_TRUE(Call(other, &again).ok());
    EXPECT_EQ(again.y().data(), alone.y().data());
  }
}

TEST_F(MalformedInputTest, OddRequestsAddNoMetricSeries) {
  const auto lines = [this] {
    const std::string text = prometheus::TextSerializer().Serialize(cpu_.metrics.impl()->Collect());
    return std::count(text.begin(), text.end(), '\n');
  };
  ExpectCanary();
  const auto before = lines();
  for (int i = 0; i < 500; ++i) {
    NormalizeRequest request = CanaryRequest();
    request.mutable_x()->set_dtype(static_cast<norm::v1::DType>(i));
    if (i % 3 == 0) *request.mutable_x() = Zeros({i + 1, 4});
    if (i % 7 == 0) request.clear_op();
    Call(request).ok();
  }
  EXPECT_EQ(lines(), before);
  ExpectCanary();
}

TEST_F(MalformedInputTest, EmptyRowsAreAnswered) {
  NormalizeRequest request = CanaryRequest();
  *request.mutable_x() = Zeros({3, 0, 4});
  norm::v1::NormalizeResponse response;
  const grpc::Status status = Call(request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.y().shape_size(), 3);
  EXPECT_TRUE(response.y().data().empty());
  norm::v1::NormalizeBackwardRequest backward;
  backward.mutable_layer_norm();
  backward.set_has_bias(true);
  *backward.mutable_x() = Zeros({0, 4});
  *backward.mutable_dy() = Zeros({0, 4});
  *backward.mutable_weight() = Zeros({4});
  norm::v1::NormalizeBackwardResponse gradients;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->NormalizeBackward(&context, backward, &gradients).ok());
  EXPECT_EQ(F32Values(gradients.dweight()), std::vector<float>(4, 0.0F));
  EXPECT_EQ(F32Values(gradients.dbias()), std::vector<float>(4, 0.0F));
  ExpectCanary();
}

}  // namespace
}  // namespace norm::server
