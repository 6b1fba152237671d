// The parts of protobuf's wire format that the codec needs: varints, tags, and the marker that
// stands for tensor bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
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
int64_t MarkerIndex(absl::string_view marker);

/// What a length-delimited field holds: tensor bytes (Tensor.data and the bytes fields of InputRows
/// and OutputRows), a message that may hold some, or neither.
enum class FieldKind : uint8_t { kOpaque, kMessage, kTensorData };

/// The fields of a message type by number. Reflection would be asked for each field of each message
/// instead, which took a quarter of the codec's time.
class MessageFields {
 public:
  struct Field {
    FieldKind kind = FieldKind::kOpaque;
    const MessageFields* message = nullptr;  // of kMessage
  };

  /// Of a type of norm.v1. Null where no field can hold tensor bytes.
  static const MessageFields* Of(const google::protobuf::Descriptor* message);

  /// kOpaque for numbers that the type does not have.
  Field at(uint32_t number) const { return number < fields_.size() ? fields_[number] : Field(); }

 private:
  class Registry;
  std::vector<Field> fields_;
};

}  // namespace norm::wire
