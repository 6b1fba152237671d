#include "server/transport/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace norm::server {
namespace {

bool IsLoopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
  }
  if (address.sa_family != AF_INET6) return false;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) ||
         (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == IN_LOOPBACKNET);
}

}  // namespace

absl::StatusOr<SocketAddress> ResolveListenAddress(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(absl::string_view(listen).substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("address '", listen, "' is not host:port"));
  }
  std::string host = listen.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", listen, "': host ", host, ": ", gai_strerror(error)));
  }
  return SocketAddress(found, freeaddrinfo);
}

bool ReachesBeyondLoopback(const std::string& listen) {
  const absl::StatusOr<SocketAddress> first = ResolveListenAddress(listen);
  if (!first.ok()) return false;
  for (const addrinfo* one = first->get(); one != nullptr; one = one->ai_next) {
    if (!IsLoopback(*one->ai_addr)) return true;
  }
  return false;
}

absl::StatusOr<int> BindSocket(const addrinfo& address, const std::string& listen, bool shared) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("socket: ", std::strerror(errno)));
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (shared) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
  if (bind(fd, address.ai_addr, address.ai_addrlen) == 0) return fd;
  const int error = errno;
  close(fd);
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", listen, ": ", std::strerror(error)));
}

absl::Status ProbeListenAddress(const std::string& listen, bool shared) {
  if (listen.rfind("unix:", 0) == 0) return absl::OkStatus();
  const absl::StatusOr<SocketAddress> address = ResolveListenAddress(listen);
  if (!address.ok()) return address.status();
  const absl::StatusOr<int> fd = BindSocket(**address, listen, shared);
  if (!fd.ok()) return fd.status();
  close(*fd);
  return absl::OkStatus();
}

}  // namespace norm::server
