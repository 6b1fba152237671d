#include "server/process_group/process_group.h"

#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace norm::server {
namespace {

constexpr absl::Duration kWatchInterval = absl::Milliseconds(50);
constexpr absl::Duration kFirstRestartDelay = absl::Seconds(1);
constexpr absl::Duration kLongestRestartDelay = absl::Seconds(30);
constexpr int kCannotStart = 127;
constexpr int kLastPort = 65535;

constexpr absl::string_view kVisibleDevices = "CUDA_VISIBLE_DEVICES=";

/// This process's, with other GPUs visible unless `visible_devices` is empty.
std::vector<std::string> Environment(const std::string& visible_devices) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (visible_devices.empty() || !absl::StartsWith(*variable, kVisibleDevices)) {
      variables.emplace_back(*variable);
    }
  }
  if (!visible_devices.empty()) {
    variables.push_back(absl::StrCat(kVisibleDevices, visible_devices));
  }
  return variables;
}

/// As execve takes them, borrowed from `texts`.
std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// What one member is started with.
struct MemberOptions {
  std::vector<std::string> arguments;
  std::string port_file;        // written by the member once it serves
  std::string visible_devices;  // empty: as in this process
};

/// One process of the group over its lives.
class Member {
 public:
  Member(const MemberOptions& options, int index) : options_(options), index_(index) {}

  void Start(const Logger& log) {
    unlink(options_.port_file.c_str());
    serving_ = false;
    // All of it before fork: CUDA may have threads by now, so the child must not allocate.
    std::vector<std::string> environment = Environment(options_.visible_devices);
    std::vector<char*> arguments = Pointers(options_.arguments);
    std::vector<char*> variables = Pointers(environment);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ != 0) {
      log.Info("process", {{"index", absl::StrCat(index_)},
                           {"pid", absl::StrCat(pid_)},
                           {"devices", options_.visible_devices}});
      return;
    }
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(kCannotStart);  // it died before it could be watched
    execve("/proc/self/exe", arguments.data(), variables.data());
    _exit(kCannotStart);
  }

  /// The exit code, once, when the process has ended. 128 + n for a signal n.
  std::optional<int> Reap() {
    int status = 0;
    if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  void Signal(int number) const {
    if (pid_ > 0) kill(pid_, number);
  }

  /// Whether this life of it serves, which its port file tells.
  bool Serves() {
    struct stat file {};
    serving_ = serving_ || (running() && stat(options_.port_file.c_str(), &file) == 0);
    if (serving_) has_served_ = true;
    return serving_;
  }

  void ScheduleRestart(absl::Time now) {
    delay_ = serving_ ? kFirstRestartDelay : std::min(2 * delay_, kLongestRestartDelay);
    restart_at_ = now + delay_;
  }
  bool IsDue(absl::Time now) const { return !running() && now >= restart_at_; }

  bool running() const { return pid_ > 0; }
  bool has_served() const { return has_served_; }
  absl::Duration delay() const { return delay_; }
  int index() const { return index_; }

 private:
  const MemberOptions& options_;
  const int index_;
  pid_t pid_ = -1;
  bool serving_ = false;
  bool has_served_ = false;
  absl::Duration delay_ = kFirstRestartDelay;
  absl::Time restart_at_ = absl::InfinitePast();
};

/// Sends SIGTERM to all, then every further signal of this process, until all have ended. `code` is
/// returned unless it is 0: then the first exit code that is not.
int StopAll(std::vector<Member>& members, ShutdownSignals& signals, int code) {
  for (const Member& member : members) member.Signal(SIGTERM);
  const auto any_running = [&] {
    return std::any_of(members.begin(), members.end(), [](const Member& m) { return m.running(); });
  };
  while (any_running()) {
    if (signals.Wait(kWatchInterval).has_value()) {
      for (const Member& member : members) member.Signal(SIGTERM);
    }
    for (Member& member : members) {
      if (const auto ended = member.Reap(); ended.has_value() && code == 0) code = *ended;
    }
  }
  return code;
}

/// A folder of this process's own, emptied and removed at the end.
class PortFolder {
 public:
  PortFolder() : path_(std::filesystem::temp_directory_path() / "normd_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~PortFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  PortFolder(const PortFolder&) = delete;
  PortFolder& operator=(const PortFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// host:(port + index), or host:0 where the port is 0.
absl::StatusOr<std::string> MetricsAddress(const std::string& first, int index) {
  const size_t colon = first.rfind(':');
  int port = -1;
  if (colon == std::string::npos || !absl::SimpleAtoi(first.substr(colon + 1), &port)) {
    return absl::InvalidArgumentError(absl::StrCat("address '", first, "' is not host:port"));
  }
  const int own = port == 0 ? 0 : port + index;
  if (own > kLastPort) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics_listen: process ", index,
                                                   " would have port ", own, ", the last one is ",
                                                   kLastPort));
  }
  return absl::StrCat(first.substr(0, colon), ":", own);
}

