#include "server/scheduler/parameter_interner.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace norm::server {
namespace {

using Runs = std::vector<absl::Span<const std::byte>>;

__extension__ using Uint128 = unsigned __int128;

uint64_t Mix(uint64_t state, uint64_t word) {
  // 128-bit multiply folded to 64: every input bit reaches every output bit.
  const auto product = static_cast<Uint128>(state ^ word) * 0x9E3779B97F4A7C15ULL;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t LoadWord(const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

Runs ParameterRuns(const Job& job) {
  Runs runs;
  for (int i = 0; i < kTensorRoleCount; ++i) {
    const auto role = static_cast<TensorRole>(i);
    if (IsParameter(role) && job.problem.inputs.Has(role)) {
      runs.insert(runs.end(), job.inputs[i].runs.begin(), job.inputs[i].runs.end());
    }
  }
  return runs;
}

bool Equal(const std::string& bytes, const Runs& runs) {
  size_t offset = 0;
  for (const auto& run : runs) {
    if (run.size() > bytes.size() - offset ||
        (!run.empty() && std::memcmp(bytes.data() + offset, run.data(), run.size()) != 0)) {
      return false;
    }
    offset += run.size();
  }
  return offset == bytes.size();
}

std::string Join(const Runs& runs) {
  std::string bytes;
  size_t size = 0;
  for (const auto& run : runs) {
    size += run.size();
  }
  bytes.reserve(size);
  for (const auto& run : runs) {
    bytes.append(reinterpret_cast<const char*>(run.data()), run.size());
  }
  return bytes;
}

}  // namespace

uint64_t HashRuns(const Runs& runs) {
  constexpr size_t kWord = sizeof(uint64_t);
  uint64_t state = 0x2545F4914F6CDD1DULL;
  uint64_t total = 0;
  std::byte carry[kWord];  // the bytes of a word that straddles runs
  size_t carried = 0;
  for (absl::Span<const std::byte> run : runs) {
    total += run.size();
    while (carried > 0 && carried < kWord && !run.empty()) {
      carry[carried++] = run.front();
      run.remove_prefix(1);
    }
    if (carried == kWord) {
      state = Mix(state, LoadWord(carry));
      carried = 0;
    }
    while (run.size() >= kWord) {
      state = Mix(state, LoadWord(run.data()));
      run.remove_prefix(kWord);
    }
    for (const std::byte byte : run) {
      carry[carried++] = byte;
    }
  }
  std::fill(carry + carried, carry + kWord, std::byte{0});
  return Mix(Mix(state, LoadWord(carry)), total);
}

std::shared_ptr<const ParameterSet> ParameterInterner::Intern(const Job& job) {
  const Runs runs = ParameterRuns(job);
  if (runs.empty()) {
    return nullptr;
  }
  const uint64_t hash = hash_(runs);
  const auto match = [&](const Candidates& candidates) -> std::shared_ptr<const ParameterSet> {
    for (const auto& candidate : candidates) {
      if (Equal(candidate->bytes, runs)) {
        return candidate;
      }
    }
    return nullptr;
  };

  Candidates seen;
  {
    std::lock_guard lock(mutex_);
    seen = Find(hash);
  }
  if (auto found = match(seen)) {
    return found;
  }
  auto fresh = std::make_shared<ParameterSet>(ParameterSet{hash, Join(runs)});
  while (true) {
    Candidates unseen;
    {
      std::lock_guard lock(mutex_);
      // Candidates that other threads added since the last look; with none left, ours is the first
      // of its content.
      for (auto& candidate : Find(hash)) {
        if (std::find(seen.begin(), seen.end(), candidate) == seen.end()) {
          unseen.push_back(std::move(candidate));
        }
      }
      if (unseen.empty()) {
        if (++added_ >= sweep_at_) {
          DropExpired();
        }
        contents_[hash].push_back(fresh);
        return fresh;
      }
    }
    if (auto found = match(unseen)) {
      return found;
    }
    seen.insert(seen.end(), unseen.begin(), unseen.end());
  }
}

int64_t ParameterInterner::LiveCount() const {
  std::lock_guard lock(mutex_);
  int64_t live = 0;
  for (const auto& [hash, entries] : contents_) {
    live += std::count_if(entries.begin(), entries.end(),
                          [](const auto& entry) { return !entry.expired(); });
  }
  return live;
}

ParameterInterner::Candidates ParameterInterner::Find(uint64_t hash) const {
  Candidates candidates;
  if (const auto it = contents_.find(hash); it != contents_.end()) {
    for (const auto& entry : it->second) {
      if (auto live = entry.lock()) {
        candidates.push_back(std::move(live));
      }
    }
  }
  return candidates;
}

void ParameterInterner::DropExpired() {
  for (auto it = contents_.begin(); it != contents_.end();) {
    auto& entries = it->second;
    entries.erase(std::remove_if(entries.begin(), entries.end(),
                                 [](const auto& entry) { return entry.expired(); }),
                  entries.end());
    if (entries.empty()) {
      contents_.erase(it++);
    } else {
      ++it;
    }
  }
  added_ = 0;
  sweep_at_ = std::max<int64_t>(64, static_cast<int64_t>(contents_.size()));
}

}  // namespace norm::server
