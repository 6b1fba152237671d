// What a GPU can move at most: the measure of its kernels.
#pragma once

#include "norm/kernels/result.h"

namespace norm::server {

/// Bytes per second, read plus written, of copying 256 MiB within the device: past every L2. The
/// best of five; takes a few milliseconds and half a GiB of the device while it lasts.
Result<double> MeasureDeviceCopyBandwidth(int ordinal);

}  // namespace norm::server
