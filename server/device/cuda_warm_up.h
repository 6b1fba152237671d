// Launches before the first request.
#pragma once

#include "norm/kernels/status.h"
#include "server/device/cuda_flight.h"

namespace norm::server {

/// Runs WarmUpProblems through the flight, by each of its ways: what the driver and the kernels do once (attributes, occupancy, memory of streams and events) is
/// done then. Batches that the pools' budgets have no room for are left out. Errors: those of the
/// device; it is of no use then.
///
/// Threads: the device of the flight must be current.
Status WarmUp(CudaFlight& flight);

}  // namespace norm::server
