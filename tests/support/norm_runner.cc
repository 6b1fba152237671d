#include "tests/support/norm_runner.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <memory>
#include <type_traits>

namespace norm::testing {
namespace {

constexpr size_t kGuardBytes = 256;
constexpr std::byte kGuard{
    0xA5};  // four of them are a finite f32, two a finite f16: visible in any output

/// Tests allocate and free hundreds of megabytes all the time: the process keeps its pages, which
/// are otherwise mapped and cleared anew (half of the time of large cases).
[[maybe_unused]] const bool kKeepsPages =
    mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, INT_MAX) == 1;

struct FieldSizes {
  size_t tensor;      // elements of x
  size_t parameters;  // elements of weight
  size_t statistics;  // elements of mean
  DType dtype;
  DType weight_dtype;
};

class FieldCollector {
 public:
  explicit FieldCollector(FieldSizes sizes) : sizes_(sizes) {}

  void Tensors(const char* name, const void*& field) {
    Add(name, &field, sizes_.tensor, sizes_.dtype);
  }
  void Tensors(const char* name, void*& field) { Add(name, &field, sizes_.tensor, sizes_.dtype); }
  /// An output with an element for each of x.
  void Output(const char* name, void*& field, size_t element_bytes) {
    if (field != nullptr) {
      fields_.push_back({name, nullptr, &field, sizes_.tensor * element_bytes, element_bytes});
    }
  }
  template <typename Pointer>
  void Parameters(const char* name, Pointer& field) {
    Add(name, &field, sizes_.parameters, sizes_.weight_dtype);
  }
  template <typename Pointer>
  void Statistics(const char* name, Pointer& field) {
    Add(name, &field, sizes_.statistics, StatisticsDType(sizes_.dtype));
  }

  std::vector<TensorField> Take() { return std::move(fields_); }

 private:
  void Add(const char* name, const void** field, size_t elements, DType dtype) {
    if (*field != nullptr) {
      fields_.push_back({name, field, nullptr, elements * DTypeSize(dtype), DTypeSize(dtype)});
    }
  }
  void Add(const char* name, void** field, size_t elements, DType dtype) {
    if (*field != nullptr) {
      fields_.push_back({name, nullptr, field, elements * DTypeSize(dtype), DTypeSize(dtype)});
    }
  }

  FieldSizes sizes_;
  std::vector<TensorField> fields_;
};

template <typename Args>
FieldSizes SizesOf(const Args& args) {
  if constexpr (std::is_same_v<Args, BatchNormForwardArgs> ||
                std::is_same_v<Args, BatchNormBackwardArgs>) {
    const size_t channels = static_cast<size_t>(args.shape.channels);
    return {static_cast<size_t>(args.shape.batch * args.shape.spatial) * channels, channels,
            channels, args.dtype, args.weight_dtype};
  } else {
    return {static_cast<size_t>(args.rows * args.hidden_size),
            static_cast<size_t>(args.hidden_size), static_cast<size_t>(args.rows), args.dtype,
            args.weight_dtype};
  }
}

template <typename Args>
std::vector<TensorField> Collect(Args& args) {
  FieldCollector fields(SizesOf(args));
  fields.Tensors("x", args.x);
  fields.Parameters("weight", args.weight);
  if constexpr (requires { args.residual; }) {
    fields.Tensors("residual", args.residual);
    fields.Tensors("residual_sum", args.residual_sum);
  }
  if constexpr (requires { args.bias; }) {
    fields.Parameters("bias", args.bias);
  }
  if constexpr (requires { args.running_mean; }) {
    fields.Statistics("running_mean", args.running_mean);
    fields.Statistics("new_running_mean", args.new_running_mean);
    fields.Statistics("new_running_var", args.new_running_var);
  }
  if constexpr (requires { args.running_var; }) {
    fields.Statistics("running_var", args.running_var);
  }
  if constexpr (requires { args.y; }) {
    if constexpr (requires { args.output_format; }) {
      const bool same = args.output_format == OutputFormat::kSameAsInput;
      fields.Output("y", args.y, same ? DTypeSize(args.dtype) : 1);
    } else {
      fields.Tensors("y", args.y);
    }
  }
  if constexpr (requires { args.row_scale; }) {
    fields.Statistics("row_scale", args.row_scale);
  }
  if constexpr (requires { args.mean; }) {
    fields.Statistics("mean", args.mean);
  }
  if constexpr (requires { args.rstd; }) {
    fields.Statistics("rstd", args.rstd);
  }
  if constexpr (requires { args.dy; }) {
    fields.Tensors("dy", args.dy);
    fields.Tensors("dx", args.dx);
    fields.Parameters("dweight", args.dweight);
  }
  if constexpr (requires { args.dbias; }) {
    fields.Parameters("dbias", args.dbias);
  }
  if constexpr (requires { args.dresidual_sum; }) {
    fields.Tensors("dresidual_sum", args.dresidual_sum);
  }
  return fields.Take();
}

}  // namespace

