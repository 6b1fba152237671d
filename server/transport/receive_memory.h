// Page-locked memory that gRPC receives in, so that a device can copy tensors from where they came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "server/observability/metrics.h"

namespace norm::server {

/// Pieces of one block of memory, handed out and taken back without a lock.
///
/// Order:    a thread takes the lowest free piece behind a place of its own, so that what it takes
///           one after another mostly lies end to end, and what is used is used again while it is
///           still in the caches.
/// Threads:  safe.
class ReceivePieces {
 public:
  /// What gRPC asks for at a time where much is to be read.
  static constexpr int64_t kPieceBytes = int64_t{64} << 10;

  /// `bytes` is rounded down to pieces.
  ReceivePieces(std::shared_ptr<std::byte> memory, int64_t bytes);
  ~ReceivePieces();
  ReceivePieces(const ReceivePieces&) = delete;
  ReceivePieces& operator=(const ReceivePieces&) = delete;

  /// kPieceBytes; null when all are in use.
  std::byte* Take();
  void Return(const std::byte* piece);

  int64_t count() const { return count_; }
  int64_t free_count() const;
  /// The number of the piece that starts here.
  int64_t IndexOf(const std::byte* piece) const { return (piece - memory_.get()) / kPieceBytes; }
  bool Holds(absl::Span<const std::byte> run) const {
    return run.data() >= memory_.get() &&
           run.data() + run.size() <= memory_.get() + count_ * kPieceBytes;
  }

 private:
  struct Words;
  const std::shared_ptr<std::byte> memory_;
  const int64_t count_;
  const std::unique_ptr<Words> words_;
};

/// From now on gRPC's transports of this process, of servers and channels, receive large messages in
/// this memory while it has room. To be called once, before the first of them. The memory stays for
/// the rest of the process: gRPC drops its last slices after the server is gone.
void ReceiveInto(std::shared_ptr<std::byte> memory, int64_t bytes);

/// Of the memory of ReceiveInto; zeros where there is none.
MemoryUse UseOfReceiveMemory();

/// Whether all these bytes lie in the memory of ReceiveInto.
bool LiesInReceiveMemory(absl::Span<const absl::Span<const std::byte>> runs);

}  // namespace norm::server
