#include "client/normctl/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/client/scratch_folder.h"

namespace norm::normctl {
namespace {

using ::testing::HasSubstr;

TEST(ManifestTest, ReadsTheShippedCases) {
  absl::StatusOr<std::vector<VerifyCase>> cases = ReadManifest(NORM_TEST_DATA_DIR "/manifest.json");
  ASSERT_TRUE(cases.ok()) << cases.status();
  EXPECT_GE(cases->size(), 30u);
  const VerifyCase& first = cases->front();
  EXPECT_EQ(first.name, "layer_norm_f32_forward");
  EXPECT_EQ(first.options.op, Op::kLayerNorm);
  EXPECT_EQ(first.options.eps, 1e-12);
  EXPECT_TRUE(first.options.return_statistics);
  EXPECT_EQ(first.inputs.at("x"), NORM_TEST_DATA_DIR "/embeddings.safetensors:x");
  EXPECT_EQ(first.outputs.at("y").tolerance.relative, 5e-6);
}

TEST(ManifestTest, RefusesWhatItDoesNotUnderstand) {
  const client::ScratchFolder folder;
  const auto message = [&](const std::string& text) {
    return std::string(ReadManifest(folder.Write("m.json", text)).status().message());
  };
  const auto with = [](const std::string& options, const std::string& tolerance) {
    return R"({"cases":[{"name":"n","op":"rms_norm","direction":"forward","options":)" + options +
           R"(,"inputs":{"x":"x.npy"},"outputs":{"y":{"golden":"y.npy","tolerance":)" + tolerance +
           "}}}]}";
  };
  const std::string fine = R"({"relative":1e-6,"of":"value"})";
  EXPECT_EQ(message(with("{}", fine)), "");
  EXPECT_THAT(message("nonsense"), HasSubstr("is not JSON"));
  EXPECT_THAT(message("{}"), HasSubstr("has no list of cases"));
  EXPECT_THAT(message(R"({"cases":[]})"), HasSubstr("has no cases"));
  EXPECT_THAT(message(R"({"cases":[7]})"), HasSubstr("case 0: is not an object"));
  EXPECT_THAT(message(R"({"cases":[{}]})"), HasSubstr("case 0: name is missing"));
  EXPECT_THAT(message(with(R"({"epsilon":1})", fine)),
              HasSubstr("case 'n', options: unknown field 'epsilon'"));
  EXPECT_THAT(message(with(R"({"eps":"1"})", fine)), HasSubstr("eps is not a number"));
  EXPECT_THAT(message(with(R"({"mode":"train"})", fine)), HasSubstr("mode is 'train'"));
  EXPECT_THAT(message(with("{}", R"({"relative":-1,"of":"value"})")), HasSubstr("is negative"));
  EXPECT_THAT(message(with("{}", R"({"of":"value"})")), HasSubstr("relative is missing"));
  EXPECT_EQ(ReadManifest(folder / "missing.json").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace norm::normctl
