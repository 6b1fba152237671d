// Element types as doubles and back.
#pragma once

#include <cstdint>

namespace norm::client {

double F16ToDouble(uint16_t bits);
double Bf16ToDouble(uint16_t bits);

/// One rounding to nearest even; overflow becomes infinity, NaN a quiet NaN.
uint16_t DoubleToF16(double value);
uint16_t DoubleToBf16(double value);

}  // namespace norm::client
