#include "client/normctl/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>

namespace norm::normctl {

void PrepareStandardStreams() {
  std::signal(SIGPIPE, SIG_IGN);
  for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free descriptor is this one. Read-only for stdout: results must not vanish.
    if (::open("/dev/null", descriptor == STDERR_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

ExitCode FinishStdout(ExitCode result) {
  errno = 0;
  std::cout.flush();
  if (std::cout) return result;
  std::cerr << "normctl: the results cannot be written to stdout";
  // A write that failed earlier has left no reason.
  if (errno != 0) std::cerr << ": " << std::strerror(errno);
  std::cerr << '\n';
  return result == kSuccess ? kFailure : result;
}

}  // namespace norm::normctl
