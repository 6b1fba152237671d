// Mixes of requests as text files.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/normctl/load_case.h"

namespace norm::normctl {

/// One case a line, fields `name=value` between blanks, # begins a comment:
///
///   op=rms_norm shape=4x4096 dtype=bf16 weight=inline sets=64 share=3
///   op=batch_norm direction=backward shape=8x64x28x28 dtype=f32 layout=nchw mode=training
///
///   op            rms_norm, layer_norm, batch_norm; required
///   shape         sizes of x joined by x; required
///   dtype         f32, f16, bf16, f64; required
///   direction     forward (default), backward
///   share         of the requests, beside the shares of the other lines [1]; 1 to 1000
///   weight, bias, residual, running   none (default) or inline: sent with every request
///   weight_dtype  of weight and bias [dtype]
///   sets          different weights and biases, taken in turn [1]
///   mode, layout  batch_norm: training (default), inference; nchw (default), nhwc
///
/// Errors: INVALID_ARGUMENT "name:line: field: rule and value"; `name` stands for the file.
absl::StatusOr<std::vector<LoadCase>> ParseLoadMix(absl::string_view name, absl::string_view text);

/// Errors: also those of reading the file.
absl::StatusOr<std::vector<LoadCase>> ReadLoadMix(const std::string& path);

}  // namespace norm::normctl
