#include "tests/integration/chunked_stream.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace norm::test {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

const norm::v1::Tensor& TensorOf(const Message& message, const std::string& name) {
  return dynamic_cast<const norm::v1::Tensor&>(
      message.GetReflection()->GetMessage(message, message.GetDescriptor()->FindFieldByName(name)));
}

bool HasTensor(const Message& message, const std::string& name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  return field != nullptr && message.GetReflection()->HasField(message, field);
}

int64_t Product(const norm::v1::Tensor& tensor, int first, int last) {
  int64_t product = 1;
  for (int i = first; i < last; ++i) product *= tensor.shape(i);
  return product;
}

size_t ElementBytes(norm::v1::DType dtype) {
  switch (dtype) {
    case norm::v1::DTYPE_F64:
      return 8;
    case norm::v1::DTYPE_F32:
      return 4;
    default:
      return 2;
  }
}

/// Elements of a row of x, as the contract has it.
template <typename Request>
int64_t RowElements(const Request& request) {
  const norm::v1::Tensor& x = request.x();
  const int rank = x.shape_size();
  if (request.has_batch_norm()) {
    const bool nhwc = request.batch_norm().layout() == norm::v1::BatchNorm::LAYOUT_NHWC;
    if (nhwc || Product(x, 2, rank) == 1) return x.shape(nhwc ? rank - 1 : 1);
    return Product(x, 2, rank);
  }
  const int dims = request.has_rms_norm() ? request.rms_norm().normalized_dims()
                                          : request.layer_norm().normalized_dims();
  return Product(x, rank - std::max(dims, 1), rank);
}

}  // namespace

ChunkedMessages::ChunkedMessages(uint64_t id, const Message& request) {
  header_.set_id(id);
  header_.set_chunked(true);
  Message* body = nullptr;
  int64_t row_elements = 0;
  bool row_statistics = false;
  if (const auto* forward = dynamic_cast<const norm::v1::NormalizeRequest*>(&request)) {
    *header_.mutable_forward() = *forward;
    body = header_.mutable_forward();
    row_elements = RowElements(*forward);
  } else {
    const auto& backward = dynamic_cast<const norm::v1::NormalizeBackwardRequest&>(request);
    *header_.mutable_backward() = backward;
    body = header_.mutable_backward();
    row_elements = RowElements(backward);
    row_statistics = !backward.has_batch_norm();
  }
  const int64_t elements = Product(TensorOf(request, "x"), 0, TensorOf(request, "x").shape_size());
  rows_ = elements == 0 ? 0 : elements / row_elements;
  for (const char* name : {"x", "residual", "dy", "dresidual_sum", "mean", "rstd"}) {
    const bool statistic = std::string(name) == "mean" || std::string(name) == "rstd";
    if (!HasTensor(request, name) || (statistic && !row_statistics)) continue;
    auto* tensor = dynamic_cast<norm::v1::Tensor*>(
        body->GetReflection()->MutableMessage(body, body->GetDescriptor()->FindFieldByName(name)));
    const size_t element = ElementBytes(tensor->dtype());
    columns_.push_back(
        {name, tensor->data(), statistic ? element : element * static_cast<size_t>(row_elements)});
    tensor->clear_data();
  }
}

norm::v1::StreamRequest ChunkedMessages::Header() const { return header_; }

norm::v1::StreamRequest ChunkedMessages::Rows(int64_t first, int64_t count, bool last) const {
  norm::v1::StreamRequest message;
  message.set_id(header_.id());
  norm::v1::InputRows* rows = message.mutable_rows();
  rows->set_first_row(first);
  rows->set_last(last);
  for (const Column& column : columns_) {
    rows->GetReflection()->SetString(
        rows, rows->GetDescriptor()->FindFieldByName(column.name),
        column.bytes.substr(static_cast<size_t>(first) * column.row_bytes,
                            static_cast<size_t>(count) * column.row_bytes));
  }
  return message;
}

std::vector<norm::v1::StreamRequest> ChunkedMessages::All(int64_t rows_per_message) const {
  std::vector<norm::v1::StreamRequest> messages = {Header()};
  int64_t first = 0;
  do {
    const int64_t count = std::min(rows_per_message, rows_ - first);
    messages.push_back(Rows(first, count, first + count == rows_));
    first += count;
  } while (first < rows_);
  return messages;
}

