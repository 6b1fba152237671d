// normctl with tensors that travel in rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/tensor_file/tensor_file.h"
#include "tests/unit/client/normctl_fixture.h"

namespace norm::client {
namespace {

using ::testing::HasSubstr;

TEST_F(NormctlTest, SendsALargeFileInRowsAndShowsProgress) {
  int64_t row_messages = 0;
  server_.on_stream = [&](grpc::ServerContext&,
                          grpc::ServerReaderWriter<v1::StreamResponse, v1::StreamRequest>& stream) {
    v1::StreamRequest request;
    while (stream.Read(&request)) {
      if (!request.has_rows()) continue;
      ++row_messages;
      v1::StreamResponse response;
      response.set_id(request.id());
      response.mutable_rows()->set_first_row(request.rows().first_row());
      response.mutable_rows()->set_y(request.rows().x());
      stream.Write(response);
      if (!request.rows().last()) continue;
      response.mutable_forward();
      stream.Write(response);
    }
    return grpc::Status::OK;
  };
  Tensor x = *Tensor::Allocate(DType::kF32, {5000, 1000});
  for (int64_t i = 0; i < x.elements(); ++i)
    reinterpret_cast<float*>(x.mutable_bytes().data())[i] = static_cast<float>(i);
  TensorOutputs files;
  ASSERT_TRUE(files.Add(folder_ / "x.npy", "x", x).ok());
  ASSERT_TRUE(files.Write().ok());
  const std::string command = "rmsnorm --stream-above 10 --input " + (folder_ / "x.npy") +
                              " --output " + (folder_ / "y.npy") + Server();
  const Finished shown = Normctl(command + " --progress always");
  EXPECT_EQ(shown.exit_code, 0) << shown.error;
  EXPECT_GT(row_messages, 1);
  EXPECT_THAT(shown.error, HasSubstr("[##############################] sent 19.1 of 19.1 MiB, "
                                     "100 % returned"));
  EXPECT_TRUE(ScratchFolder::Read(folder_ / "y.npy") == ScratchFolder::Read(folder_ / "x.npy"));
  // No terminal, and nobody asked.
  EXPECT_EQ(Normctl(command).error, "");
  EXPECT_EQ(Normctl(command + " --progress never").error, "");
  EXPECT_EQ(Normctl(command + " --progress sometimes").exit_code, 2);
  // In one message, where that is preferred.
  row_messages = 0;
  EXPECT_EQ(
      Normctl("rmsnorm --stream-above 20 --input " + (folder_ / "x.npy") + Server()).exit_code, 0);
  EXPECT_EQ(row_messages, 0);
}

}  // namespace
}  // namespace norm::client
