// One-byte formats from their definitions: E4M3 of the OFP8 specification, and symmetric int8; and
// the quantization of a row norm's result.
#pragma once

#include <cstdint>
#include <vector>

namespace norm::reference {

enum class ByteFormat { kF8E4M3, kInt8 };

/// The largest finite value: 448 or 127.
double LargestValue(ByteFormat format);

/// The value of a code. kF8E4M3: sign, 4 exponent bits of bias 7, 3 fraction bits; no infinities,
/// NaN where all of exponent and fraction are ones. kInt8: two's complement.
double DecodeByte(ByteFormat format, uint8_t code);

/// The code nearest to `value`, ties to even, saturated at LargestValue with its sign. NaN: 0x7F in
/// kF8E4M3, 0 in kInt8.
uint8_t EncodeByte(ByteFormat format, double value);

/// What y is divided by in a row: max |y| / LargestValue, in f32 arithmetic; 0 when below 2^-126;
/// infinite or NaN when y holds such a value.
double RowScale(ByteFormat format, const std::vector<double>& y, int64_t row, int64_t hidden_size);

/// The code of y in a row or tensor of this scale: zero where the scale is 0; where the scale is not
/// finite NaN, or 0 in kInt8.
uint8_t Quantize(ByteFormat format, double y, double scale);

}  // namespace norm::reference
