#include "server/transport/receive_memory.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "grpc/event_engine/memory_allocator.h"
#include "grpc/slice.h"

namespace norm::server {
namespace {

constexpr int kWordPieces = 64;
/// Places at which threads begin to look: more than threads that read.
constexpr size_t kHomes = 16;

size_t ThreadNumber() {
  static std::atomic<size_t> threads{0};
  thread_local const size_t kNumber = threads.fetch_add(1, std::memory_order_relaxed);
  return kNumber;
}

}  // namespace

struct ReceivePieces::Words {
  explicit Words(size_t count) : free(count) {}
  std::vector<std::atomic<uint64_t>> free;  // a bit for each piece
};

ReceivePieces::ReceivePieces(std::shared_ptr<std::byte> memory, int64_t bytes)
    : memory_(std::move(memory)),
      count_(bytes / kPieceBytes),
      words_(
          std::make_unique<Words>(static_cast<size_t>((count_ + kWordPieces - 1) / kWordPieces))) {
  for (int64_t i = 0; i < count_; ++i) {
    words_->free[static_cast<size_t>(i / kWordPieces)].fetch_or(uint64_t{1} << (i % kWordPieces));
  }
}

ReceivePieces::~ReceivePieces() = default;

std::byte* ReceivePieces::Take() {
  const size_t words = words_->free.size();
  const size_t home = ThreadNumber() % kHomes * words / kHomes;
  for (size_t i = 0; i < words; ++i) {
    const size_t w = (home + i) % words;
    std::atomic<uint64_t>& word = words_->free[w];
    uint64_t free = word.load(std::memory_order_relaxed);
    while (free != 0) {
      if (word.compare_exchange_weak(free, free & (free - 1), std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
        const auto piece = static_cast<int64_t>(w) * kWordPieces + std::countr_zero(free);
        return memory_.get() + piece * kPieceBytes;
      }
    }
  }
  return nullptr;
}

void ReceivePieces::Return(const std::byte* piece) {
  const int64_t i = IndexOf(piece);
  words_->free[static_cast<size_t>(i / kWordPieces)].fetch_or(uint64_t{1} << (i % kWordPieces),
                                                              std::memory_order_release);
}

int64_t ReceivePieces::free_count() const {
  return std::accumulate(words_->free.begin(), words_->free.end(), int64_t{0},
                         [](int64_t sum, const std::atomic<uint64_t>& word) {
                           return sum + std::popcount(word.load(std::memory_order_relaxed));
                         });
}

namespace {

using AllocatorImpl = grpc_event_engine::experimental::internal::MemoryAllocatorImpl;

/// What a slice owes to gRPC's quota until it is gone.
struct Reservation {
  std::shared_ptr<AllocatorImpl> quota;
  size_t bytes = 0;

  void End() {
    quota->Release(bytes);
    quota.reset();
  }
};

class ReceiveMemory {
 public:
  ReceiveMemory(std::shared_ptr<std::byte> memory, int64_t bytes)
      : pieces(std::move(memory), bytes), reservations(static_cast<size_t>(pieces.count())) {}

  ReceivePieces pieces;
  std::vector<Reservation> reservations;  // of each piece
};

std::atomic<ReceiveMemory*> receive_memory{nullptr};

/// A slice of ordinary memory: this, then its bytes.
struct HeapSlice {
  Reservation reservation;

  static void Destroy(void* slice) {
    auto* const self = static_cast<HeapSlice*>(slice);
    self->reservation.End();
    self->~HeapSlice();
    std::free(self);
  }
};

void ReturnPiece(void* data) {
  ReceiveMemory& memory = *receive_memory.load(std::memory_order_acquire);
  auto* const piece = static_cast<const std::byte*>(data);
  memory.reservations[static_cast<size_t>(memory.pieces.IndexOf(piece))].End();
  memory.pieces.Return(piece);
}

grpc_slice MakeReceiveSlice(std::shared_ptr<AllocatorImpl> quota,
                            grpc_event_engine::experimental::MemoryRequest request) {
  ReceiveMemory* const memory = receive_memory.load(std::memory_order_acquire);
  if (memory != nullptr && request.max() == ReceivePieces::kPieceBytes) {
    if (std::byte* const piece = memory->pieces.Take(); piece != nullptr) {
      Reservation& reservation =
          memory->reservations[static_cast<size_t>(memory->pieces.IndexOf(piece))];
      reservation.bytes = quota->Reserve(ReceivePieces::kPieceBytes);
      reservation.quota = std::move(quota);
      return grpc_slice_new_with_user_data(piece, ReceivePieces::kPieceBytes, ReturnPiece, piece);
    }
  }
  const size_t bytes = quota->Reserve(request.Increase(sizeof(HeapSlice)));
  void* const heap = std::malloc(bytes);
  if (heap == nullptr) std::abort();  // as gRPC does
  auto* const slice = new (heap) HeapSlice{{std::move(quota), bytes}};
  return grpc_slice_new_with_user_data(slice + 1, bytes - sizeof(HeapSlice), HeapSlice::Destroy,
                                       slice);
}

}  // namespace

void ReceiveInto(std::shared_ptr<std::byte> memory, int64_t bytes) {
  receive_memory.store(new ReceiveMemory(std::move(memory), bytes), std::memory_order_release);
}

MemoryUse UseOfReceiveMemory() {
  const ReceiveMemory* const memory = receive_memory.load(std::memory_order_acquire);
  if (memory == nullptr) return {};
  const int64_t free = memory->pieces.free_count();
  return {(memory->pieces.count() - free) * ReceivePieces::kPieceBytes,
          free * ReceivePieces::kPieceBytes};
}

bool LiesInReceiveMemory(absl::Span<const absl::Span<const std::byte>> runs) {
  const ReceiveMemory* const memory = receive_memory.load(std::memory_order_acquire);
  return memory != nullptr && std::all_of(runs.begin(), runs.end(), [memory](const auto& run) {
           return memory->pieces.Holds(run);
         });
}

}  // namespace norm::server

// gRPC's own definition, which its transports call for what they receive, gives way to this one: the
// dynamic linker takes the program's before a library's.
grpc_slice grpc_event_engine::experimental::MemoryAllocator::MakeSlice(MemoryRequest request) {
  return norm::server::MakeReceiveSlice(allocator_, request);
}
