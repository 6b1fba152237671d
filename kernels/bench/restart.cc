#include "bench/restart.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <utility>

namespace norm::bench {
namespace {

constexpr const char* kBinary = "/proc/self/exe";

/// What the signal handler starts: set while a CaseDeadline lives.
char* const* volatile handler_argv = nullptr;

void OnAlarm(int) {
  constexpr char kMessage[] = "\nnormbench: the case did not end in time; going on with the next\n";
  (void)!write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  if (handler_argv != nullptr) execv(kBinary, handler_argv);
  _exit(1);
}

std::vector<char*> ArgvOf(std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return argv;
}

/// exec keeps the signal mask, and a handler runs with its signal blocked.
void UnblockAlarm() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGALRM);
  sigprocmask(SIG_UNBLOCK, &signals, nullptr);
}

}  // namespace

void Restart(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"normbench"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::fflush(nullptr);
  execv(kBinary, ArgvOf(words).data());
}

CaseDeadline::CaseDeadline(std::vector<std::string> arguments, int seconds)
    : arguments_(std::move(arguments)) {
  arguments_.insert(arguments_.begin(), "normbench");
  argv_ = ArgvOf(arguments_);
  handler_argv = argv_.data();
  UnblockAlarm();
  std::signal(SIGALRM, OnAlarm);
  alarm(static_cast<unsigned>(seconds));
}

CaseDeadline::~CaseDeadline() {
  alarm(0);
  handler_argv = nullptr;
}

}  // namespace norm::bench
