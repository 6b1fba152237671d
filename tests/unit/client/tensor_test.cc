#include "norm/client/tensor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "norm/client/result_tensor.h"

namespace norm::client {
namespace {

std::vector<float> Counting(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

absl::Span<const std::byte> Bytes(const std::vector<float>& values) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                             values.size() * sizeof(float));
}

std::vector<float> Logical(const TensorView& view) {
  absl::StatusOr<Tensor> copy = Tensor::CopyOf(view);
  EXPECT_TRUE(copy.ok()) << copy.status();
  if (!copy.ok()) return {};
  const absl::Span<const float> values = *copy->Values<float>();
  return std::vector<float>(values.begin(), values.end());
}

TEST(TensorViewTest, CopiesATransposedArray) {
  const std::vector<float> values = Counting(6);  // [2, 3]
  const TensorView view = TensorView::Strided(DType::kF32, Bytes(values), 0, {3, 2}, {1, 3});
  EXPECT_FALSE(view.is_contiguous());
  EXPECT_EQ(Logical(view), (std::vector<float>{0, 3, 1, 4, 2, 5}));
}

TEST(TensorViewTest, CopiesTheMiddleThirdOfAWideArray) {
  const std::vector<float> values = Counting(4 * 192);
  const TensorView view = TensorView::Strided(DType::kF32, Bytes(values), 64, {4, 64}, {192, 1});
  EXPECT_FALSE(view.is_contiguous());
  const std::vector<float> copy = Logical(view);
  for (int row = 0; row < 4; ++row) {
    for (int i = 0; i < 64; ++i)
      EXPECT_EQ(copy[row * 64 + i], static_cast<float>(row * 192 + 64 + i));
  }
}

TEST(TensorViewTest, CopiesABroadcastRow) {
  const std::vector<float> values = Counting(3);
  const TensorView view = TensorView::Strided(DType::kF32, Bytes(values), 0, {2, 2, 3}, {0, 0, 1});
  EXPECT_EQ(Logical(view), (std::vector<float>{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2}));
}

TEST(TensorTest, StandsOverMemoryOfItsOwner) {
  std::shared_ptr<std::byte[]> memory(new std::byte[16]());
  memory[4] = std::byte{0x80};
  memory[5] = std::byte{0x3f};
  const absl::StatusOr<Tensor> tensor = Tensor::Over(DType::kBF16, {2, 4}, memory, 16);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(ToDoubles(*tensor), (std::vector<double>{0, 0, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(tensor->bytes().data(), memory.get());
  EXPECT_TRUE(absl::IsInvalidArgument(Tensor::Over(DType::kBF16, {2, 4}, memory, 15).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Tensor::Over(DType::kBF16, {}, memory, 2).status()));
}

TEST(TensorViewTest, CopiesAReversedArray) {
  const std::vector<float> values = Counting(4);
  EXPECT_EQ(Logical(TensorView::Strided(DType::kF32, Bytes(values), 3, {4}, {-1})),
            (std::vector<float>{3, 2, 1, 0}));
}

TEST(TensorViewTest, CopiesATransposedArrayOfFourDimensions) {
  const std::vector<float> values = Counting(2 * 3 * 4 * 5);  // NCHW seen as NHWC
  const std::vector<float> copy =
      Logical(TensorView::Strided(DType::kF32, Bytes(values), 0, {2, 4, 5, 3}, {60, 5, 1, 20}));
  size_t index = 0;
  for (int n = 0; n < 2; ++n) {
    for (int h = 0; h < 4; ++h) {
      for (int w = 0; w < 5; ++w) {
        for (int c = 0; c < 3; ++c)
          EXPECT_EQ(copy[index++], static_cast<float>(n * 60 + c * 20 + h * 5 + w));
      }
    }
  }
}

TEST(TensorViewTest, SeesThatDenseStridesAreContiguous) {
  const std::vector<float> values = Counting(6);
  EXPECT_TRUE(TensorView::Strided(DType::kF32, Bytes(values), 0, {2, 3}, {3, 1}).is_contiguous());
  EXPECT_TRUE(TensorView::Strided(DType::kF32, Bytes(values), 0, {1, 3}, {77, 1}).is_contiguous());
  EXPECT_TRUE(TensorView::Strided(DType::kF32, Bytes(values), 3, {3}, {1}).is_contiguous());
}

TEST(TensorViewTest, RefusesWhatReachesOutsideItsMemory) {
  const std::vector<float> values = Counting(6);
  const auto status = [&](int64_t offset, std::vector<int64_t> shape,
                          std::vector<int64_t> strides) {
    return TensorView::Strided(DType::kF32, Bytes(values), offset, std::move(shape),
                               std::move(strides))
        .Validate();
  };
  EXPECT_TRUE(status(0, {2, 3}, {3, 1}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(status(1, {2, 3}, {3, 1})));
  EXPECT_TRUE(absl::IsInvalidArgument(status(0, {2}, {6})));
  EXPECT_TRUE(absl::IsInvalidArgument(status(0, {2}, {-1})));
  EXPECT_TRUE(absl::IsInvalidArgument(status(-1, {1}, {1})));
  EXPECT_TRUE(absl::IsInvalidArgument(status(0, {2}, {std::numeric_limits<int64_t>::max()})));
  EXPECT_TRUE(absl::IsInvalidArgument(status(0, {2, 3}, {1})));
}

TEST(TensorViewTest, RefusesShapesThatNoTensorHas) {
  const auto message = [](std::vector<int64_t> shape) {
    return std::string(
        TensorView::Contiguous(DType::kF32, {}, std::move(shape)).Validate().message());
  };
  EXPECT_EQ(message({}), "rank 0 is not a tensor: at least one dimension is needed");
  EXPECT_EQ(message({-1, 16}), "dimension 0 is negative: -1");
  EXPECT_EQ(message({0, -5}), "dimension 1 is negative: -5");
  EXPECT_NE(message({int64_t{1} << 40, int64_t{1} << 40}).find("more bytes than 63 bits"),
            std::string::npos);
  EXPECT_EQ(message({5}), "byte size 0 != 20 of shape [5] f32");
  EXPECT_EQ(message({0, 64}), "");
}

TEST(TensorTest, AlignsAndSharesItsMemory) {
  Tensor tensor = *Tensor::Allocate(DType::kF64, {3, 5});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.bytes().data()) % 64, 0u);
  const Tensor copy = tensor;
  EXPECT_EQ(copy.bytes().data(), tensor.bytes().data());
  EXPECT_NE(tensor.view().owner(), nullptr);
}

TEST(TensorTest, RefusesValuesOfAnotherType) {
  const Tensor tensor = *Tensor::Allocate(DType::kBF16, {2});
  EXPECT_EQ(tensor.Values<float>().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(tensor.Values<uint16_t>().ok());
}

Tensor Of(double value) {
  return *Tensor::CopyOf(TensorView::Of(absl::MakeConstSpan(&value, 1), {1}));
}

uint16_t Bits(DType dtype, double value) {
  return (*Cast(Of(value), dtype)->Values<uint16_t>())[0];
}

TEST(CastTest, RoundsToNearestEvenOnce) {
  EXPECT_EQ(Bits(DType::kBF16, 1.0), 0x3f80);
  EXPECT_EQ(Bits(DType::kBF16, 1.0 + 1.0 / 256), 0x3f80);          // half way: to even
  EXPECT_EQ(Bits(DType::kBF16, 1.0 + 3.0 / 256), 0x3f82);          // half way: to even, upward
  EXPECT_EQ(Bits(DType::kBF16, 1.0 + 1.0 / 256 + 1e-12), 0x3f81);  // through f32 it would be a tie
  EXPECT_EQ(Bits(DType::kF16, 65519.999), 0x7bff);
  EXPECT_EQ(Bits(DType::kF16, 65520.0), 0x7c00);
  EXPECT_EQ(Bits(DType::kF16, std::ldexp(1.0, -24)), 0x0001);
  EXPECT_EQ(Bits(DType::kF16, std::ldexp(1.0, -25)), 0x0000);
  EXPECT_EQ(Bits(DType::kF16, std::ldexp(1.5, -25)), 0x0001);
  EXPECT_EQ(Bits(DType::kF16, -0.0), 0x8000);
  EXPECT_EQ(Bits(DType::kBF16, -HUGE_VAL), 0xff80);
  EXPECT_EQ(Bits(DType::kBF16, std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(ToDoubles(*Cast(Of(std::nan("")), DType::kF16))[0]));
}

TEST(CastTest, BringsEvery16BitPatternBack) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    Tensor all = *Tensor::Allocate(dtype, {1 << 16});
    auto* bits = reinterpret_cast<uint16_t*>(all.mutable_bytes().data());
    std::iota(bits, bits + (1 << 16), uint16_t{0});
    const Tensor wide = *Cast(all, DType::kF64);
    const std::vector<double> values = ToDoubles(wide);
    const Tensor back = *Cast(wide, dtype);
    const absl::Span<const uint16_t> returned = *back.Values<uint16_t>();
    const std::vector<double> returned_values = ToDoubles(back);
    for (size_t i = 0; i < returned.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_TRUE(std::isnan(returned_values[i])) << i;
        continue;
      }
      ASSERT_EQ(returned[i], i) << DTypeName(dtype);
    }
  }
}

TEST(CastTest, DecodesBf16AsTheUpperHalfOfAFloat) {
  Tensor tensor = *Tensor::Allocate(DType::kBF16, {1});
  *reinterpret_cast<uint16_t*>(tensor.mutable_bytes().data()) = 0x4049;
  EXPECT_EQ(ToDoubles(tensor)[0], static_cast<double>(std::bit_cast<float>(0x40490000u)));
}

/// The bytes of 1, 2, 3, 4 as f32, received in runs that end inside elements.
struct Received {
  std::vector<float> values = {1, 2, 3, 4};
  std::vector<ResultTensor::Run> runs = {
      Bytes(values).subspan(0, 3), {}, Bytes(values).subspan(3, 7), Bytes(values).subspan(10)};
};

TEST(ResultTensorTest, JoinsRunsThatEndInsideElements) {
  const auto received = std::make_shared<Received>();
  const absl::StatusOr<ResultTensor> result =
      ResultTensor::Over(received->runs, DType::kF32, {2, 2}, received);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->runs().data(), received->runs.data());
  EXPECT_EQ(result->size_bytes(), 16);
  const absl::StatusOr<Tensor> tensor = result->ToTensor();
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->shape(), (std::vector<int64_t>{2, 2}));
  const absl::Span<const float> values = *tensor->Values<float>();
  EXPECT_EQ(std::vector<float>(values.begin(), values.end()), received->values);
}

