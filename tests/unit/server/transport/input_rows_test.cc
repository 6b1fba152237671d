#include "server/transport/input_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "tests/support/job_builder.h"

namespace norm::server {
namespace {

using Role = TensorRole;

/// x of 3 bytes a row, dy of 2.
const std::vector<RowColumn> kColumns = {{Role::kX, 3}, {Role::kDy, 2}};

/// A message as gRPC delivers it, in slices of `slice_bytes`.
std::shared_ptr<StreamMessage> Message(const std::string& x, const std::string& dy,
                                       size_t slice_bytes) {
  norm::v1::StreamRequest request;
  request.mutable_rows()->set_x(x);
  request.mutable_rows()->set_dy(dy);
  const std::string bytes = request.SerializeAsString();
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < bytes.size(); i += slice_bytes) {
    slices.emplace_back(bytes.substr(i, slice_bytes));
  }
  auto message = std::make_shared<StreamMessage>();
  EXPECT_TRUE(
      message->bytes.Parse(grpc::ByteBuffer(slices.data(), slices.size()), &message->request).ok());
  return message;
}

std::string Bytes(const InputTensor& input) {
  std::string bytes;
  for (const auto& run : input.runs) {
    bytes.append(reinterpret_cast<const char*>(run.data()), run.size());
  }
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), input.size_bytes);
  return bytes;
}

class InputRowsTest : public testing::TestWithParam<size_t> {
 protected:
  using Inputs = std::array<InputTensor, kTensorRoleCount>;
  static std::string X(const Inputs& inputs) {
    return Bytes(inputs[static_cast<size_t>(Role::kX)]);
  }
  static std::string Dy(const Inputs& inputs) {
    return Bytes(inputs[static_cast<size_t>(Role::kDy)]);
  }
};

TEST_P(InputRowsTest, RowsAreTakenAcrossMessagesAndSlices) {
  const std::string x = "aaabbbcccdddeeefff";
  const std::string dy = "112233445566";
  for (int64_t take = 1; take <= 6; ++take) {
    RowQueue queue(kColumns);
    for (const auto& [first, count] : {std::pair<size_t, size_t>{0, 1}, {1, 3}, {4, 2}}) {
      const auto message =
          Message(x.substr(3 * first, 3 * count), dy.substr(2 * first, 2 * count), GetParam());
      const absl::StatusOr<int64_t> rows = CountRows(*message, kColumns);
      ASSERT_TRUE(rows.ok()) << rows.status();
      EXPECT_EQ(*rows, static_cast<int64_t>(count));
      queue.Push(message, *rows);
    }
    EXPECT_EQ(queue.rows(), 6);
    EXPECT_EQ(queue.bytes(), 30);
    for (int64_t done = 0; done < 6;) {
      const int64_t rows = std::min(take, 6 - done);
      Inputs inputs;
      const RowQueue::Owners owners = queue.Take(rows, &inputs);
      EXPECT_FALSE(owners.empty());
      EXPECT_EQ(X(inputs), x.substr(static_cast<size_t>(3 * done), static_cast<size_t>(3 * rows)));
      EXPECT_EQ(Dy(inputs),
                dy.substr(static_cast<size_t>(2 * done), static_cast<size_t>(2 * rows)));
      done += rows;
      EXPECT_EQ(queue.rows(), 6 - done);
      EXPECT_EQ(queue.bytes(), 5 * (6 - done));
    }
  }
}

TEST_P(InputRowsTest, AssembledRowsLieTensorByTensor) {
  // A weight in two runs came with the header.
  const std::string weight = "wwWW";
  Inputs whole;
  const auto weight_bytes =
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(weight.data()), weight.size());
  whole[static_cast<size_t>(Role::kWeight)] = {{weight_bytes.first(3), weight_bytes.subspan(3)}, 4};
  EXPECT_EQ(RowAssembly::MemoryBytes(kColumns, 100, {}), 512 + 256);
  EXPECT_EQ(RowAssembly::MemoryBytes(kColumns, 100, whole), 512 + 256 + 256);
  const JobMemory memory = {std::shared_ptr<std::byte>(
      new std::byte[static_cast<size_t>(RowAssembly::MemoryBytes(kColumns, 3, whole))],
      std::default_delete<std::byte[]>())};
  RowAssembly assembly(kColumns, 3, whole, memory);
  assembly.Copy(*Message("bbbccc", "2233", GetParam()), 1);
  assembly.Copy(*Message("aaa", "11", GetParam()), 0);
  Job job;
  assembly.MoveTo(&job);
  EXPECT_EQ(job.memory.inputs, memory.inputs);
  const Inputs& inputs = job.inputs;
  EXPECT_EQ(X(inputs), "aaabbbccc");
  EXPECT_EQ(Dy(inputs), "112233");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(memory.inputs.get()) + 512, 4), "wwWW");
  for (const Role role : {Role::kX, Role::kDy, Role::kWeight}) {
    const InputTensor& input = inputs[static_cast<size_t>(role)];
    EXPECT_TRUE(input.page_locked);
    ASSERT_EQ(input.runs.size(), 1U);
    EXPECT_EQ((input.runs[0].data() - memory.inputs.get()) % 256, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(SliceBytes, InputRowsTest, testing::Values(1, 2, 7, 1000));

TEST(RowColumnsTest, AreTheInputsThatTravelInRows) {
  NormProblem problem = test::LayerNormProblem(6, 5);
  problem.inputs.Add(Role::kDy);
  problem.inputs.Add(Role::kRstd);
  std::vector<std::pair<Role, int64_t>> columns;
  for (const RowColumn& column : RowColumns(problem)) {
    columns.emplace_back(column.role, column.row_bytes);
  }
  EXPECT_EQ(columns, (std::vector<std::pair<Role, int64_t>>{
                         {Role::kX, 20}, {Role::kDy, 20}, {Role::kRstd, 4}}));
}

}  // namespace
}  // namespace norm::server
