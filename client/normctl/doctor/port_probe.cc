#include "client/normctl/doctor/port_probe.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace norm::normctl {
namespace {

constexpr absl::string_view kPreface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
constexpr char kSettingsFrame = 4;
constexpr char kTlsAlert = 0x15;
constexpr char kTlsHandshake = 0x16;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

bool Await(int fd, short events, absl::Duration timeout) {
  pollfd wanted = {.fd = fd, .events = events, .revents = 0};
  return poll(&wanted, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) > 0;
}

PortSpeech Listen(int fd, absl::Duration timeout) {
  std::array<char, 16> answer = {};
  if (send(fd, kPreface.data(), kPreface.size(), MSG_NOSIGNAL) < 0 || !Await(fd, POLLIN, timeout))
    return PortSpeech::kUnknown;
  const ssize_t bytes = recv(fd, answer.data(), answer.size(), 0);
  if (bytes <= 0) return PortSpeech::kNothing;
  const absl::string_view text(answer.data(), static_cast<size_t>(bytes));
  if (text[0] == kTlsAlert || text[0] == kTlsHandshake) return PortSpeech::kTls;
  if (absl::StartsWith(text, "HTTP/")) return PortSpeech::kTextHttp;
  return text.size() > 3 && text[3] == kSettingsFrame ? PortSpeech::kPlainHttp2
                                                      : PortSpeech::kUnknown;
}

PortFacts Connect(const addrinfo& address, absl::Duration timeout) {
  PortFacts facts;
  const Socket socket(
      ::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int error = 0;
  if (connect(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) error = errno;
  if (error == EINPROGRESS) {
    if (!Await(socket.fd(), POLLOUT, timeout)) {
      facts.state = PortState::kSilent;
      facts.detail = "no answer";
      return facts;
    }
    socklen_t length = sizeof(error);
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  }
  if (error != 0) {
    facts.state = error == ETIMEDOUT ? PortState::kSilent : PortState::kRefused;
    facts.detail = std::strerror(error);
    return facts;
  }
  facts.state = PortState::kOpen;
  facts.speech = Listen(socket.fd(), timeout);
  return facts;
}

}  // namespace

PortFacts ProbePort(const std::string& address, absl::Duration timeout) {
  absl::string_view rest = address;
  absl::ConsumePrefix(&rest, "dns:///");
  PortFacts facts;
  const size_t colon = rest.rfind(':');
  if (absl::StrContains(rest, '/') || colon == absl::string_view::npos ||
      absl::StrContains(rest, ',') || absl::StartsWith(rest, "unix") ||
      absl::StartsWith(rest, "ipv") || absl::StartsWith(rest, "vsock")) {
    return facts;
  }
  absl::string_view host = rest.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  const addrinfo wanted = {.ai_flags = 0, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int error = getaddrinfo(std::string(host).c_str(),
                                std::string(rest.substr(colon + 1)).c_str(), &wanted, &found);
  if (error != 0) {
    facts.state = PortState::kNoName;
    facts.detail = gai_strerror(error);
    return facts;
  }
  for (const addrinfo* one = found; one != nullptr && facts.state != PortState::kOpen;
       one = one->ai_next)
    facts = Connect(*one, timeout);
  freeaddrinfo(found);
  return facts;
}

}  // namespace norm::normctl
