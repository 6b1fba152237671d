// What an HTTP server of this machine answers.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>

namespace norm::test {

/// The whole reply, head and body, of 127.0.0.1 at the port of `address`; empty without one. `fields`:
/// lines of the head, each with its end.
inline std::string HttpAsk(const std::string& address, const std::string& method,
                           const std::string& path, const std::string& fields = "") {
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  // Far longer than an answer takes, shorter than the HTTP library's own patience.
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  std::string reply;
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) {
    const std::string request = method + " " + path + " HTTP/1.0\r\n" + fields + "\r\n";
    if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char chunk[4096];
      for (ssize_t n = 0; (n = read(fd, chunk, sizeof(chunk))) > 0;) {
        reply.append(chunk, static_cast<size_t>(n));
      }
    }
  }
  close(fd);
  return reply;
}

inline std::string HttpGet(const std::string& address, const std::string& path) {
  return HttpAsk(address, "GET", path);
}

/// What follows the head.
inline std::string BodyOf(const std::string& reply) {
  const size_t end = reply.find("\r\n\r\n");
  return end == std::string::npos ? "" : reply.substr(end + 4);
}

}  // namespace norm::test
