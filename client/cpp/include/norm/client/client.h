// The client of normd: typed calls with deadlines, retries and results where they were received.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "norm/client/echo.h"
#include "norm/client/options.h"
#include "norm/client/requests.h"
#include "norm/client/server_info.h"
#include "norm/client/stream.h"

namespace norm::client {

/// Connections to one server, or to several that answer alike (replicas).
///
/// Replicas:   calls, and the streams that are opened, take those in turn that are connected and say
///             SERVING; a try after one that failed goes to the next. A stream stays with its
///             replica. What asks about a server (GetServerInfo, GetStatistics, CheckHealth) asks
///             the next one.
/// Deadlines:  every call takes a timeout, positive and finite; it covers all tries and waits.
/// Errors:     the server's code and message. Details (google.rpc.BadRequest, RetryInfo) are
///             payloads of the status under their type URL. INVALID_ARGUMENT without a round trip
///             for an address that cannot be meant and for views that contradict themselves; a
///             call that was cut off and not cancelled here is UNAVAILABLE. UNAUTHENTICATED: the
///             server knows no such token or wants one; PERMISSION_DENIED: it knows the caller and
///             does not let it in. A TLS handshake that fails is UNAVAILABLE with its reason.
/// Threads:    every method may be called from several threads at once.
/// Ownership:  streams opened by a client may outlive it.
class Client {
 public:
  /// `address` is host:port ("[::1]:8470" for IPv6), or a gRPC target ("unix:/run/normd.sock").
  /// Replicas are several of these joined by commas, or "dns:///name:8470" for every address that
  /// DNS has for a name. Does not wait for a server: the first call connects. Errors: as
  /// CheckAddress, and INVALID_ARGUMENT for options out of range, for certificates, keys and tokens
  /// that cannot be used, and for a token that would travel unencrypted to another machine.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const std::string& address,
                                                        const ClientOptions& options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  absl::StatusOr<ForwardResult> RmsNorm(const RmsNormRequest& request, absl::Duration timeout);
  absl::StatusOr<ForwardResult> LayerNorm(const LayerNormRequest& request, absl::Duration timeout);
  absl::StatusOr<ForwardResult> BatchNorm(const BatchNormRequest& request, absl::Duration timeout);
  absl::StatusOr<BackwardResult> RmsNormBackward(const RmsNormBackwardRequest& request,
                                                 absl::Duration timeout);
  absl::StatusOr<BackwardResult> LayerNormBackward(const LayerNormBackwardRequest& request,
                                                   absl::Duration timeout);
  absl::StatusOr<BackwardResult> BatchNormBackward(const BatchNormBackwardRequest& request,
                                                   absl::Duration timeout);

  /// The calls above for an op known at run time only.
  absl::StatusOr<ForwardResult> Normalize(const ForwardRequest& request, absl::Duration timeout,
                                          const CallOptions& options = {});
  absl::StatusOr<BackwardResult> NormalizeBackward(const BackwardRequest& request,
                                                   absl::Duration timeout,
                                                   const CallOptions& options = {});

  /// Opens a stream on one of the connections: many requests in flight, results as they complete.
  std::unique_ptr<NormalizeStream> OpenStream(const StreamOptions& options = {});

  absl::StatusOr<ServerInfo> GetServerInfo(absl::Duration timeout);
  absl::StatusOr<ServerStatistics> GetStatistics(absl::Duration timeout);
  /// Sends the bytes of `request` and waits for `response_bytes` bytes of them back: what a call
  /// with messages of these sizes costs before anything is computed. Retried like every call.
  /// Errors: INVALID_ARGUMENT for a response more than 1024 bytes longer than the request; INTERNAL
  /// when another number of bytes comes back.
  absl::Status Echo(const EncodedRequest& request, int64_t response_bytes, absl::Duration timeout);
  /// The same on a stream of one of the connections: the floor of a NormalizeStream.
  std::unique_ptr<EchoStream> OpenEchoStream();
  /// Health of one service ("norm.v1.NormalizationService"), or of the whole server for "".
  absl::StatusOr<Health> CheckHealth(const std::string& service, absl::Duration timeout);

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Runs `attempt` as the calls above are run: again while it ends in UNAVAILABLE and the policy, the
/// server's pushback and `timeout` (positive and finite) allow another try; returns the last status.
/// For requests of a NormalizeStream, which are tried once. `left` is what is left of `timeout`.
/// Errors: those of `attempt`, INVALID_ARGUMENT for a policy or a timeout out of range.
absl::Status CallWithRetries(const RetryPolicy& policy, absl::Duration timeout,
                             const std::function<absl::Status(absl::Duration left)>& attempt);

/// Errors: INVALID_ARGUMENT naming the address and the rule it breaks: a host, a port in
/// [1, 65535], no spaces; targets of gRPC are dns:, ipv4:, ipv6:, unix:, unix-abstract:, vsock: and
/// xds:. The path of a Unix socket has no comma, nor one as %2C: gRPC takes it for a list.
absl::Status CheckAddress(const std::string& address);

/// The servers of an address that CheckAddress accepts: those of a list one by one, otherwise the
/// address itself.
std::vector<std::string> Replicas(const std::string& address);

/// The request id that the server's log lines and spans have of a failed call or request: what the
/// server answered, or else what was sent; empty where neither is known.
std::string RequestId(const absl::Status& status);
/// A random one, to be sent.
std::string NewRequestId();
/// Errors: INVALID_ARGUMENT naming the member that has another form than CallIdentity says.
absl::Status CheckIdentity(const CallIdentity& identity);

/// Whether a failed call never got an answer from a server: no connection, or one that broke.
bool IsServerUnreachable(const absl::Status& status);

}  // namespace norm::client
