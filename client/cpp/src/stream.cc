#include "norm/client/stream.h"

#include <utility>

#include "stream_impl.h"

namespace norm::client {

NormalizeStream::NormalizeStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NormalizeStream::~NormalizeStream() = default;

void NormalizeStream::Normalize(const ForwardRequest& request, absl::Duration timeout,
                                ForwardCallback done) {
  impl_->Submit(request, timeout, std::move(done));
}

void NormalizeStream::NormalizeBackward(const BackwardRequest& request, absl::Duration timeout,
                                        BackwardCallback done) {
  impl_->Submit(request, timeout, std::move(done));
}

std::future<absl::StatusOr<ForwardResult>> NormalizeStream::Normalize(const ForwardRequest& request,
                                                                      absl::Duration timeout) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<ForwardResult>>>();
  auto future = promise->get_future();
  Normalize(request, timeout, [promise](absl::StatusOr<ForwardResult> result) {
    promise->set_value(std::move(result));
  });
  return future;
}

std::future<absl::StatusOr<BackwardResult>> NormalizeStream::NormalizeBackward(
    const BackwardRequest& request, absl::Duration timeout) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<BackwardResult>>>();
  auto future = promise->get_future();
  NormalizeBackward(request, timeout, [promise](absl::StatusOr<BackwardResult> result) {
    promise->set_value(std::move(result));
  });
  return future;
}

absl::Status NormalizeStream::Finish(absl::Duration timeout) { return impl_->Finish(timeout); }
absl::Status NormalizeStream::status() const { return impl_->status(); }
int64_t NormalizeStream::in_flight() const { return impl_->in_flight(); }

}  // namespace norm::client
