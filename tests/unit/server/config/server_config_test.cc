#include "server/config/server_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "server/config/byte_size.h"
#include "server/config/command_line.h"

namespace norm::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Flags are process-wide; each test leaves them as it found them.
class ServerConfigTest : public testing::Test {
 protected:
  absl::StatusOr<ServerConfig> Read(std::vector<absl::string_view> arguments) {
    auto action = SetFlags(arguments);
    if (!action.ok()) return action.status();
    return ReadServerConfig();
  }
  std::string Error(std::vector<absl::string_view> arguments) {
    const absl::FlagSaver restore_after_this_case;
    auto config = Read(std::move(arguments));
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(config.status().message());
  }
  std::string WriteFile(const std::string& name, const std::string& text) {
    std::string path = testing::TempDir() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

 private:
  absl::FlagSaver saver_;
};

TEST_F(ServerConfigTest, DefaultsAreValid) {
  auto config = Read({});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->grpc.listen, "127.0.0.1:8470");
  EXPECT_EQ(config->device, DeviceSelection::kAuto);
  EXPECT_GE(config->device_options.cpu_threads.value(), 1);
  EXPECT_FALSE(config->device_options.device_memory_bytes.has_value());
}

TEST_F(ServerConfigTest, EveryRoomGetsItsOptions) {
  auto config = Read({"--listen=0.0.0.0:0",
                      "--insecure",
                      "--metrics_listen",
                      "localhost:9100",
                      "--device=cpu",
                      "--cpu_threads=2",
                      "--grpc_threads=3",
                      "--slots=5",
                      "--max_message_bytes=64MiB",
                      "--receive_quota_bytes=1GiB",
                      "--max_in_flight_bytes=128MiB",
                      "--max_queue_requests=7",
                      "--max_batch_rows=11",
                      "--max_batch_bytes=4096",
                      "--drain_delay=5s",
                      "--drain_timeout=1m",
                      "--log_level=debug",
                      "--log_format=json",
                      "--device_pool_bytes=3GiB",
                      "--port_file=/tmp/p",
                      "--max_stream_requests=9",
                      "--max_stream_uploads=3",
                      "--stream_window_bytes=5MiB",
                      "--stream_stall_timeout=7s",
                      "--max_unsent_bytes=5MiB",
                      "--write_timeout=3s",
                      "--max_queue_delay=250us",
                      "--bulk_share_percent=25",
                      "--express_slots=2",
                      "--max_concurrent_streams=12",
                      "--min_client_ping_interval=7s",
                      "--keepalive_time=8s",
                      "--keepalive_timeout=9s"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->grpc.listen, "0.0.0.0:0");
  EXPECT_EQ(config->metrics_listen, "localhost:9100");
  EXPECT_EQ(config->device, DeviceSelection::kCpu);
  EXPECT_EQ(config->device_options.cpu_threads, 2);
  EXPECT_EQ(config->device_options.cpu_slots, 5);
  EXPECT_EQ(config->device_options.cuda_slots, 5);
  EXPECT_EQ(config->device_options.device_memory_bytes, int64_t{3} << 30);
  EXPECT_EQ(config->grpc.threads, 3);
  EXPECT_EQ(config->grpc.max_message_bytes, 64 << 20);
  EXPECT_EQ(config->grpc.receive_quota_bytes, 1 << 30);
  EXPECT_EQ(config->receive_memory_bytes, 256 << 20) << "a quarter of it";
  EXPECT_EQ(config->grpc.max_stream_requests, 9);
  EXPECT_EQ(config->grpc.max_stream_uploads, 3);
  EXPECT_EQ(config->grpc.stream_window_bytes, 5 << 20);
  EXPECT_EQ(config->grpc.stream_stall_timeout, absl::Seconds(7));
  EXPECT_EQ(config->grpc.max_unsent_bytes, 5 << 20);
  EXPECT_EQ(config->grpc.write_timeout, absl::Seconds(3));
  EXPECT_EQ(config->grpc.max_concurrent_streams, 12);
  EXPECT_EQ(config->grpc.min_client_ping_interval, absl::Seconds(7));
  EXPECT_EQ(config->grpc.keepalive_time, absl::Seconds(8));
  EXPECT_EQ(config->grpc.keepalive_timeout, absl::Seconds(9));
  EXPECT_EQ(config->scheduler.max_queue_delay, absl::Microseconds(250));
  EXPECT_EQ(config->scheduler.bulk_share_percent, 25);
  EXPECT_EQ(config->scheduler.express_slots, 2);
  EXPECT_EQ(config->scheduler.max_in_flight_bytes, 128 << 20);
  EXPECT_EQ(config->scheduler.max_queue_requests, 7);
  EXPECT_EQ(config->scheduler.max_batch_rows, 11);
  EXPECT_EQ(config->scheduler.max_batch_bytes, 4096);
  EXPECT_EQ(config->grpc.drain_delay, absl::Seconds(5));
  EXPECT_EQ(config->grpc.drain_timeout, absl::Minutes(1));
  EXPECT_EQ(config->log.level, LogLevel::kDebug);
  EXPECT_EQ(config->log.format, LogFormat::kJson);
  EXPECT_EQ(config->port_file, "/tmp/p");
}

TEST_F(ServerConfigTest, ReceiveMemoryIsAPartOfTheQuotaOrNone) {
  for (const auto& [argument, bytes] :
       {std::pair("--receive_memory_bytes=0", int64_t{0}),
        std::pair("--receive_memory_bytes=4GiB", int64_t{4} << 30),
        std::pair("--receive_quota_bytes=2GiB", int64_t{1} << 29)}) {
    const absl::FlagSaver restore_after_this_case;
    auto config = Read({argument});
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->receive_memory_bytes, bytes) << argument;
  }
}

