// Seeded test tensors: values as double, exactly representable in the dtype they were made for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "norm/kernels/dtype.h"
#include "tests/reference/element_codec.h"

namespace norm::testing {

reference::Format FormatOf(DType dtype);

enum class DataKind {
  kUniform,       // in [-1, 1]
  kNormal,        // standard normal
  kLargeMean,     // mean far above the spread, as far as the dtype can tell them apart
  kConstantRows,  // every row one value
  kSubnormal,     // around the smallest normal value
  kInfAndNan,     // normal, an infinity in row 1, a NaN in row 2 (where they exist)
  kSumsPastF16,   // magnitudes whose f16 sums and squares overflow
};
inline constexpr DataKind kDataKinds[] = {
    DataKind::kUniform,   DataKind::kNormal,    DataKind::kLargeMean,  DataKind::kConstantRows,
    DataKind::kSubnormal, DataKind::kInfAndNan, DataKind::kSumsPastF16};

/// "Uniform", "Normal", ...: usable in test names.
std::string DataKindName(DataKind kind);

/// [rows, columns] values of a kind.
std::vector<double> MakeData(DataKind kind, int64_t rows, int64_t columns, DType dtype,
                             uint64_t seed);

/// `count` standard normal values times `scale` plus `shift`.
std::vector<double> MakeNormal(int64_t count, double shift, double scale, DType dtype,
                               uint64_t seed);

/// A tensor's bytes, and their values back.
std::vector<std::byte> ToBytes(DType dtype, const std::vector<double>& values);
std::vector<double> ToValues(DType dtype, const std::vector<std::byte>& bytes);

}  // namespace norm::testing