std::vector<TensorField> TensorFields(NormCall& call) {
  return std::visit([](auto& args) { return Collect(args); }, call);
}

/// Backend memory for one tensor between two guards.
class NormRunner::GuardedBlock {
 public:
  /// With the bytes of `content`, or with guard bytes where that is null.
  GuardedBlock(NormRunner& runner, size_t bytes, size_t misaligned_bytes, const void* content)
      : runner_(runner),
        begin_(kGuardBytes + misaligned_bytes),
        bytes_(bytes),
        total_(begin_ + bytes + kGuardBytes),
        base_(static_cast<std::byte*>(runner.Allocate(total_))) {
    if (content == nullptr) {
      runner_.Fill(base_, kGuard, total_);
      return;
    }
    const std::unique_ptr<std::byte[]> image = Uninitialized();
    std::fill_n(image.get(), begin_, kGuard);
    std::memcpy(image.get() + begin_, content, bytes_);
    std::fill_n(image.get() + begin_ + bytes_, kGuardBytes, kGuard);
    runner_.CopyIn(base_, image.get(), total_);
  }
  ~GuardedBlock() { runner_.Free(base_); }
  GuardedBlock(const GuardedBlock&) = delete;
  GuardedBlock& operator=(const GuardedBlock&) = delete;

  std::byte* data() const { return base_ + begin_; }

  /// What the block holds is here after Wait.
  void StartRead() {
    image_ = Uninitialized();
    runner_.CopyOut(image_.get(), base_, total_);
  }
  /// The same for the guards alone.
  void StartReadOfGuards() {
    image_ = Uninitialized();
    runner_.CopyOut(image_.get(), base_, begin_);
    runner_.CopyOut(image_.get() + begin_ + bytes_, base_ + begin_ + bytes_, kGuardBytes);
  }
  void CheckGuards(const char* name) const {
    const std::byte* begin = image_.get();
    const std::byte* content_begin = begin + begin_;
    const std::byte* content_end = content_begin + bytes_;
    const std::byte* end = content_end + kGuardBytes;
    const auto changed = [](std::byte byte) { return byte != kGuard; };
    const std::byte* before = std::find_if(begin, content_begin, changed);
    if (before != content_begin) {
      ADD_FAILURE() << name << ": a byte " << content_begin - before
                    << " before the tensor was overwritten";
    }
    if (const std::byte* after = std::find_if(content_end, end, changed); after != end) {
      ADD_FAILURE() << name << ": byte " << after - content_end
                    << " past the end of the tensor was overwritten";
    }
  }
  std::span<const std::byte> content() const { return {image_.get() + begin_, bytes_}; }

 private:
  std::unique_ptr<std::byte[]> Uninitialized() const {
    return std::make_unique_for_overwrite<std::byte[]>(total_);
  }

  NormRunner& runner_;
  size_t begin_;
  size_t bytes_;
  size_t total_;
  std::byte* base_;
  std::unique_ptr<std::byte[]> image_;
};

