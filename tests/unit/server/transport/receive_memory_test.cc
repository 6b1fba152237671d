#include "server/transport/receive_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>
#include <vector>

namespace norm::server {
namespace {

constexpr int64_t kPiece = ReceivePieces::kPieceBytes;

std::shared_ptr<std::byte> Memory(int64_t pieces) {
  return std::shared_ptr<std::byte>(new std::byte[static_cast<size_t>(pieces * kPiece)],
                                    std::default_delete<std::byte[]>());
}

TEST(ReceivePiecesTest, WhatIsTakenOneAfterAnotherLiesEndToEnd) {
  ReceivePieces pieces(Memory(64), 64 * kPiece);
  const std::byte* const first = pieces.Take();
  EXPECT_EQ(pieces.Take(), first + kPiece);
  EXPECT_EQ(pieces.Take(), first + 2 * kPiece);
  // The lowest free one again, which is still in the caches.
  pieces.Return(first + kPiece);
  EXPECT_EQ(pieces.Take(), first + kPiece);
  EXPECT_EQ(pieces.Take(), first + 3 * kPiece);
}

TEST(ReceivePiecesTest, EveryPieceIsTakenOnceUntilItComesBack) {
  // No multiple of 64, and bytes that are no piece.
  constexpr int64_t kCount = 150;
  const auto memory = Memory(kCount + 1);
  ReceivePieces pieces(memory, kCount * kPiece + kPiece / 2);
  EXPECT_EQ(pieces.count(), kCount);
  std::set<const std::byte*> taken;
  for (int64_t i = 0; i < kCount; ++i) {
    const std::byte* const piece = pieces.Take();
    ASSERT_NE(piece, nullptr);
    EXPECT_EQ((piece - memory.get()) % kPiece, 0);
    EXPECT_LT(pieces.IndexOf(piece), kCount);
    EXPECT_TRUE(taken.insert(piece).second);
    EXPECT_EQ(pieces.free_count(), kCount - 1 - i);
  }
  EXPECT_EQ(pieces.Take(), nullptr);
  for (const int64_t i : {int64_t{0}, int64_t{63}, int64_t{64}, kCount - 1}) {
    const std::byte* const piece = memory.get() + i * kPiece;
    pieces.Return(piece);
    EXPECT_EQ(pieces.Take(), piece);
    EXPECT_EQ(pieces.Take(), nullptr);
  }
}

TEST(ReceivePiecesTest, MemoryOfLessThanAPieceHasNone) {
  ReceivePieces pieces(Memory(1), kPiece - 1);
  EXPECT_EQ(pieces.count(), 0);
  EXPECT_EQ(pieces.Take(), nullptr);
}

TEST(ReceivePiecesTest, HoldsRunsThatLieInsideAsAWhole) {
  const auto memory = Memory(4);
  const ReceivePieces pieces(memory, 3 * kPiece);
  const auto run = [&](int64_t from, int64_t size) {
    return absl::MakeConstSpan(memory.get() + from, static_cast<size_t>(size));
  };
  EXPECT_TRUE(pieces.Holds(run(0, 3 * kPiece)));
  EXPECT_TRUE(pieces.Holds(run(kPiece - 1, 2)));
  EXPECT_TRUE(pieces.Holds(run(3 * kPiece - 1, 1)));
  EXPECT_FALSE(pieces.Holds(run(3 * kPiece - 1, 2)));
  EXPECT_FALSE(pieces.Holds(run(3 * kPiece, 1)));
  const std::byte elsewhere{};
  EXPECT_FALSE(pieces.Holds(absl::MakeConstSpan(&elsewhere, 1)));
}

TEST(ReceivePiecesTest, ThreadsNeverHaveTheSamePiece) {
  // Fewer than the threads want at a time.
  constexpr int kThreads = 8;
  constexpr int kHeld = 16;
  ReceivePieces pieces(Memory(100), 100 * kPiece);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&pieces, mark = static_cast<std::byte>(t)] {
      for (int round = 0; round < 300; ++round) {
        std::vector<std::byte*> held;
        for (int i = 0; i < kHeld; ++i) {
          if (std::byte* const piece = pieces.Take(); piece != nullptr) {
            std::fill_n(piece, 64, mark);
            held.push_back(piece);
          }
        }
        for (const std::byte* piece : held) {
          EXPECT_EQ(std::count(piece, piece + 64, mark), 64);
          pieces.Return(piece);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pieces.free_count(), 100);
}

}  // namespace
}  // namespace norm::server
