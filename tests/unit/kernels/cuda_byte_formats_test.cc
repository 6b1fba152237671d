// f8e4m3 codes of f32 values on the device: by its instruction and in integer arithmetic.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "tests/reference/quantization_reference.h"
#include "tests/unit/kernels/byte_formats_probe.h"

namespace norm::testing {
namespace {

// Around every number with eleven significant bits, in which all codes and ties lie.
TEST(CudaByteFormatsTest, F8CodesAreThoseOfTheReference) {
  std::vector<float> values;
  for (uint32_t high = 0; high < 1U << 20; ++high) {
    for (uint32_t low : {0x000U, 0x001U, 0x800U, 0xFFFU}) {
      values.push_back(std::bit_cast<float>(high << 12 | low));
    }
  }
  const norm_device::F8Codes codes = norm_device::EncodeF8(values);
  ASSERT_TRUE(codes.ok);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint8_t want =
        reference::EncodeByte(reference::ByteFormat::kF8E4M3, static_cast<double>(values[i]));
    ASSERT_EQ(codes.quantized[i], want) << values[i];
    ASSERT_EQ(codes.by_bits[i], want) << values[i];
  }
}

}  // namespace
}  // namespace norm::testing