/// A call whose tensors were copied to backend memory.
class NormRunner::PlacedCall {
 public:
  PlacedCall(NormRunner& runner, const NormCall& host_call, Placement placement)
      : call_(host_call) {
    for (const TensorField& field : TensorFields(call_)) {
      const void* host = field.input != nullptr ? *field.input : *field.output;
      const auto same = std::find_if(mappings_.begin(), mappings_.end(),
                                     [&](const Mapping& mapping) { return mapping.host == host; });
      GuardedBlock* block = nullptr;
      if (same != mappings_.end()) {
        block = same->block;
        if (field.input != nullptr) runner.CopyIn(block->data(), host, field.bytes);
      } else {
        blocks_.push_back(std::make_unique<GuardedBlock>(
            runner, field.bytes, placement.misaligned_elements * field.element_bytes,
            field.input != nullptr ? host : nullptr));
        block = blocks_.back().get();
      }
      if (field.input != nullptr) {
        *field.input = block->data();
      } else {
        *field.output = block->data();
      }
      mappings_.push_back({field, host, block});
    }
  }

  const NormCall& call() const { return call_; }

  /// Before the Wait that Finish needs.
  void StartReads() const {
    for (const auto& block : blocks_) block->StartRead();
  }

  /// Checks guards and inputs, and copies outputs back if the call succeeded.
  void Finish(const Status& status) const {
    for (const Mapping& mapping : mappings_) {
      mapping.block->CheckGuards(mapping.field.name);
      const std::span<const std::byte> content = mapping.block->content();
      if (mapping.field.output != nullptr) {
        if (status.ok() && !content.empty()) {
          std::memcpy(const_cast<void*>(mapping.host), content.data(), content.size());
        }
        continue;
      }
      const bool replaced =
          std::any_of(mappings_.begin(), mappings_.end(), [&](const Mapping& other) {
            return other.block == mapping.block && other.field.output != nullptr;
          });
      if (!replaced && !content.empty() &&
          std::memcmp(content.data(), mapping.host, content.size()) != 0) {
        ADD_FAILURE() << mapping.field.name << " is an input, but was changed";
      }
    }
  }

  /// Whether the outputs still hold what they were filled with.
  bool OutputsUntouched() const {
    return std::all_of(mappings_.begin(), mappings_.end(), [](const Mapping& mapping) {
      if (mapping.field.output == nullptr) return true;
      const std::span<const std::byte> content = mapping.block->content();
      return std::all_of(content.begin(), content.end(),
                         [](std::byte byte) { return byte == kGuard; });
    });
  }

 private:
  struct Mapping {
    TensorField field;
    const void* host;
    GuardedBlock* block;
  };

  NormCall call_;
  std::vector<std::unique_ptr<GuardedBlock>> blocks_;
  std::vector<Mapping> mappings_;
};

Status NormRunner::Run(const NormCall& host_call, Placement placement) {
  const PlacedCall placed(*this, host_call, placement);
  const size_t workspace_bytes = WorkspaceBytes(placed.call());
  GuardedBlock workspace(*this, workspace_bytes, 0, nullptr);
  Status status = Execute(placed.call(), {workspace.data(), workspace_bytes});
  workspace.StartReadOfGuards();
  placed.StartReads();
  Wait();
  workspace.CheckGuards("workspace");
  placed.Finish(status);
  return status;
}

Status NormRunner::RunSegments(const std::vector<NormCall>& host_calls) {
  std::vector<std::unique_ptr<PlacedCall>> placed;
  std::vector<NormCall> calls;
  for (const NormCall& call : host_calls) {
    placed.push_back(std::make_unique<PlacedCall>(*this, call, Placement()));
    calls.push_back(placed.back()->call());
  }
  const size_t workspace_bytes = SegmentsWorkspaceBytes(calls);
  GuardedBlock workspace(*this, workspace_bytes, 0, nullptr);
  Status status = ExecuteSegments(calls, {workspace.data(), workspace_bytes});
  workspace.StartReadOfGuards();
  for (const auto& call : placed) call->StartReads();
  Wait();
  workspace.CheckGuards("workspace");
  for (const auto& call : placed) {
    call->Finish(status);
    if (!status.ok() && !call->OutputsUntouched()) {
      ADD_FAILURE() << "a refused call wrote to an output";
    }
  }
  return status;
}

}  // namespace norm::testing
