// What a device can move at most: the measure of its kernels.
#pragma once

namespace norm::server {

/// Bytes per second, read plus written, of copying 32 MiB of host memory with this many threads.
/// The best of three; takes some tens of milliseconds.
double MeasureHostCopyBandwidth(int threads);

}  // namespace norm::server
