#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/process_group/process_group.h"
#include "server/transport/listen_address.h"

namespace norm::server {
namespace {

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
  const absl::StatusOr<SocketAddress> address = ResolveListenAddress(listen);
  if (!address.ok()) return address.status();
  // First alone: a port on which another group's members listen would be given to this one as well.
  const absl::StatusOr<int> alone = BindSocket(**address, listen, /*shared=*/false);
  if (!alone.ok()) return alone.status();
  close(*alone);
  const absl::StatusOr<int> fd = BindSocket(**address, listen, /*shared=*/true);
  if (!fd.ok()) return fd.status();
  return SharedPort(*fd, absl::StrCat(listen.substr(0, listen.rfind(':')), ":", BoundPort(*fd)));
}

SharedPort::SharedPort(SharedPort&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), address_(std::move(other.address_)) {}

SharedPort::~SharedPort() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace norm::server