void ChunkedResult::Add(const norm::v1::StreamResponse& response) {
  EXPECT_EQ(finals, 0) << "a response after the final one of id " << response.id();
  if (!response.has_rows()) {
    final = response;
    ++finals;
    return;
  }
  ++row_messages;
  const norm::v1::OutputRows& part = response.rows();
  std::vector<const FieldDescriptor*> fields;
  part.GetReflection()->ListFields(part, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->type() != FieldDescriptor::TYPE_BYTES) continue;
    std::string& bytes = rows[field->name()];
    const std::string more = part.GetReflection()->GetString(part, field);
    // Rows of equal size: the share of rows before is the share of bytes before.
    if (part.first_row() == 0) {
      EXPECT_EQ(bytes.size(), 0U);
    } else {
      EXPECT_EQ(bytes.size() % static_cast<size_t>(part.first_row()), 0U);
      EXPECT_GT(bytes.size(), 0U);
    }
    bytes += more;
  }
}

::testing::AssertionResult SameBits(const Message& whole, const ChunkedResult& result) {
  if (result.finals != 1) return ::testing::AssertionFailure() << result.finals << " finals";
  if (result.final.status().code() != 0) {
    return ::testing::AssertionFailure() << result.final.status().message();
  }
  const Message& last = result.final.has_forward()
                            ? static_cast<const Message&>(result.final.forward())
                            : static_cast<const Message&>(result.final.backward());
  if (last.GetDescriptor() != whole.GetDescriptor()) {
    return ::testing::AssertionFailure() << "the result of another direction";
  }
  size_t in_rows = 0;
  for (int i = 0; i < whole.GetDescriptor()->field_count(); ++i) {
    const std::string& name = whole.GetDescriptor()->field(i)->name();
    if (name == "timing") continue;
    const auto rows = result.rows.find(name);
    const bool empty = HasTensor(whole, name) && TensorOf(whole, name).data().empty();
    if (rows != result.rows.end()) {
      ++in_rows;
      if (HasTensor(last, name)) return ::testing::AssertionFailure() << name << " comes twice";
      if (!HasTensor(whole, name)) return ::testing::AssertionFailure() << "unasked " << name;
      if (rows->second != TensorOf(whole, name).data()) {
        return ::testing::AssertionFailure() << "bits of " << name;
      }
    } else if (!empty && HasTensor(last, name) != HasTensor(whole, name)) {
      return ::testing::AssertionFailure() << "presence of " << name;
    } else if (HasTensor(last, name) && TensorOf(last, name).SerializeAsString() !=
                                            TensorOf(whole, name).SerializeAsString()) {
      return ::testing::AssertionFailure() << "final " << name;
    }
  }
  if (in_rows != result.rows.size()) return ::testing::AssertionFailure() << "unknown rows";
  return ::testing::AssertionSuccess();
}

OpenStream::OpenStream(norm::v1::NormalizationService::Stub& stub)
    : stream_(stub.NormalizeStream(&context_)) {
  reader_ = std::thread([this] {
    norm::v1::StreamResponse response;
    while (stream_->Read(&response)) {
      const std::lock_guard lock(mutex_);
      results_[response.id()].Add(response);
      changed_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  });
}

OpenStream::~OpenStream() {
  context_.TryCancel();
  if (reader_.joinable()) reader_.join();
}

ChunkedResult OpenStream::AwaitFinal(uint64_t id) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::minutes(1),
                    [&] { return results_[id].finals > 0 || ended_; });
  EXPECT_EQ(results_[id].finals, 1) << "id " << id;
  return results_[id];
}

::testing::AssertionResult OpenStream::AwaitRows(uint64_t id, int64_t messages) {
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_for(lock, std::chrono::minutes(1), [&] {
    return results_[id].row_messages >= messages || ended_;
  });
  if (came && !ended_) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << results_[id].row_messages << " messages with rows";
}

int OpenStream::finals(uint64_t id) {
  const std::lock_guard lock(mutex_);
  return results_[id].finals;
}

void OpenStream::Forget(uint64_t id) {
  const std::lock_guard lock(mutex_);
  results_.erase(id);
}

grpc::Status OpenStream::Finish() {
  stream_->WritesDone();
  reader_.join();
  return stream_->Finish();
}

std::map<uint64_t, ChunkedResult> SendAll(RequestStream& stream,
                                          const std::vector<norm::v1::StreamRequest>& messages) {
  std::thread writer([&] {
    for (const norm::v1::StreamRequest& message : messages) stream.Write(message);
    stream.WritesDone();
  });
  std::map<uint64_t, ChunkedResult> results;
  norm::v1::StreamResponse response;
  while (stream.Read(&response)) results[response.id()].Add(response);
  writer.join();
  return results;
}

ChunkedResult SendAll(norm::v1::NormalizationService::Stub& stub,
                      const std::vector<norm::v1::StreamRequest>& messages) {
  grpc::ClientContext context;
  const auto stream = stub.NormalizeStream(&context);
  std::map<uint64_t, ChunkedResult> results = SendAll(*stream, messages);
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(results.size(), 1U);
  return results[messages.front().id()];
}

}  // namespace norm::test
