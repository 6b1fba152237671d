// Looks at this machine for `normctl doctor`.
#pragma once

#include "client/normctl/doctor/driver_probe.h"
#include "client/normctl/doctor/machine_facts.h"

namespace norm::normctl {

/// Asks the system and NVIDIA's libraries; never fails: what cannot be found out is left as it is
/// when nothing is there.
MachineFacts LookAtMachine(const BuildFacts& build, CopyTiming timing);

}  // namespace norm::normctl
