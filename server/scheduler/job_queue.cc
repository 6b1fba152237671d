#include "server/scheduler/job_queue.h"

#include <algorithm>
#include <queue>

#include "server/scheduler/segmented_jobs.h"

namespace norm::server {
namespace {

constexpr std::array<Priority, kPriorityCount> kInteractiveFirst = {Priority::kInteractive,
                                                                    Priority::kBulk};
constexpr std::array<Priority, kPriorityCount> kBulkFirst = {Priority::kBulk,
                                                             Priority::kInteractive};

int64_t BytesBesideParameters(const NormProblem& problem) {
  return ProblemBytes(problem) - ParameterBytes(problem);
}

}  // namespace

template <typename Change>
void JobQueue::Update(Class& of, uint64_t flow_id, Change change) {
  std::unique_ptr<Flow>& slot = of.flows[flow_id];
  if (slot == nullptr) slot = std::make_unique<Flow>();
  Flow& flow = *slot;
  if (!flow.released.empty()) {
    of.turns.erase(Turn{flow.tag, *flow.released.begin(), flow_id});
  }
  if (flow.jobs == 0) {
    of.resting.erase({flow.tag, flow_id});
    flow.tag = std::max(flow.tag, of.now);
  }
  change(flow);
  if (!flow.released.empty()) {
    of.turns.insert(Turn{flow.tag, *flow.released.begin(), flow_id});
  }
  if (flow.jobs > 0) return;
  if (flow.tag > of.now) {
    of.resting.insert({flow.tag, flow_id});
  } else {
    of.flows.erase(flow_id);
  }
}

void JobQueue::AdvanceTo(Class& of, int64_t tag) {
  of.now = std::max(of.now, tag);
  while (!of.resting.empty() && of.resting.begin()->first <= of.now) {
    of.flows.erase(of.resting.begin()->second);
    of.resting.erase(of.resting.begin());
  }
}

void JobQueue::Push(std::unique_ptr<Job> job, std::optional<JobKeys> keys, absl::Time order_time,
                    absl::Time hold_until) {
  const uint64_t arrival = arrivals_++;
  const Position position(order_time, arrival);
  const int64_t bytes = ProblemBytes(job->problem);
  const int64_t cost = Cost(*job);
  if (job->deadline != absl::InfiniteFuture()) expiry_.emplace(job->deadline, arrival);

  bool held = false;
  Group* group = nullptr;
  if (keys.has_value()) {
    std::unique_ptr<Group>& slot = groups_[keys->batch];
    const bool opened = slot == nullptr;
    if (opened) {
      slot = std::make_unique<Group>();
      slot->id = arrival;
    }
    group = slot.get();
    group->flows[static_cast<size_t>(job->priority)][job->flow].insert(position);
    ++group->jobs;
    group->rows += job->problem.rows;
    group->bytes += BytesBesideParameters(job->problem);
    grouped_bytes_ += BytesBesideParameters(job->problem);
    if (opened) {
      held = hold_until > absl::InfinitePast();
    } else {
      held = group->held_until > absl::InfinitePast();
    }
    if (held) {
      if (!opened) held_.erase(Position(group->held_until, group->id));
      group->held_until = opened ? hold_until : std::min(group->held_until, hold_until);
      held_.emplace(Position(group->held_until, group->id), group);
    }
  } else {
    ++single_jobs_;
  }

  Class& of = ClassOf(job->priority);
  ++of.jobs;
  of.cost += cost;
  Update(of, job->flow, [&](Flow& flow) {
    ++flow.jobs;
    if (!job->reserved) flow.bytes += bytes;
    flow.cost += cost;
    if (!held) flow.released.insert(position);
  });
  entries_.emplace(arrival, Entry{std::move(job), bytes, cost, order_time, std::move(keys)});
  if (held && (group->rows >= options_.full_rows || group->bytes >= options_.full_bytes)) {
    Unhold(*group);
  }
}

void JobQueue::Unhold(Group& group) {
  held_.erase(Position(group.held_until, group.id));
  group.held_until = absl::InfinitePast();
  for (size_t priority = 0; priority < group.flows.size(); ++priority) {
    for (const auto& [flow_id, positions] : group.flows[priority]) {
      Update(classes_[priority], flow_id, [&positions = positions](Flow& flow) {
        flow.released.insert(positions.begin(), positions.end());
      });
    }
  }
}

void JobQueue::Release(absl::Time now) {
  while (!held_.empty() && NextRelease() <= now) {
    Group& group = *held_.begin()->second;
    Unhold(group);
    group.waited_out = true;
  }
}

absl::Time JobQueue::NextRelease() const {
  return held_.empty() ? absl::InfiniteFuture() : held_.begin()->first.first;
}

std::array<Priority, kPriorityCount> JobQueue::LeadingOrder() const {
  const Class& bulk = ClassOf(Priority::kBulk);
  if (bulk.turns.empty()) return kInteractiveFirst;
  const int64_t cost = entries_.at(bulk.turns.begin()->head.second).cost;
  return bulk_credit_ >= cost * (100 - options_.bulk_share_percent) ? kBulkFirst
                                                                    : kInteractiveFirst;
}

JobQueue::Popped JobQueue::PopBatch(const BatchLimits& limits) {
  Popped popped;
  for (const Priority priority : LeadingOrder()) {
    if (Lead(priority, limits, popped)) break;
  }
  return popped;
}

bool JobQueue::Lead(Priority priority, const BatchLimits& limits, Popped& popped) {
  Class& of = ClassOf(priority);
  for (auto turn = of.turns.begin(); turn != of.turns.end();) {
    const Turn at = *turn;
    const Positions& released = of.flows.at(at.flow)->released;
    // By value: taking a cancelled job changes the set, and may end the flow.
    std::optional<Position> next = at.head;
    bool flow_changed = false;
    while (next.has_value()) {
      const Position position = *next;
      const Entry& entry = entries_.at(position.second);
      const bool cancelled = IsCancelled(*entry.job);
      if (!cancelled && LaunchBytes(*entry.job) <= limits.max_job_bytes) {
        AdvanceTo(of, of.turns.begin()->tag);
        std::optional<JobKeys> keys = entry.keys;
        popped.batch = std::make_unique<Batch>();
        popped.batch->reason = BatchCloseReason::kSingle;
        popped.batch->jobs.push_back(Serve(position.second));
        if (keys.has_value()) Fill(*std::move(keys), limits, popped);
        return true;
      }
      const auto after = released.upper_bound(position);
      next = after == released.end() ? std::nullopt : std::optional<Position>(*after);
      if (cancelled) {
        popped.cancelled.push_back(Take(position.second));
        flow_changed = true;
      }
    }
    turn = flow_changed ? of.turns.upper_bound(at) : std::next(turn);
  }
  return false;
}

void JobQueue::Fill(JobKeys first, const BatchLimits& limits, Popped& popped) {
  Batch& batch = *popped.batch;
  batch.reason = BatchCloseReason::kSlotFree;
  const auto found = groups_.find(first.batch);
  if (found == groups_.end()) return;
  const Group& group = *found->second;
  if (group.waited_out) batch.reason = BatchCloseReason::kDelay;

  // The next job of each flow, first to be served on top.
  using Candidate = std::pair<int, Turn>;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto add = [&](int priority, uint64_t flow_id) {
    const auto& flows = group.flows[static_cast<size_t>(priority)];
    if (const auto flow = flows.find(flow_id); flow != flows.end()) {
      const int64_t tag = classes_[static_cast<size_t>(priority)].flows.at(flow_id)->tag;
      candidates.emplace(priority, Turn{tag, *flow->second.begin(), flow_id});
    }
  };
  for (int priority = 0; priority < kPriorityCount; ++priority) {
    for (const auto& [flow_id, positions] : group.flows[static_cast<size_t>(priority)]) {
      add(priority, flow_id);
    }
  }

  int64_t rows = batch.jobs.front()->problem.rows;
  int64_t bytes = ProblemBytes(batch.jobs.front()->problem);
  int64_t workspace_bytes = batch.jobs.front()->workspace_bytes;
  SegmentedJobs segments;
  segments.Add(0, std::move(first.segment), std::move(batch.jobs.front()));
  batch.jobs.clear();
  for (int64_t left = group.jobs; left > 0;) {
    const auto [priority, turn] = candidates.top();
    candidates.pop();
    const uint64_t arrival = turn.head.second;
    Entry& entry = entries_.at(arrival);
    const NormProblem& problem = entry.job->problem;
    const size_t segment = segments.Find(entry.keys->segment);
    const bool starts_one = segment == segments.count();
    const int64_t more_bytes = starts_one ? entry.bytes : BytesBesideParameters(problem);
    if (IsCancelled(*entry.job)) {
      popped.cancelled.push_back(Take(arrival));
    } else if (problem.rows > limits.max_rows - rows) {
      batch.reason = BatchCloseReason::kRows;
      break;
    } else if (more_bytes > limits.max_bytes - bytes ||
               more_bytes + entry.job->workspace_bytes >
                   limits.max_job_bytes - bytes - workspace_bytes) {
      batch.reason = BatchCloseReason::kBytes;
      break;
    } else if (starts_one && static_cast<int64_t>(segments.count()) >= limits.max_segments) {
      batch.reason = BatchCloseReason::kSegments;
      break;
    } else {
      rows += problem.rows;
      bytes += more_bytes;
      workspace_bytes += entry.job->workspace_bytes;
      std::optional<SegmentKey> key = std::move(entry.keys->segment);
      segments.Add(segment, std::move(key), Serve(arrival));
    }
    // The last job takes the group with it.
    if (--left > 0) add(priority, turn.flow);
  }
  segments.MoveTo(batch);
}

std::unique_ptr<Job> JobQueue::Serve(uint64_t arrival) {
  const Entry& entry = entries_.at(arrival);
  const int64_t cost = entry.cost;
  const Priority priority = entry.job->priority;
  if (priority == Priority::kInteractive) {
    if (ClassOf(Priority::kBulk).jobs > 0) bulk_credit_ += cost * options_.bulk_share_percent;
  } else {
    bulk_credit_ = std::max(int64_t{0}, bulk_credit_ - cost * (100 - options_.bulk_share_percent));
  }
  // Before the job is taken: with its last job a flow that owes nothing is forgotten.
  Update(ClassOf(priority), entry.job->flow, [cost](Flow& flow) { flow.tag += cost; });
  return Take(arrival);
}

std::unique_ptr<Job> JobQueue::Take(uint64_t arrival) {
  const auto it = entries_.find(arrival);
  Entry entry = std::move(it->second);
  entries_.erase(it);
  const Job& job = *entry.job;
  const Position position(entry.order_time, arrival);
  if (job.deadline != absl::InfiniteFuture()) expiry_.erase(Position(job.deadline, arrival));
  if (entry.keys.has_value()) {
    const auto found = groups_.find(entry.keys->batch);
    Group& group = *found->second;
    --group.jobs;
    group.rows -= job.problem.rows;
    group.bytes -= BytesBesideParameters(job.problem);
    grouped_bytes_ -= BytesBesideParameters(job.problem);
    auto& flows = group.flows[static_cast<size_t>(job.priority)];
    const auto flow = flows.find(job.flow);
    flow->second.erase(position);
    if (flow->second.empty()) flows.erase(flow);
    if (group.jobs == 0) {
      held_.erase(Position(group.held_until, group.id));
      groups_.erase(found);
    }
  } else {
    --single_jobs_;
  }
  Class& of = ClassOf(job.priority);
  --of.jobs;
  of.cost -= entry.cost;
  Update(of, job.flow, [&](Flow& flow) {
    --flow.jobs;
    if (!entry.job->reserved) flow.bytes -= entry.bytes;
    flow.cost -= entry.cost;
    flow.released.erase(position);
  });
  if (of.jobs == 0) {
    of.flows.clear();
    of.resting.clear();
    of.now = 0;
    if (job.priority == Priority::kBulk) bulk_credit_ = 0;
  }
  return std::move(entry.job);
}

std::unique_ptr<Job> JobQueue::TakeLast(uint64_t flow_id) {
  for (const Priority priority : kBulkFirst) {
    const Class& of = ClassOf(priority);
    const auto flow = of.flows.find(flow_id);
    if (flow == of.flows.end()) continue;
    const Positions& released = flow->second->released;
    for (auto last = released.rbegin(); last != released.rend(); ++last) {
      if (!entries_.at(last->second).job->reserved) return Take(last->second);
    }
  }
  return nullptr;
}

std::vector<std::unique_ptr<Job>> JobQueue::TakeExpired(absl::Time now) {
  std::vector<std::unique_ptr<Job>> taken;
  while (!expiry_.empty() && NextDeadline() <= now) taken.push_back(Take(expiry_.begin()->second));
  return taken;
}

std::vector<std::unique_ptr<Job>> JobQueue::TakeCancelled() {
  return TakeIf([](const Entry& entry) { return IsCancelled(*entry.job); });
}

std::vector<std::unique_ptr<Job>> JobQueue::TakeLargerThan(int64_t bytes) {
  return TakeIf([bytes](const Entry& entry) { return LaunchBytes(*entry.job) > bytes; });
}

int64_t JobQueue::BytesOf(uint64_t flow_id) const {
  int64_t bytes = 0;
  for (const Class& of : classes_) {
    const auto flow = of.flows.find(flow_id);
    if (flow != of.flows.end()) bytes += flow->second->bytes;
  }
  return bytes;
}

int64_t JobQueue::launches() const {
  return single_jobs_ + std::max(static_cast<int64_t>(groups_.size()),
                                 grouped_bytes_ / std::max(int64_t{1}, options_.full_bytes));
}

int64_t JobQueue::CostAhead(const Job& job, absl::Time order_time) const {
  const Class& of = ClassOf(job.priority);
  int64_t start = of.now;
  int64_t ahead = 0;
  if (const auto own = of.flows.find(job.flow); own != of.flows.end()) {
    start = std::max(start, own->second->tag);
    for (const Position& position : own->second->released) {
      if (position.first > order_time) break;
      ahead += entries_.at(position.second).cost;
    }
  }
  start += ahead;
  for (const auto& [flow_id, flow] : of.flows) {
    if (flow_id != job.flow) {
      ahead += std::clamp(start - flow->tag, int64_t{0}, flow->cost);
    }
  }
  if (job.priority == Priority::kInteractive) return ahead;
  const int64_t share = options_.bulk_share_percent;
  return ahead + std::min(ClassOf(Priority::kInteractive).cost,
                          (ahead + Cost(job)) * (100 - share) / share);
}

absl::Time JobQueue::NextDeadline() const {
  return expiry_.empty() ? absl::InfiniteFuture() : expiry_.begin()->first;
}

template <typename Predicate>
std::vector<std::unique_ptr<Job>> JobQueue::TakeIf(Predicate wanted) {
  std::vector<uint64_t> arrivals;
  for (const auto& [arrival, entry] : entries_) {
    if (wanted(entry)) arrivals.push_back(arrival);
  }
  std::sort(arrivals.begin(), arrivals.end());
  std::vector<std::unique_ptr<Job>> taken;
  taken.reserve(arrivals.size());
  for (const uint64_t arrival : arrivals) taken.push_back(Take(arrival));
  return taken;
}

}  // namespace norm::server
