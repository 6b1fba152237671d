#include "client/normctl/load_connection.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "client/normctl/load_mix.h"
#include "norm/client/client.h"
#include "tests/unit/client/fake_server.h"

namespace norm::normctl {
namespace {

using ServerStream = grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>;

TEST(LoadConnectionTest, OpensAStreamThatHasEndedAgain) {
  client::FakeServer server;
  server.on_stream = [](grpc::ServerContext&, ServerStream& stream) {
    v1::StreamRequest request;
    if (!stream.Read(&request)) return grpc::Status::OK;
    v1::StreamResponse response;
    response.set_id(request.id());
    *response.mutable_forward()->mutable_y() = request.forward().x();
    stream.Write(response);
    return grpc::Status::OK;  // the only answer of this stream
  };
  std::vector<PreparedCase> cases;
  cases.push_back(*PreparedCase::Make(LoadCase{.shape = {2, 8}}));
  const std::unique_ptr<client::Client> client = *client::Client::Create(server.address());
  const auto connection = OpenConnection(*client, cases, LoadTransport::kStream);
  ASSERT_TRUE(connection.ok()) << connection.status();
  int answered = 0;
  // One that is sent while the end of the stream is on its way fails.
  for (int64_t i = 0; i < 10'000 && answered < 3; ++i)
    answered += (*connection)->Send(0, i, absl::Seconds(30)).ok() ? 1 : 0;
  EXPECT_EQ(answered, 3);
}

}  // namespace
}  // namespace norm::normctl
