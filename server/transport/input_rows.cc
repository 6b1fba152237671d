#include "server/transport/input_rows.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/scheduler/row_split.h"
#include "server/transport/field_error.h"
#include "server/transport/receive_memory.h"

namespace norm::server {
namespace {

constexpr TensorRole kRowRoles[] = {TensorRole::kX,    TensorRole::kResidual,
                                    TensorRole::kDy,   TensorRole::kMean,
                                    TensorRole::kRstd, TensorRole::kDresidualSum};

const std::string& Field(const norm::v1::InputRows& rows, TensorRole role) {
  switch (role) {
    case TensorRole::kResidual:
      return rows.residual();
    case TensorRole::kDy:
      return rows.dy();
    case TensorRole::kMean:
      return rows.mean();
    case TensorRole::kRstd:
      return rows.rstd();
    case TensorRole::kDresidualSum:
      return rows.dresidual_sum();
    default:
      return rows.x();
  }
}

const wire::Payload& Bytes(const StreamMessage& message, TensorRole role) {
  return message.bytes.payload(Field(message.request.rows(), role));
}

/// Where the next tensor may begin behind one of so many bytes: see JobMemory.
int64_t Aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

std::string FieldName(TensorRole role) { return absl::StrCat("rows.", TensorRoleName(role)); }

}  // namespace

std::vector<RowColumn> RowColumns(const NormProblem& problem) {
  std::vector<RowColumn> columns;
  for (const TensorRole role : kRowRoles) {
    if (problem.inputs.Has(role) && TravelsInRows(problem.op, role)) {
      columns.push_back({role, RowBytes(problem, role)});
    }
  }
  return columns;
}

absl::StatusOr<int64_t> CountRows(const StreamMessage& message,
                                  const std::vector<RowColumn>& columns) {
  TensorRoleSet wanted;
  for (const RowColumn& column : columns) wanted.Add(column.role);
  for (const TensorRole role : kRowRoles) {
    if (!wanted.Has(role) && Bytes(message, role).size_bytes != 0) {
      return InvalidField(FieldName(role), "is not allowed: the header has no such tensor in rows");
    }
  }
  int64_t rows = -1;
  for (const RowColumn& column : columns) {
    const int64_t size = Bytes(message, column.role).size_bytes;
    // Rows of an empty tensor may have no bytes; any are too many.
    const int64_t count = size / std::max<int64_t>(column.row_bytes, 1);
    if (count * column.row_bytes != size) {
      return InvalidField(FieldName(column.role),
                          absl::StrCat("has ", size, " bytes, must be a multiple of ",
                                       column.row_bytes, ", the size of a row"));
    }
    if (rows < 0) rows = count;
    if (count != rows) {
      return InvalidField(FieldName(column.role),
                          absl::StrCat("has ", count, " rows != ", rows, " rows of ",
                                       TensorRoleName(columns.front().role)));
    }
  }
  return rows;
}

void RowQueue::Push(std::shared_ptr<const StreamMessage> message, int64_t rows) {
  if (rows == 0) return;
  rows_ += rows;
  for (const RowColumn& column : columns_) bytes_ += rows * column.row_bytes;
  entries_.push_back({std::move(message), rows, std::vector<Position>(columns_.size())});
}

RowQueue::Owners RowQueue::Take(int64_t rows, std::array<InputTensor, kTensorRoleCount>* inputs) {
  Owners owners;
  rows_ -= rows;
  while (rows > 0) {
    Entry& entry = entries_.front();
    const int64_t count = std::min(rows, entry.rows);
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::vector<absl::Span<const std::byte>>& runs =
          Bytes(*entry.message, columns_[i].role).runs;
      InputTensor& input = (*inputs)[static_cast<size_t>(columns_[i].role)];
      Position& at = entry.positions[i];
      auto left = static_cast<size_t>(count * columns_[i].row_bytes);
      bytes_ -= static_cast<int64_t>(left);
      input.size_bytes += static_cast<int64_t>(left);
      while (left > 0) {
        const absl::Span<const std::byte> run = runs[at.run].subspan(at.offset);
        const size_t size = std::min(left, run.size());
        input.runs.push_back(run.first(size));
        left -= size;
        at.offset += size;
        if (size == run.size()) at = {at.run + 1, 0};
      }
    }
    owners.push_back(entry.message);
    rows -= count;
    entry.rows -= count;
    if (entry.rows == 0) entries_.pop_front();
  }
  for (const RowColumn& column : columns_) {
    InputTensor& input = (*inputs)[static_cast<size_t>(column.role)];
    input.page_locked = LiesInReceiveMemory(input.runs);
  }
  return owners;
}

int64_t RowAssembly::MemoryBytes(const std::vector<RowColumn>& columns, int64_t rows,
                                 const Inputs& whole) {
  int64_t bytes = 0;
  for (const RowColumn& column : columns) bytes += Aligned(rows * column.row_bytes);
  for (const InputTensor& input : whole) bytes += Aligned(input.size_bytes);
  return bytes;
}

RowAssembly::RowAssembly(std::vector<RowColumn> columns, int64_t rows, const Inputs& whole,
                         JobMemory memory)
    : columns_(std::move(columns)), rows_(rows), memory_(std::move(memory)) {
  std::byte* at = memory_.inputs.get();
  ForEach([&](const RowColumn& column, std::byte* place) {
    at = place + Aligned(rows_ * column.row_bytes);
  });
  for (size_t i = 0; i < whole.size(); ++i) {
    if (whole[i].size_bytes == 0) continue;
    std::byte* const place = at;
    for (const absl::Span<const std::byte> run : whole[i].runs) {
      at = std::copy(run.begin(), run.end(), at);
    }
    whole_[i] = {{absl::MakeConstSpan(place, static_cast<size_t>(at - place))},
                 whole[i].size_bytes,
                 /*page_locked=*/true};
    at = place + Aligned(whole[i].size_bytes);
  }
}

template <typename Visit>
void RowAssembly::ForEach(Visit visit) const {
  std::byte* at = memory_.inputs.get();
  for (const RowColumn& column : columns_) {
    visit(column, at);
    at += Aligned(rows_ * column.row_bytes);
  }
}

void RowAssembly::Copy(const StreamMessage& message, int64_t first_row) const {
  ForEach([&](const RowColumn& column, std::byte* at) {
    Bytes(message, column.role).CopyTo(at + first_row * column.row_bytes);
  });
}

void RowAssembly::MoveTo(Job* job) {
  job->inputs = whole_;
  ForEach([&](const RowColumn& column, const std::byte* at) {
    InputTensor& input = job->inputs[static_cast<size_t>(column.role)];
    input.size_bytes = rows_ * column.row_bytes;
    if (input.size_bytes == 0) return;
    input.runs = {absl::MakeConstSpan(at, static_cast<size_t>(input.size_bytes))};
    input.page_locked = true;
  });
  job->memory = std::move(memory_);
}

void RowQueue::Clear() {
  entries_.clear();
  rows_ = 0;
  bytes_ = 0;
}

}  // namespace norm::server
