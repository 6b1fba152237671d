// norm_echo_bench: what the serving path costs beyond moving bytes. A raw echo (completion queues,
// ByteBuffer in and out) and a running normd answer the same client, with the same bytes, in the
// same run; prints GB/s each way and the ratio.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "norm/v1/normalization.pb.h"

ABSL_FLAG(std::string, server, "127.0.0.1:8470", "Address of normd, host:port.");
ABSL_FLAG(double, seconds, 4, "How long to measure each point.");
ABSL_FLAG(int, echo_threads, 2, "Threads of the echo server, one completion queue each.");
ABSL_FLAG(int, in_flight, 2, "Calls in flight on each connection.");
ABSL_FLAG(int, rounds, 3, "Echo and normd in turn, this often; the best round of each counts.");

namespace norm::test {
namespace {

constexpr char kMethod[] = "/norm.v1.NormalizationService/Normalize";

/// One echoed call: waits, reads, writes back what it read with the status, goes.
class EchoCall {
 public:
  EchoCall(grpc::AsyncGenericService& service, grpc::ServerCompletionQueue& queue)
      : service_(service), queue_(queue), stream_(&context_) {
    service_.RequestCall(&context_, &stream_, &queue_, &queue_, this);
  }

  void Advance(bool ok) {
    switch (state_) {
      case State::kWaiting:
        if (!ok) break;
        new EchoCall(service_, queue_);
        state_ = State::kReading;
        stream_.Read(&message_, this);
        return;
      case State::kReading:
        state_ = State::kFinishing;
        if (ok) {
          stream_.WriteAndFinish(message_, grpc::WriteOptions(), grpc::Status::OK, this);
        } else {
          stream_.Finish(grpc::Status::CANCELLED, this);
        }
        return;
      case State::kFinishing:
        break;
    }
    delete this;
  }

 private:
  enum class State { kWaiting, kReading, kFinishing };

  grpc::AsyncGenericService& service_;
  grpc::ServerCompletionQueue& queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  grpc::ByteBuffer message_;
  State state_ = State::kWaiting;
};

class EchoServer {
 public:
  explicit EchoServer(int threads) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterAsyncGenericService(&service_);
    builder.SetMaxReceiveMessageSize(-1);
    for (int i = 0; i < threads; ++i) queues_.push_back(builder.AddCompletionQueue());
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
    for (auto& queue : queues_) {
      for (int i = 0; i < 8; ++i) new EchoCall(service_, *queue);
      threads_.emplace_back([raw = queue.get()] {
        void* tag = nullptr;
        bool ok = false;
        while (raw->Next(&tag, &ok)) static_cast<EchoCall*>(tag)->Advance(ok);
      });
    }
  }

  ~EchoServer() {
    server_->Shutdown(std::chrono::system_clock::now());
    for (auto& queue : queues_) queue->Shutdown();
    for (std::thread& thread : threads_) thread.join();
  }

  const std::string& address() const { return address_; }

 private:
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::vector<std::thread> threads_;
  std::string address_;
};

/// RMSNorm of [rows, 1024] f32 as one ByteBuffer, tensor bytes in slices of their own.
grpc::ByteBuffer MakeRequest(int64_t tensor_bytes) {
  norm::v1::NormalizeRequest request;
  request.mutable_rms_norm();
  norm::v1::Tensor* x = request.mutable_x();
  x->set_dtype(norm::v1::DTYPE_F32);
  x->add_shape(tensor_bytes / 4096);
  x->add_shape(1024);
  std::vector<float> values(static_cast<size_t>(tensor_bytes / 4));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 97) - 48.0F;
  x->set_data(values.data(), static_cast<size_t>(tensor_bytes));
  const std::string bytes = request.SerializeAsString();
  grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

/// One connection: keeps calls in flight until told to stop.
class Connection {
 public:
  Connection(const std::string& address, const grpc::ByteBuffer& request) : request_(request) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetMaxSendMessageSize(-1);
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  }

  void Run(absl::Time end, int in_flight, std::atomic<int64_t>* calls,
           std::atomic<int64_t>* failed) {
    int open = 0;
    for (int i = 0; i < in_flight; ++i, ++open) Start();
    void* tag = nullptr;
    bool ok = false;
    while (open > 0 && queue_.Next(&tag, &ok)) {
      std::unique_ptr<Call> call(static_cast<Call*>(tag));
      --open;
      const bool good = call->status.ok() && call->response.Length() + 4096 > request_.Length();
      (good ? calls : failed)->fetch_add(1);
      if (good && absl::Now() < end) {
        Start();
        ++open;
      }
    }
  }

 private:
  struct Call {
    grpc::ClientContext context;
    grpc::Status status;
    grpc::ByteBuffer response;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  };

  void Start() {
    auto* call = new Call;
    call->reader = stub_->PrepareUnaryCall(&call->context, kMethod, request_, &queue_);
    call->reader->StartCall();
    call->reader->Finish(&call->response, &call->status, call);
  }

  const grpc::ByteBuffer& request_;
  std::unique_ptr<grpc::GenericStub> stub_;
  grpc::CompletionQueue queue_;
};

struct Rate {
  double gb_per_second = 0;  // each way
  double calls_per_second = 0;
};

Rate Measure(const std::string& address, const grpc::ByteBuffer& request, int connections,
             std::atomic<int64_t>* failed) {
  std::vector<std::unique_ptr<Connection>> all;
  for (int i = 0; i < connections; ++i) {
    all.push_back(std::make_unique<Connection>(address, request));
  }
  std::atomic<int64_t> calls{0};
  const auto run = [&](absl::Duration time) {
    const absl::Time start = absl::Now();
    calls.store(0);
    std::vector<std::thread> threads;
    for (auto& connection : all) {
      threads.emplace_back(
          [&] { connection->Run(start + time, absl::GetFlag(FLAGS_in_flight), &calls, failed); });
    }
    for (std::thread& thread : threads) thread.join();
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    const auto count = static_cast<double>(calls.load());
    return Rate{count * static_cast<double>(request.Length()) / seconds * 1e-9, count / seconds};
  };
  run(absl::Milliseconds(300));  // connections open, pools and windows grow
  return run(absl::Seconds(absl::GetFlag(FLAGS_seconds)));
}

int Run() {
  EchoServer echo(absl::GetFlag(FLAGS_echo_threads));
  std::atomic<int64_t> failed{0};
  std::printf("tensor  connections  echo GB/s  normd GB/s  ratio   echo calls/s  normd calls/s\n");
  for (const int64_t mib : {1, 64}) {
    const grpc::ByteBuffer request = MakeRequest(mib << 20);
    for (const int connections : {1, 4}) {
      Rate best_echo;
      Rate best_normd;
      for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
        const Rate one = Measure(echo.address(), request, connections, &failed);
        const Rate two = Measure(absl::GetFlag(FLAGS_server), request, connections, &failed);
        if (one.gb_per_second > best_echo.gb_per_second) best_echo = one;
        if (two.gb_per_second > best_normd.gb_per_second) best_normd = two;
      }
      std::printf("%3lld MiB  %11d  %9.3f  %10.3f  %5.2f  %13.1f  %13.1f\n",
                  static_cast<long long>(mib), connections, best_echo.gb_per_second,
                  best_normd.gb_per_second, best_normd.gb_per_second / best_echo.gb_per_second,
                  best_echo.calls_per_second, best_normd.calls_per_second);
      std::fflush(stdout);
    }
  }
  if (failed > 0)
    std::fprintf(stderr, "norm_echo_bench: %lld calls failed\n",
                 static_cast<long long>(failed.load()));
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace norm::test

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return norm::test::Run();
}
