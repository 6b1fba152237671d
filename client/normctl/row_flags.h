// Flags that RMSNorm and LayerNorm share.
#pragma once

#include "CLI/CLI.hpp"
#include "client/normctl/op_flags.h"

namespace norm::normctl {

void AddRowFlags(CLI::App* command, OpFlags* flags);

}  // namespace norm::normctl
