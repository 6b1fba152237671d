// The check that stands before every time: it passes what is right and finds what is not.
#include "bench/device_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "bench/kernel_facts.h"
#include "bench/traffic.h"
#include "norm/cuda/copy.h"

namespace norm::bench {
namespace {

using ::testing::HasSubstr;

class DeviceCaseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<cuda::Stream> stream = cuda::Stream::Create(0);
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    stream_ = std::make_unique<cuda::Stream>(std::move(stream).value());
  }

  std::unique_ptr<DeviceCase> Prepare(const std::string& line) {
    const Result<std::vector<BenchCase>> cases = ParseSuite(line, "test");
    EXPECT_TRUE(cases.ok()) << cases.status().message();
    Result<std::unique_ptr<DeviceCase>> prepared =
        DeviceCase::Prepare(cases.value().front(), arena_, *stream_);
    EXPECT_TRUE(prepared.ok()) << prepared.status().message();
    return prepared.ok() ? std::move(prepared).value() : nullptr;
  }

  Verdict Check(DeviceCase& device_case, const Enqueue& work) {
    const Result<Verdict> verdict = device_case.Check(work);
    EXPECT_TRUE(verdict.ok()) << verdict.status().message();
    return verdict.ok() ? verdict.value() : Verdict();
  }

  /// The library's call, then one byte pattern over an element of an output.
  Enqueue Spoiled(const DeviceCase& device_case, const norm_device::AnyTensor& output,
                  size_t element) {
    void* at = static_cast<float*>(output.data) + element;
    return [call = device_case.LibraryCall(), at](cuda::StreamView stream) {
      NORM_RETURN_IF_ERROR(call(stream));
      return cuda::FillAsync(at, std::byte{0x3f}, sizeof(float), stream);
    };
  }

  std::unique_ptr<cuda::Stream> stream_;
  TensorArena arena_{0};
};

TEST_F(DeviceCaseTest, TheLibraryIsRightOnEveryKindOfCase) {
  for (const char* line :
       {"rows 37x1000 ops=rms_norm directions=forward dtypes=f32",
        "rows 37x1000 ops=layer_norm directions=forward dtypes=bf16",
        "rows 37x257 ops=layer_norm directions=forward dtypes=f16 weights=f32",
        "rows 37x1000 ops=layer_norm directions=backward dtypes=f32",
        "rows 37x1000 ops=rms_norm directions=backward dtypes=bf16",
        "rows 37x1000 ops=rms_norm directions=forward dtypes=f32 variants=residual",
        "rows 37x1000 ops=layer_norm directions=backward dtypes=f16 variants=residual",
        "rows 5x64 ops=layer_norm directions=backward dtypes=f64",
        "rows 37x1000 ops=rms_norm directions=forward dtypes=bf16 variants=fp8",
        "rows 37x1000 ops=layer_norm directions=forward dtypes=f32 variants=fp8_row",
        "rows 37x257 ops=layer_norm directions=forward dtypes=f16 variants=int8",
        "channels 9x5x7x8 layouts=nchw directions=forward dtypes=f32",
        "channels 9x5x7x8 layouts=nhwc directions=backward dtypes=bf16 weights=f32",
        "channels 9x5x7x8 layouts=nhwc directions=inference dtypes=f16",
        "channels 900x33 layouts=nc directions=forward dtypes=bf16"}) {
    SCOPED_TRACE(line);
    const std::unique_ptr<DeviceCase> device_case = Prepare(line);
    ASSERT_NE(device_case, nullptr);
    const Verdict verdict = Check(*device_case, device_case->LibraryCall());
    EXPECT_TRUE(verdict.right) << verdict.message;
    EXPECT_LE(verdict.worst, 1.0);
  }
}

TEST_F(DeviceCaseTest, OneWrongElementIsFound) {
  const std::unique_ptr<DeviceCase> rows =
      Prepare("rows 300x1000 ops=rms_norm directions=forward dtypes=f32");
  ASSERT_NE(rows, nullptr);
  Verdict verdict = Check(*rows, Spoiled(*rows, rows->tensors().y, 123456));
  EXPECT_FALSE(verdict.right);
  EXPECT_THAT(verdict.message, HasSubstr("1 of 300000 values of y wrong"));

  const std::unique_ptr<DeviceCase> columns =
      Prepare("rows 300x1000 ops=layer_norm directions=backward dtypes=f32");
  ASSERT_NE(columns, nullptr);
  verdict = Check(*columns, Spoiled(*columns, columns->tensors().dbias, 999));
  EXPECT_THAT(verdict.message, HasSubstr("1 of 1000 values of dbias wrong"));

  const std::unique_ptr<DeviceCase> channels =
      Prepare("channels 8x5x6x7 layouts=nchw directions=forward dtypes=f32");
  ASSERT_NE(channels, nullptr);
  verdict = Check(*channels, Spoiled(*channels, channels->tensors().new_running_var, 4));
  EXPECT_THAT(verdict.message, HasSubstr("1 of 5 values of new_running_var wrong"));
}

TEST_F(DeviceCaseTest, OutputsThatAreNotWrittenAreWrong) {
  const std::unique_ptr<DeviceCase> device_case =
      Prepare("rows 30x100 ops=layer_norm directions=forward dtypes=bf16");
  ASSERT_NE(device_case, nullptr);
  const Verdict verdict = Check(*device_case, [](cuda::StreamView) { return Status(); });
  EXPECT_FALSE(verdict.right);
  EXPECT_THAT(verdict.message, HasSubstr("3000 of 3000 values of y wrong"));
  EXPECT_THAT(verdict.message, HasSubstr("30 of 30 values of rstd wrong"));
}

TEST_F(DeviceCaseTest, KernelFactsComeFromTheLaunchItself) {
  const Result<std::vector<KernelFacts>> kernels = KernelsOf(EnqueueEmptyKernel, stream_->view());
  ASSERT_TRUE(kernels.ok()) << kernels.status().message();
  ASSERT_EQ(kernels.value().size(), 1u);
  EXPECT_EQ(kernels.value()[0].blocks, 1);
  EXPECT_EQ(kernels.value()[0].threads, 32);
  EXPECT_GT(kernels.value()[0].occupancy, 0.0);
  EXPECT_LE(kernels.value()[0].occupancy, 1.0);
}

TEST_F(DeviceCaseTest, TheTimerMeasuresACopyOnce) {
  Result<ColdTimer> timer = ColdTimer::Create(0, 3);
  ASSERT_TRUE(timer.ok()) << timer.status().message();
  const Result<double> first = timer.value().CopyUs(1 << 20);
  ASSERT_TRUE(first.ok());
  EXPECT_GT(first.value(), 0.0);
  EXPECT_EQ(timer.value().CopyUs(1 << 20).value(), first.value());
  const Result<double> in_graph = timer.value().GraphUs(EnqueueEmptyKernel, 20);
  ASSERT_TRUE(in_graph.ok()) << in_graph.status().message();
  EXPECT_GT(in_graph.value(), 0.0);
}

}  // namespace
}  // namespace norm::bench
