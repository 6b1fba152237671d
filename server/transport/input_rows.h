// Rows of a chunked request between their arrival and the launch that takes them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/scheduler/job.h"
#include "server/transport/stream_message.h"

namespace norm::server {

/// A tensor that comes in rows.
struct RowColumn {
  TensorRole role = TensorRole::kX;
  int64_t row_bytes = 0;
};

/// Those of a problem's inputs.
std::vector<RowColumn> RowColumns(const NormProblem& problem);

/// How many rows a message holds: each column the same number, whole, and no other tensor. Errors:
/// INVALID_ARGUMENT naming the field.
absl::StatusOr<int64_t> CountRows(const StreamMessage& message,
                                  const std::vector<RowColumn>& columns);

/// Rows in order, as they lie in the receive buffers.
class RowQueue {
 public:
  explicit RowQueue(std::vector<RowColumn> columns) : columns_(std::move(columns)) {}

  /// `rows` as CountRows found them.
  void Push(std::shared_ptr<const StreamMessage> message, int64_t rows);

  using Owners = std::vector<std::shared_ptr<const StreamMessage>>;
  /// Fills the columns of `inputs` with the next `rows` rows; the result keeps their bytes alive.
  Owners Take(int64_t rows, std::array<InputTensor, kTensorRoleCount>* inputs);

  void Clear();
  int64_t rows() const { return rows_; }
  int64_t bytes() const { return bytes_; }

 private:
  struct Position {
    size_t run = 0;
    size_t offset = 0;
  };
  struct Entry {
    std::shared_ptr<const StreamMessage> message;
    int64_t rows = 0;                 // left of it
    std::vector<Position> positions;  // one per column
  };

  const std::vector<RowColumn> columns_;
  std::deque<Entry> entries_;
  int64_t rows_ = 0;
  int64_t bytes_ = 0;
};

/// Rows put together, and inputs that came with the header, in memory that an executor takes them
/// from: the host's one copy.
class RowAssembly {
 public:
  using Inputs = std::array<InputTensor, kTensorRoleCount>;

  /// Bytes of memory for so many rows and for what `whole` holds.
  static int64_t MemoryBytes(const std::vector<RowColumn>& columns, int64_t rows,
                             const Inputs& whole);

  /// Copies what `whole` holds. `memory`: MemoryBytes for inputs at least.
  RowAssembly(std::vector<RowColumn> columns, int64_t rows, const Inputs& whole, JobMemory memory);

  /// Copies the rows of a message, as CountRows found them, to their place.
  void Copy(const StreamMessage& message, int64_t first_row) const;
  /// Gives the job all inputs, and the memory that they lie in.
  void MoveTo(Job* job);

 private:
  /// Calls visit(column, its place).
  template <typename Visit>
  void ForEach(Visit visit) const;

  const std::vector<RowColumn> columns_;
  const int64_t rows_;
  Inputs whole_;  // in `memory_`
  JobMemory memory_;
};

}  // namespace norm::server
