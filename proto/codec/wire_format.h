// The parts of protobuf's wire format that the codec needs: varints, tags, and the marker that
// stands for tensor bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "google/protobuf/descriptor.h"

namespace norm::wire {

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

/// Longest encoding of a 64-bit varint.
inline constexpr int kMaxVarintBytes = 10;
/// Messages nested deeper are refused, as protobuf itself does.
inline constexpr int kMaxDepth = 100;
/// Size of a marker: the index of a payload, little-endian.
inline constexpr size_t kMarkerBytes = 4;

void AppendVarint(uint64_t value, std::string* out);
void AppendMarker(uint32_t index, std::string* out);
/// The index in `marker`, or -1 when it is not kMarkerBytes long.
int64_t MarkerIndex(const std::string& marker);

/// What a length-delimited field of `message` (null: unknown message) holds. Tensor bytes are
/// Tensor.data and the bytes fields of InputRows and OutputRows.
enum class FieldKind : uint8_t { kOpaque, kMessage, kTensorData };
FieldKind KindOfField(const google::protobuf::Descriptor* message, uint32_t field_number,
                      const google::protobuf::Descriptor** child);

}  // namespace norm::wire
