// What a quantized y may differ from the float64 reference by.
#pragma once

#include <gtest/gtest.h>

#include "norm/kernels/op_types.h"
#include "tests/reference/quantization_reference.h"
#include "tests/reference/row_norm_reference.h"
#include "tests/support/row_norm_case.h"

namespace norm::testing {

/// The format of the bytes of y.
reference::ByteFormat ByteFormatOf(OutputFormat format);

/// Whether q and row_scale of `got` are those of the reference y (`want`, not rounded):
///
/// row_scale  within 5e-6 of the reference's, relatively (with Rounding::kNormalizedFirst in a
///            16-bit type one rounding of the row's largest term more); the same class where that is
///            0, infinite or NaN.
/// q          the reference's code, unless a tie is near: with t = y / scale of the reference, q lies
///            between the codes of t - e and t + e. e is what f32 arithmetic leaves of t:
///            t * (tolerance of the scale + 4 * 2^-24) + (5e-6 * min(max(1, |y|), largest term of the
///            row) + 2^-148) / scale, and the rounding of kNormalizedFirst as above. Where t is NaN
///            or the scale 0 or not finite, q is the reference's code; zeros of either sign are one.
::testing::AssertionResult MatchesQuantized(const RowForwardCase& problem,
                                            const reference::RowNormResult& want,
                                            const RowForwardOutputs& got);

}  // namespace norm::testing