TEST_F(ServerConfigTest, ErrorsNameFlagRuleAndValueInOneLine) {
  struct Case {
    const char* argument;
    const char* flag;
    const char* value;
  };
  const Case cases[] = {
      {"--slots=0", "--slots", "got 0"},
      {"--slots=many", "--slots", "'many'"},
      {"--grpc_threads=65", "--grpc_threads", "got 65"},
      {"--listen=8470", "--listen", "'8470'"},
      {"--listen=host:99999", "--listen", "'host:99999'"},
      {"--metrics_listen=:1", "--metrics_listen", "':1'"},
      {"--metrics_listen=[::1]:1", "--metrics_listen", "IPv4, got [::1]:1"},
      {"--metrics_listen=127.0.0.1:1,127.0.0.1:2", "--metrics_listen", "must be one host:port"},
      {"--device=gpu", "--device", "'gpu'"},
      {"--max_message_bytes=3GiB", "--max_message_bytes", "got 3GiB"},
      {"--max_message_bytes=-5", "--max_message_bytes", "'-5'"},
      {"--max_message_bytes=5 parsecs", "--max_message_bytes", "'5 parsecs'"},
      {"--receive_quota_bytes=2MiB", "--receive_quota_bytes", "got 2MiB"},
      {"--receive_memory_bytes=5GiB", "--receive_memory_bytes", "got 5GiB"},
      {"--max_in_flight_bytes=1MiB", "--max_in_flight_bytes", "got 1MiB"},
      {"--drain_timeout=-1s", "--drain_timeout", "got -1s"},
      {"--write_timeout=0", "--write_timeout", "got 0"},
      {"--max_unsent_bytes=1", "--max_unsent_bytes", "got 1"},
      {"--max_queue_delay=11s", "--max_queue_delay", "got 11s"},
      {"--express_slots=-1", "--express_slots", "got -1"},
      {"--bulk_share_percent=0", "--bulk_share_percent", "got 0"},
      {"--bulk_share_percent=100", "--bulk_share_percent", "got 100"},
      {"--max_concurrent_streams=0", "--max_concurrent_streams", "got 0"},
      {"--min_client_ping_interval=0", "--min_client_ping_interval", "got 0"},
      {"--keepalive_time=10ms", "--keepalive_time", "got 10ms"},
      {"--keepalive_timeout=2h", "--keepalive_timeout", "got 2h"},
      {"--drain_timeout=soon", "--drain_timeout", "'soon'"},
      {"--log_level=loud", "--log_level", "'loud'"},
      {"--no_such_flag=1", "--no_such_flag", "no such flag"},
      {"--slots", "--slots", "needs a value"},
      {"stray", "stray", "unexpected"},
  };
  for (const Case& one : cases) {
    const std::string error = Error({one.argument});
    EXPECT_THAT(error, AllOf(HasSubstr(one.flag), HasSubstr(one.value), Not(HasSubstr("\n"))));
  }
}

TEST_F(ServerConfigTest, FlagfileIsReadAndLaterFlagsWin) {
  const std::string inner = WriteFile("inner.flags", "--cpu_threads=7\n");
  const std::string path = WriteFile(
      "outer.flags", "# a comment\n\n--slots=4\n--flagfile=" + inner + "\n--log_format=json\n");
  auto config = Read({"--slots=2", "--flagfile=" + path, "--log_format=text"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->device_options.cpu_slots, 4);
  EXPECT_EQ(config->device_options.cpu_threads, 7);
  EXPECT_EQ(config->log.format, LogFormat::kText);
}

TEST_F(ServerConfigTest, FlagfileErrorsNameFileAndLine) {
  const std::string path = WriteFile("bad.flags", "--slots=4\n--nonsense=1\n");
  EXPECT_THAT(Error({"--flagfile=" + path}),
              AllOf(HasSubstr(path + ":2"), HasSubstr("--nonsense")));
  EXPECT_THAT(Error({"--flagfile=/no/such/file"}), HasSubstr("/no/such/file"));
  EXPECT_THAT(Error({"--flagfile=/tmp"}), HasSubstr("cannot read '/tmp'"));
  const std::string loop = testing::TempDir() + "/loop.flags";
  WriteFile("loop.flags", "--flagfile=" + loop + "\n");
  EXPECT_THAT(Error({"--flagfile=" + loop}), HasSubstr("nested"));
}

TEST_F(ServerConfigTest, HelpAndVersionAreActions) {
  EXPECT_EQ(SetFlags({"--help"}).value(), CommandLineAction::kShowHelp);
  EXPECT_EQ(SetFlags({"--version"}).value(), CommandLineAction::kShowVersion);
  const std::string help = ServerHelp();
  for (const char* flag : {"--listen=127.0.0.1:8470", "--max_message_bytes=512MiB",
                           "--drain_timeout=25s", "--flagfile", "--device=auto"}) {
    EXPECT_THAT(help, HasSubstr(flag));
  }
  EXPECT_THAT(help, Not(HasSubstr("gtest")));
}

TEST(ByteSizeTest, RoundTripsAndRefusesOverflow) {
  for (const char* text : {"0", "1", "1023", "1KiB", "1025", "64MiB", "4GiB", "8589934591GiB"}) {
    ByteSize size;
    std::string error;
    ASSERT_TRUE(AbslParseFlag(text, &size, &error)) << text;
    EXPECT_EQ(AbslUnparseFlag(size), text);
  }
  for (const char* text :
       {"", "KiB", "-1", "1.5MiB", "8589934592GiB", "9223372036854775808", "1MB"}) {
    ByteSize size;
    std::string error;
    EXPECT_FALSE(AbslParseFlag(text, &size, &error)) << text;
    EXPECT_FALSE(error.empty());
  }
}

}  // namespace
}  // namespace norm::server
