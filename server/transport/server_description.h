// What GetServerInfo reports and no other part of the transport needs to know.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace norm::server {

struct DeviceDescription {
  std::string name;   // "cpu", "cuda:0"
  std::string model;  // "NVIDIA H200"; for the CPU its vector instruction set
  uint64_t memory_bytes = 0;
  int compute_capability = 0;
  int multiprocessors = 0;
  int slots = 0;
  std::function<bool()> healthy;  // callable from any thread while the server lives
};

struct ServerDescription {
  std::string version;
  std::string build;
  std::vector<std::string> cuda_architectures;
  std::vector<DeviceDescription> devices;
  uint64_t max_message_bytes = 0;
  uint64_t max_in_flight_bytes = 0;
  uint64_t max_queue_requests = 0;
  uint64_t max_batch_rows = 0;
  uint64_t max_batch_bytes = 0;
  uint64_t max_unsent_bytes = 0;
  uint64_t write_timeout_us = 0;
  uint64_t max_queue_delay_us = 0;
};

}  // namespace norm::server
