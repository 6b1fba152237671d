// Going on after a case that takes the device, or the process, down with it.
#pragma once

#include <string>
#include <vector>

namespace norm::bench {

/// Replaces this process by a fresh one of the same binary with these arguments: a context that a
/// kernel has ruined cannot be used again. Returns when that fails.
void Restart(const std::vector<std::string>& arguments);

/// While it lives, a case may take `seconds`; then, wherever the process hangs, it restarts with
/// `arguments`. One at a time in a process.
class CaseDeadline {
 public:
  CaseDeadline(std::vector<std::string> arguments, int seconds);
  ~CaseDeadline();
  CaseDeadline(const CaseDeadline&) = delete;
  CaseDeadline& operator=(const CaseDeadline&) = delete;

 private:
  std::vector<std::string> arguments_;
  std::vector<char*> argv_;
};

}  // namespace norm::bench
