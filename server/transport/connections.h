// How many connections this process's gRPC servers have.
#pragma once

#include <cstdint>

namespace norm::server {

/// Open connections of all gRPC servers in this process, from gRPC's own register of them
/// (channelz). Takes no part in serving calls: for a scrape. Needs grpc_init.
int64_t CountConnections();

}  // namespace norm::server
