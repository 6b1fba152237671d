#include "server/observability/http_server.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace norm::server {
namespace {

/// Smaller replies are one packet anyway.
constexpr size_t kCompressedBytes = 1024;

/// Nothing when zlib cannot, for want of memory.
std::optional<std::string> Gzip(const std::string& text) {
  constexpr int kGzipFormat = 16 + MAX_WBITS;
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzipFormat, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    return std::nullopt;
  }
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (result != Z_STREAM_END) return std::nullopt;
  return out;
}

/// Connects to where a server listens, host:port, and hangs up.
void Knock(const std::string& listen, int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  const std::string host = listen.substr(0, listen.rfind(':'));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1 ||
      address.sin_addr.s_addr == htonl(INADDR_ANY)) {
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  (void)connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  close(fd);
}

}  // namespace

bool AcceptsGzip(absl::string_view accept_encoding) {
  bool any = false;
  for (const absl::string_view coding : absl::StrSplit(accept_encoding, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(coding, absl::MaxSplits(';', 1));
    const absl::string_view name = absl::StripAsciiWhitespace(parts.first);
    absl::string_view weight = absl::StripAsciiWhitespace(parts.second);
    double q = 1;
    if (absl::ConsumePrefix(&weight, "q=") && !absl::SimpleAtod(weight, &q)) q = 0;
    if (absl::EqualsIgnoreCase(name, "gzip")) return q > 0;
    if (name == "*") any = q > 0;
  }
  return any;
}

class HttpServer::Library {
 public:
  explicit Library(Handler handler) : handler_(std::move(handler)) {}

  ~Library() {
    if (context_ != nullptr) Stop();
  }

  /// Starts the library's threads with a third of the weight of those that serve requests, where
  /// there is no processor for all (Linux: a thread hands its niceness down to those it starts).
  bool Start(const std::string& listen) {
    listen_ = listen;
    return std::async(std::launch::async,
                      [this, &listen] {
                        (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 5);
                        StartThreads(listen);
                        return context_ != nullptr;
                      })
        .get();
  }

  int port() const {
    mg_server_port bound{};
    return mg_get_server_ports(context_, 1, &bound) == 1 ? bound.port : 0;
  }

 private:
  void StartThreads(const std::string& listen) {
    // A thread waits for a silent connection until the timeout, so a few silent ones must not keep
    // a scraper out for long. Pages of elsewhere may not read: no answers to their preflights.
    const char* const options[] = {"listening_ports",
                                   listen.c_str(),
                                   "num_threads",
                                   "8",
                                   "request_timeout_ms",
                                   "2000",
                                   "access_control_allow_origin",
                                   "",
                                   "access_control_allow_methods",
                                   "",
                                   nullptr};
    mg_callbacks callbacks{};
    callbacks.begin_request = &Library::OnRequest;
    context_ = mg_start(&callbacks, this, const_cast<const char**>(options));
  }

  /// The library looks for its end only between connections, or every two seconds: knocks until it
  /// has noticed.
  void Stop() {
    const int own_port = port();
    std::atomic<bool> stopped{false};
    std::thread knocker([&] {
      while (!stopped.load()) {
        Knock(listen_, own_port);
        absl::SleepFor(absl::Milliseconds(5));
      }
    });
    mg_stop(context_);
    stopped.store(true);
    knocker.join();
  }

  /// Called by the library for each request, before anything it would do itself; it does nothing more
  /// when the status of the reply is returned.
  static int OnRequest(mg_connection* connection) noexcept {
    const auto* const self =
        static_cast<const Library*>(mg_get_user_data(mg_get_context(connection)));
    const mg_request_info& request = *mg_get_request_info(connection);
    const absl::string_view method = request.request_method;
    HttpReply reply;
    if (method != "GET" && method != "HEAD") {
      reply.status = 405;
      reply.body = "only GET and HEAD are served here\n";
    } else {
      reply = self->handler_(request.local_uri == nullptr ? "" : request.local_uri);
    }
    const int status = reply.status;
    Send(connection, std::move(reply), /*with_body=*/method != "HEAD");
    return status;
  }

  static void Send(mg_connection* connection, HttpReply reply, bool with_body) {
    const char* const accepted = mg_get_header(connection, "Accept-Encoding");
    std::string more;
    if (reply.status == 405) absl::StrAppend(&more, "Allow: GET, HEAD\r\n");
    if (reply.body.size() >= kCompressedBytes) {
      absl::StrAppend(&more, "Vary: Accept-Encoding\r\n");
      if (accepted != nullptr && AcceptsGzip(accepted)) {
        if (std::optional<std::string> compressed = Gzip(reply.body); compressed.has_value()) {
          reply.body = *std::move(compressed);
          absl::StrAppend(&more, "Content-Encoding: gzip\r\n");
        }
      }
    }
    std::string message = absl::StrCat(
        "HTTP/1.1 ", reply.status, " ", mg_get_response_code_text(connection, reply.status),
        "\r\nContent-Type: ", reply.content_type, "\r\nContent-Length: ", reply.body.size(),
        "\r\nContent-Security-Policy: ", reply.security_policy,
        "\r\nX-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin"
        "\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\nConnection: close\r\n",
        more, "\r\n");
    if (with_body) message += reply.body;
    (void)mg_write(connection, message.data(), message.size());
  }

  const Handler handler_;
  std::string listen_;
  mg_context* context_ = nullptr;
};

HttpServer::HttpServer(std::unique_ptr<Library> library)
    : library_(std::move(library)), port_(library_->port()) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen,
                                                              Handler handler) {
  auto library = std::make_unique<Library>(std::move(handler));
  if (!library->Start(listen)) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", listen,
        ": the port is taken or not permitted, or the host is no address of this machine"));
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(library)));
}

}  // namespace norm::server
