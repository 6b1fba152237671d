// ServerService messages as plain structs.
#pragma once

#include "norm/client/server_info.h"
#include "norm/v1/server.pb.h"

namespace norm::client {

ServerInfo Decode(const norm::v1::ServerInfo& message);
ServerStatistics Decode(const norm::v1::ServerStatistics& message);

}  // namespace norm::client
