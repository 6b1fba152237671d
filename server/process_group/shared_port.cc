#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/process_group/process_group.h"

namespace norm::server {
namespace {

/// A socket bound to the address, shared or not; -1 with errno set where that fails.
int Bind(const addrinfo& address, bool shared) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (shared) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
  if (bind(fd, address.ai_addr, address.ai_addrlen) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

std::string BoundPort(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  char port[NI_MAXSERV] = "";
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0) {
    getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, nullptr, 0, port, sizeof(port),
                NI_NUMERICSERV);
  }
  return port;
}

}  // namespace

absl::StatusOr<SharedPort> SharedPort::Reserve(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return absl::InvalidArgumentError(absl::StrCat("address '", listen, "' is not host:port"));
  }
  const std::string shown_host = listen.substr(0, colon);
  std::string host = shown_host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* raw = nullptr;
  if (const int error = getaddrinfo(host.c_str(), listen.c_str() + colon + 1, &hints, &raw);
      error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", listen, "': host ", host, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> found(raw, freeaddrinfo);
  // First alone: a port that another group shares would be given to this one as well.
  const int alone = Bind(*found, /*shared=*/false);
  if (alone >= 0) close(alone);
  const int fd = alone >= 0 ? Bind(*found, /*shared=*/true) : -1;
  if (fd < 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", listen, ": ", std::strerror(errno)));
  }
  return SharedPort(fd, absl::StrCat(shown_host, ":", BoundPort(fd)));
}

SharedPort::SharedPort(SharedPort&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), address_(std::move(other.address_)) {}

SharedPort::~SharedPort() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace norm::server