absl::StatusOr<std::vector<MemberOptions>> MakeMembers(const ProcessGroupOptions& options,
                                                       const std::string& listen,
                                                       const std::string& folder) {
  std::vector<std::string> devices(static_cast<size_t>(options.processes));
  if (!options.devices.empty()) devices = DealDevices(options.devices, options.processes);
  std::vector<MemberOptions> members;
  for (int i = 0; i < options.processes; ++i) {
    const absl::StatusOr<std::string> metrics = MetricsAddress(options.metrics_listen, i);
    if (!metrics.ok()) return metrics.status();
    MemberOptions member;
    member.port_file = absl::StrCat(folder, "/", i);
    member.visible_devices = devices[static_cast<size_t>(i)];
    member.arguments = options.arguments;
    // The last setting of a flag counts.
    for (const std::string& argument :
         {std::string("--processes=1"), std::string("--share_port"),
          absl::StrCat("--listen=", listen), absl::StrCat("--metrics_listen=", *metrics),
          absl::StrCat("--port_file=", member.port_file)}) {
      member.arguments.push_back(argument);
    }
    members.push_back(std::move(member));
  }
  return members;
}

/// What a serving member wrote into its port file.
std::string ReadMetricsAddress(const std::string& port_file) {
  constexpr absl::string_view kKey = "metrics=";
  std::ifstream file(port_file);
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, kKey)) return line.substr(kKey.size());
  }
  return "";
}

/// Watches the members until a signal comes, or one fails before it serves, or none is left.
int Watch(std::vector<Member>& members, ShutdownSignals& signals, const Logger& log,
          const std::function<absl::Status()>& on_ready) {
  bool ready = false;
  for (;;) {
    if (const auto signal = signals.Wait(kWatchInterval); signal.has_value()) {
      log.Info("signal", {{"number", absl::StrCat(*signal)}});
      return StopAll(members, signals, 0);
    }
    const absl::Time now = absl::Now();
    size_t serving = 0;
    size_t running = 0;
    int last_code = 0;
    for (Member& member : members) {
      serving += member.Serves() ? 1 : 0;
      if (const auto code = member.Reap(); code.has_value()) {
        last_code = *code;
        if (!member.has_served()) return StopAll(members, signals, std::max(1, *code));
        member.ScheduleRestart(now);
        log.Error("process ended", {{"index", absl::StrCat(member.index())},
                                    {"code", absl::StrCat(*code)},
                                    {"restart_in", absl::FormatDuration(member.delay())}});
      } else if (member.IsDue(now)) {
        member.Start(log);
      }
      running += member.running() ? 1 : 0;
    }
    if (running == 0) {
      log.Error("no process is left");
      return std::max(1, last_code);
    }
    if (!ready && serving == members.size()) {
      ready = true;
      if (const absl::Status status = on_ready(); !status.ok()) {
        log.Error("process group", {{"problem", std::string(status.message())}});
        return StopAll(members, signals, 1);
      }
    }
  }
}

}  // namespace

std::vector<std::string> DealDevices(const std::vector<std::string>& devices, int members) {
  std::vector<std::string> dealt(static_cast<size_t>(members));
  for (size_t i = 0; i < devices.size(); ++i) {
    std::string& text = dealt[i % dealt.size()];
    absl::StrAppend(&text, text.empty() ? "" : ",", devices[i]);
  }
  return dealt;
}

absl::StatusOr<int> RunProcessGroup(const ProcessGroupOptions& options, ShutdownSignals& signals,
                                    const Logger& log) {
  const absl::StatusOr<SharedPort> port = SharedPort::Reserve(options.listen);
  if (!port.ok()) return port.status();
  const PortFolder folder;
  if (folder.path().empty()) {
    return absl::UnavailableError("no folder for port files can be made where TMPDIR says");
  }
  const auto started = MakeMembers(options, port->address(), folder.path());
  if (!started.ok()) return started.status();

  std::vector<Member> members;
  members.reserve(started->size());
  for (const MemberOptions& member : *started) {
    members.emplace_back(member, static_cast<int>(members.size()));
    members.back().Start(log);
  }
  return Watch(members, signals, log, [&] {
    GroupAddresses addresses{port->address(), {}};
    for (const MemberOptions& member : *started) {
      addresses.metrics.push_back(ReadMetricsAddress(member.port_file));
    }
    return options.on_ready(addresses);
  });
}

}  // namespace norm::server
