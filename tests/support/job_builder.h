// Jobs for scheduler and executor tests: problems by hand, inputs that live as long as the job.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/scheduler/job.h"

namespace norm::test {

inline server::TensorRoleSet Roles(std::initializer_list<server::TensorRole> roles) {
  server::TensorRoleSet set;
  for (const server::TensorRole role : roles) {
    set.Add(role);
  }
  return set;
}

/// RMSNorm forward, f32, with a weight, y alone.
inline server::NormProblem RmsNormProblem(int64_t rows, int64_t hidden_size) {
  using Role = server::TensorRole;
  server::NormProblem problem;
  problem.op = Op::kRmsNorm;
  problem.rows = rows;
  problem.hidden_size = hidden_size;
  problem.eps = 1e-6;
  problem.inputs = Roles({Role::kX, Role::kWeight});
  problem.outputs = Roles({Role::kY});
  return problem;
}

/// A made-up BatchNorm, f32, of 8 bytes of x and y a row. Problems of unequal `kind` share no
/// launch.
inline server::NormProblem UnitProblem(int64_t rows, int kind) {
  server::NormProblem problem = RmsNormProblem(rows, 1);
  problem.op = Op::kBatchNorm;
  problem.inputs = Roles({server::TensorRole::kX});
  problem.batch_norm_shape = {.batch = rows, .channels = 1, .spatial = kind + 2};
  return problem;
}

/// LayerNorm forward, f32, with weight and bias, y alone.
inline server::NormProblem LayerNormProblem(int64_t rows, int64_t hidden_size) {
  using Role = server::TensorRole;
  server::NormProblem problem = RmsNormProblem(rows, hidden_size);
  problem.op = Op::kLayerNorm;
  problem.eps = 1e-5;
  problem.inputs = Roles({Role::kX, Role::kWeight, Role::kBias});
  return problem;
}

/// BatchNorm inference, f32, with weight and bias, y alone.
inline server::NormProblem BatchNormInferenceProblem(const BatchNormShape& shape) {
  using Role = server::TensorRole;
  server::NormProblem problem = LayerNormProblem(shape.batch * shape.spatial, shape.channels);
  problem.op = Op::kBatchNorm;
  problem.batch_norm_mode = BatchNormMode::kInference;
  problem.batch_norm_shape = shape;
  problem.inputs =
      Roles({Role::kX, Role::kWeight, Role::kBias, Role::kRunningMean, Role::kRunningVar});
  return problem;
}

/// How a job ended. Lives as long as anyone holds it.
class JobOutcome {
 public:
  /// Calls of `done` so far.
  int calls() const {
    std::lock_guard lock(mutex_);
    return calls_;
  }
  bool done() const { return calls() > 0; }
  /// Blocks until the job is done.
  const server::JobResult& Await() const {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return calls_ > 0; });
    return result_;
  }
  /// Of a job that is done.
  const server::JobResult& result() const { return Await(); }

  void Finish(server::JobResult result) {
    std::lock_guard lock(mutex_);
    result_ = std::move(result);
    ++calls_;
    finished_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable finished_;
  int calls_ = 0;
  server::JobResult result_;
};

/// Input bytes of a job by role, cut into runs of at most `run_bytes` to look like receive buffers.
class JobBuilder {
 public:
  explicit JobBuilder(server::NormProblem problem) : problem_(std::move(problem)) {}

  /// Every input that is not set is zeros of the right size.
  JobBuilder& Input(server::TensorRole role, std::string bytes) {
    (*inputs_)[static_cast<size_t>(role)] = std::move(bytes);
    return *this;
  }
  template <typename T>
  JobBuilder& Input(server::TensorRole role, const std::vector<T>& values) {
    return Input(
        role, std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
  }
  JobBuilder& Deadline(absl::Time deadline) {
    deadline_ = deadline;
    return *this;
  }
  JobBuilder& Cancelled(std::shared_ptr<std::atomic<bool>> flag) {
    cancelled_ = std::move(flag);
    return *this;
  }
  JobBuilder& Flow(uint64_t flow) {
    flow_ = flow;
    return *this;
  }
  JobBuilder& Priority(server::Priority priority) {
    priority_ = priority;
    return *this;
  }
  JobBuilder& RunBytes(size_t run_bytes) {
    run_bytes_ = run_bytes;
    return *this;
  }

  /// Call once: the job takes the inputs.
  std::unique_ptr<server::Job> Build(std::shared_ptr<JobOutcome> outcome) {
    auto job = std::make_unique<server::Job>();
    job->problem = problem_;
    job->flow = flow_;
    job->priority = priority_;
    job->deadline = deadline_;
    job->cancelled = cancelled_;
    for (int i = 0; i < server::kTensorRoleCount; ++i) {
      const auto role = static_cast<server::TensorRole>(i);
      if (!problem_.inputs.Has(role)) {
        continue;
      }
      std::string& bytes = (*inputs_)[static_cast<size_t>(i)];
      if (bytes.empty()) {
        bytes.resize(static_cast<size_t>(server::TensorBytes(problem_, role)));
      }
      server::InputTensor& input = job->inputs[static_cast<size_t>(i)];
      input.size_bytes = static_cast<int64_t>(bytes.size());
      const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
      for (size_t at = 0; at < bytes.size(); at += run_bytes_) {
        input.runs.emplace_back(data + at, std::min(run_bytes_, bytes.size() - at));
      }
    }
    job->done = [outcome = std::move(outcome), inputs = inputs_](server::JobResult result) mutable {
      inputs.reset();  // what the job borrowed is gone from here on
      if (outcome != nullptr) {
        outcome->Finish(std::move(result));
      }
    };
    inputs_ = nullptr;
    return job;
  }

 private:
  using Inputs = std::array<std::string, server::kTensorRoleCount>;

  server::NormProblem problem_;
  std::shared_ptr<Inputs> inputs_ = std::make_shared<Inputs>();
  absl::Time deadline_ = absl::InfiniteFuture();
  std::shared_ptr<std::atomic<bool>> cancelled_;
  uint64_t flow_ = 0;
  server::Priority priority_ = server::Priority::kInteractive;
  size_t run_bytes_ = size_t{1} << 20;
};

}  // namespace norm::test
