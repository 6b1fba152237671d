#include "server/device/copy_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "norm/kernels/thread_pool.h"

namespace norm::server {

double MeasureHostCopyBandwidth(int threads) {
  constexpr size_t kPieceBytes = size_t{1} << 20;
  constexpr size_t kPieces = 32;
  std::vector<char> from(kPieces * kPieceBytes, 1);
  std::vector<char> to(kPieces * kPieceBytes, 2);
  ThreadPool pool(threads);
  double best = 0.0;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.Run(kPieces, [&](int64_t piece) {
      const size_t offset = static_cast<size_t>(piece) * kPieceBytes;
      std::memcpy(to.data() + offset, from.data() + offset, kPieceBytes);
    });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * kPieces * kPieceBytes / std::max(elapsed.count(), 1e-9));
  }
  return best;
}

}  // namespace norm::server
