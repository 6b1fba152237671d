// A small HTTP server for people, supervisors and Prometheus: CivetWeb's.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace norm::server {

struct HttpReply {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  /// Content-Security-Policy; this one lets a browser load and run nothing.
  std::string security_policy = "default-src 'none'; frame-ancestors 'none'";
};

/// Answers GET and HEAD, other methods with 405; compresses for who accepts gzip. Eight connections
/// at once, twenty more wait; a silent one is closed after two seconds.
class HttpServer {
 public:
  /// The answer to a GET of a path, which comes decoded and without its query. Called from several
  /// threads at once; must not throw.
  using Handler = std::function<HttpReply(absl::string_view path)>;

  /// `listen` is host:port; port 0 takes any free one.
  /// Errors: UNAVAILABLE when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& listen,
                                                           Handler handler);
  /// Answers what has been asked, then closes.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }

 private:
  class Library;
  explicit HttpServer(std::unique_ptr<Library> library);

  std::unique_ptr<Library> library_;
  int port_ = 0;
};

/// Whether an Accept-Encoding header lets a reply be gzip.
bool AcceptsGzip(absl::string_view accept_encoding);

}  // namespace norm::server
