// Mix files of `normctl bench`, and the requests that their cases become.
#include "client/normctl/load_mix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/normctl/prepared_case.h"
#include "tests/unit/client/scratch_folder.h"

namespace norm::normctl {
namespace {

using ::testing::HasSubstr;

TEST(LoadMixTest, ReadsEveryField) {
  const auto cases = ParseLoadMix("m", R"(# comment
    op=rms_norm shape=4x4096 dtype=bf16 weight=inline sets=64 share=3   # and more
)"
                                       "\t op=layer_norm\tdtype=f16 shape=2x3x8 weight=inline "
                                       "weight_dtype=f32 bias=inline residual=inline\r\n"
                                       R"(
    op=batch_norm direction=forward shape=4x8x7x7 dtype=f32 running=inline weight=none
    op=batch_norm direction=backward shape=4x7x7x8 dtype=f64 mode=inference layout=nhwc bias=inline priority=bulk)");
  ASSERT_TRUE(cases.ok()) << cases.status();
  ASSERT_EQ(cases->size(), 4u);
  std::vector<std::string> names;
  for (const LoadCase& one : *cases) names.push_back(one.Name());
  EXPECT_EQ(names,
            (std::vector<std::string>{"rms_norm forward 4x4096 bf16 weight 64 sets",
                                      "layer_norm forward 2x3x8 f16 weight f32 bias residual",
                                      "batch_norm forward 4x8x7x7 f32 training nchw running",
                                      "batch_norm backward 4x7x7x8 f64 inference nhwc bias bulk"}));
  EXPECT_EQ((*cases)[0].share, 3);
  EXPECT_EQ((*cases)[1].share, 1);
  EXPECT_EQ((*cases)[0].parameter_size(), 4096);
  EXPECT_EQ((*cases)[1].parameter_dtype(), DType::kF32);
  EXPECT_EQ((*cases)[2].parameter_size(), 8);
  EXPECT_EQ((*cases)[3].parameter_size(), 8);
}

TEST(LoadMixTest, NamesLineFieldRuleAndValue) {
  const std::string good = "op=rms_norm shape=4x8 dtype=f32";
  const std::map<std::string, std::string> refusals = {
      {"op=rms_norm shape=4x8 dtype=f32 op=rms_norm",
       "op: is given twice, as 'rms_norm' and 'rms_norm'"},
      {"op=softmax shape=4x8 dtype=f32",
       "op: 'softmax' is none of rms_norm, layer_norm, batch_norm"},
      {"op=rms_norm dtype=f32", "shape: is required and missing"},
      {"shape=4x8 dtype=f32", "op: is required and missing"},
      {"op=rms_norm shape=4x8", "dtype: is required and missing"},
      {"op=rms_norm shape=4x dtype=f32",
       "shape: '4x' is not 1 to 64 sizes joined by x, such as 4x4096"},
      {"op=rms_norm shape=4x99999999999999999999 dtype=f32",
       "shape: '4x99999999999999999999' is not 1 to 64 sizes joined by x, such as 4x4096"},
      {"op=rms_norm shape=4x0 dtype=f32", "shape: 4x0 has the size 0 < 1"},
      {"op=rms_norm shape=4x-8 dtype=f32", "shape: 4x-8 has the size -8 < 1"},
      {"op=rms_norm shape=65536x16384 dtype=bf16",
       "shape: 65536x16384 of 2 bytes each is over the limit of 2147483647 bytes"},
      {"op=rms_norm shape=4611686018427387904x4611686018427387904 dtype=f32",
       "shape: 4611686018427387904x4611686018427387904 of 4 bytes each is over the limit of "
       "2147483647 bytes"},
      {"op=rms_norm direction=backward shape=65536x8192 dtype=bf16",
       "shape: two tensors of 65536x8192 of 2 bytes each are over the limit of 2147483647 bytes"},
      {good + " dtyp=f32",
       "dtyp: is none of the fields bias, direction, dtype, layout, mode, op, priority, residual, "
       "running, sets, shape, share, weight, weight_dtype"},
      {good + " priority=high", "priority: 'high' is none of interactive, bulk"},
      {good + " fast", "fast: is not name=value"},
      {good + " =fast", "=fast: is not name=value"},
      {good + " weight=cached", "weight: 'cached' is none of none, inline"},
      {good + " bias=inline", "bias: is for layer_norm and batch_norm, not for rms_norm forward"},
      {good + " running=inline", "running: is for batch_norm forward, not for rms_norm forward"},
      {good + " direction=backward residual=inline",
       "residual: is for rms_norm and layer_norm forward, not for rms_norm backward"},
      {good + " mode=training", "mode: is for batch_norm, not for rms_norm"},
      {good + " layout=nhwc", "layout: is for batch_norm, not for rms_norm"},
      {good + " weight_dtype=f32", "weight_dtype: f32 needs weight=inline"},
      {good + " weight=inline weight_dtype=f16",
       "weight_dtype: f16 is neither the dtype f32 nor f32 beside f16 or bf16"},
      {good + " share=0", "share: 0 is outside [1, 1000]"},
      {good + " share=1.5", "share: '1.5' is no whole number"},
      {good + " sets=2", "sets: 2 different parameters need weight=inline, or bias=inline forward"},
      {good + " weight=inline sets=5000", "sets: 5000 is outside [1, 4096]"},
      {"op=rms_norm shape=1x1000000 dtype=f32 weight=inline sets=4096",
       "sets: 4096 of 4000000 bytes are over the limit of 1073741824 bytes"},
      {"op=batch_norm shape=8 dtype=f32", "shape: 8 has rank 1, batch_norm needs rank 2"},
      {"op=batch_norm shape=1x8x1 dtype=f32",
       "shape: 1x8x1 has 1 value per channel, training needs 2"}};
  for (const auto& [line, refusal] : refusals) {
    const auto cases = ParseLoadMix("mix.txt", absl::StrCat(good, "\n\n", line, "\n", good));
    EXPECT_EQ(cases.status(), absl::InvalidArgumentError("mix.txt:3: " + refusal)) << line;
  }
  EXPECT_TRUE(ParseLoadMix("m", "op=batch_norm shape=1x8x1 dtype=f32 mode=inference").ok());
}

TEST(LoadMixTest, RefusesTooFewAndTooManyCases) {
  EXPECT_EQ(ParseLoadMix("m", "").status(), absl::InvalidArgumentError("m: has no cases"));
  EXPECT_EQ(ParseLoadMix("m", "# op=rms_norm\n \n").status(),
            absl::InvalidArgumentError("m: has no cases"));
  const std::vector<std::string> lines(257, "op=rms_norm shape=4x8 dtype=f32");
  EXPECT_EQ(ParseLoadMix("m", absl::StrJoin(lines, "\n")).status(),
            absl::InvalidArgumentError("m:257: is case 257, over the limit of 256"));
}

TEST(LoadMixTest, ReadsFiles) {
  client::ScratchFolder folder;
  const std::string path = folder.Write("mix.txt", "op=rms_norm shape=4x8 dtype=f32\nshape=4x8\n");
  EXPECT_EQ(ReadLoadMix(path).status(),
            absl::InvalidArgumentError(path + ":2: op: is required and missing"));
  EXPECT_EQ(ReadLoadMix(folder / "none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadLoadMix("/dev/null").status().code(), absl::StatusCode::kInvalidArgument);
  const std::string big = folder.Write("big.txt", std::string((1 << 20) + 1, '\n'));
  EXPECT_THAT(std::string(ReadLoadMix(big).status().message()),
              HasSubstr("1048577 bytes are over the limit of 1048576"));
}

PreparedCase Prepare(const std::string& line) {
  return *PreparedCase::Make(ParseLoadMix("m", line)->front());
}

TEST(PreparedCaseTest, CountsTheBytesOfRequestsAndResults) {
  struct Row {
    std::string line;
    int64_t sent;
    int64_t received;
  };
  for (const auto& [line, sent, received] : std::vector<Row>{
           {"op=rms_norm shape=3x8 dtype=bf16", 48, 48},
           {"op=rms_norm shape=3x8 dtype=bf16 weight=inline residual=inline", 48 + 16 + 48, 96},
           {"op=layer_norm shape=3x8 dtype=f16 weight=inline bias=inline weight_dtype=f32",
            48 + 32 + 32, 48},
           {"op=layer_norm direction=backward shape=3x8 dtype=f64 bias=inline", 2 * 192, 192 + 64},
           {"op=layer_norm direction=backward shape=3x8 dtype=f16 weight=inline bias=inline",
            96 + 16, 48 + 16 + 16},
           {"op=batch_norm shape=3x8 dtype=f16 running=inline", 48 + 2 * 32, 48 + 2 * 32},
           {"op=batch_norm shape=3x8 dtype=f64 mode=inference", 192 + 2 * 64, 192},
           {"op=batch_norm direction=backward shape=3x8 dtype=bf16 bias=inline mode=inference",
            96 + 2 * 32, 48 + 32}}) {
    const PreparedCase prepared = Prepare(line);
    EXPECT_EQ(prepared.tensor_bytes(), sent) << line;
    EXPECT_EQ(prepared.expected().tensor_bytes, received) << line;
    // A header of a few fields is left.
    EXPECT_GT(prepared.request(0).encoded.size_bytes(), sent) << line;
    EXPECT_LT(prepared.request(0).encoded.size_bytes(), sent + 200) << line;
  }
}

TEST(PreparedCaseTest, CarriesThePriorityIntoTheMessage) {
  const std::string forward = "op=layer_norm shape=2x8 dtype=f32";
  const std::string backward = "op=batch_norm shape=2x8 dtype=f32 direction=backward";
  for (const auto& [suffix, priority] : std::map<std::string, client::Priority>{
           {"", client::Priority::kInteractive},
           {" priority=interactive", client::Priority::kInteractive},
           {" priority=bulk", client::Priority::kBulk}}) {
    const PreparedCase there = Prepare(forward + suffix);
    EXPECT_EQ(
        std::get<client::LayerNormRequest>(std::get<client::ForwardRequest>(there.request(0).typed))
            .priority,
        priority);
    const PreparedCase back = Prepare(backward + suffix);
    EXPECT_EQ(std::get<client::BatchNormBackwardRequest>(
                  std::get<client::BackwardRequest>(back.request(0).typed))
                  .priority,
              priority);
  }
}

TEST(PreparedCaseTest, SetsDifferAndTakeTurns) {
  const PreparedCase prepared = Prepare("op=rms_norm shape=1x6 dtype=bf16 weight=inline sets=4096");
  std::set<std::string> weights;
  for (int64_t i = 0; i < 4096; ++i) {
    const auto& request = std::get<client::RmsNormRequest>(
        std::get<client::ForwardRequest>(prepared.request(i).typed));
    const auto bytes = request.weight->contiguous_bytes();
    weights.emplace(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  EXPECT_EQ(weights.size(), 4096u);
  EXPECT_EQ(&prepared.request(4097), &prepared.request(1));
}

TEST(PreparedCaseTest, RefusesOtherResults) {
  const PreparedCase prepared = Prepare("op=rms_norm shape=3x8 dtype=bf16");
  const auto result = [](DType dtype, std::vector<int64_t> shape) {
    return client::ForwardResult{
        .y = client::ResultTensor::Of(*client::Tensor::Allocate(dtype, std::move(shape)))};
  };
  EXPECT_TRUE(prepared.Check(result(DType::kBF16, {3, 8})).ok());
  EXPECT_EQ(prepared.Check(result(DType::kF16, {3, 8})),
            absl::InternalError("the result is 3x8 of f16, not 3x8 of bf16"));
  EXPECT_EQ(prepared.Check(result(DType::kBF16, {8, 3})),
            absl::InternalError("the result is 8x3 of bf16, not 3x8 of bf16"));
  client::ForwardResult more = result(DType::kBF16, {3, 8});
  more.rstd = client::ResultTensor::Of(*client::Tensor::Allocate(DType::kF32, {3}));
  EXPECT_EQ(prepared.Check(more), absl::InternalError("all results have 60 bytes, not 48"));
}

}  // namespace
}  // namespace norm::normctl