TEST(ResultTensorTest, KeepsItsBuffersWhileACopyLives) {
  auto received = std::make_shared<Received>();
  const std::weak_ptr<Received> watched = received;
  auto result = std::make_unique<ResultTensor>(
      *ResultTensor::Over(received->runs, DType::kF32, {4}, received));
  received.reset();
  auto copy = std::make_unique<ResultTensor>(*result);
  result.reset();
  EXPECT_FALSE(watched.expired());
  copy.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(ResultTensorTest, SharesAWholeTensor) {
  const Tensor tensor = *Tensor::CopyOf(TensorView::Of(std::vector<float>{1, 2, 3, 4}, {2, 2}));
  const ResultTensor result = ResultTensor::Of(tensor);
  EXPECT_EQ(result.shape(), tensor.shape());
  ASSERT_EQ(result.runs().size(), 1U);
  EXPECT_EQ(result.runs()[0], tensor.bytes());
  EXPECT_EQ(result.runs()[0].data(), tensor.bytes().data());
}

TEST(ResultTensorTest, RefusesAShapeOfOtherSize) {
  const Received received;
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{3}, {5}, {0, 4}, {-1, -4}, {}, {int64_t{1} << 62, 4}}) {
    EXPECT_EQ(ResultTensor::Over(received.runs, DType::kF32, shape, nullptr).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(ResultTensor::Over({}, DType::kF32, {0, 4}, nullptr).ok());
}

}  // namespace
}  // namespace norm::client
