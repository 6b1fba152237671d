#include "client/tensor_file/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "client/tensor_file/tensor_file.h"
#include "tests/unit/client/scratch_folder.h"

namespace norm::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kData = NORM_TEST_DATA_DIR;

std::string File(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8)
    bytes.push_back(static_cast<char>(header.size() >> shift & 0xff));
  return bytes + header + data;
}

class SafetensorsTest : public ::testing::Test {
 protected:
  absl::Status Error(const std::string& bytes) {
    return ReadSafetensors(folder_.Write("x.safetensors", bytes), "a").status();
  }
  ScratchFolder folder_;
};

TEST_F(SafetensorsTest, ReadsWhatTheLibraryWrote) {
  const std::string path = kData + "/formats.safetensors";
  const std::vector<double> f64 = ToDoubles(*ReadSafetensors(path, "f64"));
  EXPECT_EQ(ToDoubles(*ReadSafetensors(path, "f32")), f64);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const Tensor stored = *ReadSafetensors(path, DTypeName(dtype));
    EXPECT_THAT(stored.shape(), ElementsAre(4, 8));
    const Tensor cast = *Cast(*ReadSafetensors(path, "f32"), dtype);
    EXPECT_EQ(std::memcmp(stored.bytes().data(), cast.bytes().data(), cast.bytes().size()), 0)
        << DTypeName(dtype);
  }
  EXPECT_EQ(ReadSafetensors(path, "i64").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadSafetensors(path, "none").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SafetensorsTest, BringsSeveralTensorsBack) {
  const Tensor x = *ReadSafetensors(kData + "/formats.safetensors", "bf16");
  const Tensor empty = *Tensor::Allocate(DType::kF64, {0, 3});
  ASSERT_TRUE(
      WriteSafetensors(folder_ / "x.safetensors", {{"x", x}, {"empty", empty}, {"again \"x\"", x}})
          .ok());
  EXPECT_EQ(ListSafetensors(folder_ / "x.safetensors")->size(), 3u);
  const Tensor back = *ReadSafetensors(folder_ / "x.safetensors", "again \"x\"");
  EXPECT_EQ(std::memcmp(back.bytes().data(), x.bytes().data(), x.bytes().size()), 0);
  EXPECT_THAT(ReadSafetensors(folder_ / "x.safetensors", "empty")->shape(), ElementsAre(0, 3));
  EXPECT_FALSE(WriteSafetensors(folder_ / "y.safetensors", {{"x", x}, {"x", x}}).ok());
  EXPECT_FALSE(WriteSafetensors(folder_ / "y.safetensors", {{"__metadata__", x}}).ok());
}

TEST_F(SafetensorsTest, RefusesTruncatedFiles) {
  const std::string whole = ScratchFolder::Read(kData + "/formats.safetensors");
  for (size_t size = 0; size < whole.size(); ++size) {
    ASSERT_EQ(Error(whole.substr(0, size)).code(), absl::StatusCode::kDataLoss) << size;
  }
  EXPECT_EQ(Error(whole + "x").code(), absl::StatusCode::kDataLoss);
}

TEST_F(SafetensorsTest, RefusesHostileHeaders) {
  std::string endless(8, '\xff');
  EXPECT_THAT(std::string(Error(endless + "{}").message()),
              HasSubstr("header of 18446744073709551615 bytes"));
  const std::string deep = std::string(100000, '[');
  for (
      const std::string& header : {
          std::string("not json"),
          std::string("[]"),
          std::string("{\"a\":"),
          deep,
          std::string(R"({"a":1})"),
          std::string(R"({"a":{"dtype":"F32","shape":[1]}})"),
          std::string(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})"),
          std::string(R"({"a":{"dtype":32,"shape":[1],"data_offsets":[0,4]}})"),
          std::string(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})"),
          std::string(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})"),
          std::string(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})"),
          std::string(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})"),
          std::string(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})"),
          std::string(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})"),
          std::string(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
          std::string(
              R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})"),
          std::string(
              R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551616]}})"),
          std::string(
              R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"),
          std::string(
              R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"b":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})"),
          std::string(
              R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"b":{"dtype":"F16","shape":[1],"data_offsets":[1,3]}})"),
          std::string(R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[2,4]}})"),
      }) {
    EXPECT_EQ(Error(File(header, "1234")).code(), absl::StatusCode::kDataLoss)
        << header.substr(0, 200);
  }
  EXPECT_EQ(Error(File(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "1234")).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsTest, IsFoundByItsReference) {
  const std::string path = kData + "/formats.safetensors";
  EXPECT_TRUE(ReadTensor(path + ":f32").ok());
  EXPECT_THAT(std::string(ReadTensor(path).status().message()),
              HasSubstr("does not hold exactly one tensor"));
  EXPECT_FALSE(ReadTensor(path + ":").ok());
  EXPECT_FALSE(ReadTensor("x.npz").ok());
  EXPECT_FALSE(ReadTensor("").ok());
}

TEST_F(SafetensorsTest, CollectsOutputsIntoOneFile) {
  const Tensor x = *ReadTensor(kData + "/formats.safetensors:f32");
  TensorOutputs outputs;
  EXPECT_TRUE(outputs.Add(folder_ / "r.safetensors", "y", x).ok());
  EXPECT_TRUE(outputs.Add(folder_ / "r.safetensors:mine", "dx", x).ok());
  EXPECT_TRUE(outputs.Add(folder_ / "r.npy", "z", x).ok());
  EXPECT_FALSE(outputs.Add(folder_ / "r.safetensors:mine", "w", x).ok());
  EXPECT_FALSE(outputs.Add(folder_ / "r.npy", "w", x).ok());
  EXPECT_FALSE(outputs.Add(folder_ / "r.txt", "w", x).ok());
  ASSERT_TRUE(outputs.Write().ok());
  EXPECT_THAT(*ListSafetensors(folder_ / "r.safetensors"), ElementsAre("y", "mine"));
  EXPECT_EQ(ToDoubles(*ReadTensor(folder_ / "r.npy")), ToDoubles(x));
}

class SafetensorsUpdateTest : public SafetensorsTest {
 protected:
  static Tensor Ones() {
    Tensor tensor = *Tensor::Allocate(DType::kF32, {2});
    const std::vector<float> ones = {1, 1};
    std::memcpy(tensor.mutable_bytes().data(), ones.data(), 8);
    return tensor;
  }
  static absl::Status Put(const std::string& reference) {
    TensorOutputs outputs;
    absl::Status status = outputs.Add(reference, "y", Ones());
    return status.ok() ? outputs.Write() : status;
  }
  /// A header padded to whole words, as it is written.
  static std::string Padded(std::string header) {
    return header.append((8 - header.size() % 8) % 8, ' ');
  }
};

TEST_F(SafetensorsUpdateTest, KeepsTheOtherTensorsAndTheMetadata) {
  const std::string path = folder_.Write(
      "f.safetensors",
      File(R"({"__metadata__":{"from":"pt"},"y":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
           R"("k":{"dtype":"I64","shape":[1],"data_offsets":[4,12]}})",
           "1234ABCDEFGH"));
  ASSERT_TRUE(Put(path + ":y").ok());
  const std::string ones("\0\0\x80\x3f\0\0\x80\x3f", 8);
  EXPECT_EQ(
      ScratchFolder::Read(path),
      File(
          Padded(
              R"({"__metadata__":{"from":"pt"},"k":{"data_offsets":[0,8],"dtype":"I64","shape":[1]},)"
              R"("y":{"data_offsets":[8,16],"dtype":"F32","shape":[2]}})"),
          "ABCDEFGH" + ones));
  ASSERT_TRUE(Put(path + ":z").ok());
  EXPECT_THAT(*ListSafetensors(path), ElementsAre("k", "y", "z"));
}

TEST_F(SafetensorsUpdateTest, CopiesWhatIsLargerThanItsBuffer) {
  std::string data(5 << 20, 'x');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 2654435761u >> 24);
  const std::string path = folder_.Write(
      "f.safetensors",
      File(R"({"k":{"dtype":"U8","shape":[5242880],"data_offsets":[0,5242880]}})", data));
  ASSERT_TRUE(Put(path + ":y").ok());
  const std::string written = ScratchFolder::Read(path);
  EXPECT_EQ(written.substr(written.size() - data.size()), data);  // wider elements come first
  EXPECT_TRUE(ReadSafetensors(path, "y").ok());
}

TEST_F(SafetensorsUpdateTest, NeverDestroysAFileThatIsNone) {
  for (const std::string& contents : {std::string("notes"), std::string(), std::string(64, 'x')}) {
    const std::string path = folder_.Write("f.safetensors", contents);
    const absl::Status status = Put(path + ":y");
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    EXPECT_EQ(ScratchFolder::Read(path), contents);
  }
}

TEST_F(SafetensorsUpdateTest, TakesAllTensorsOfOneCommand) {
  TensorOutputs outputs;
  ASSERT_TRUE(outputs.Add(folder_ / "f.safetensors:a", "y", Ones()).ok());
  ASSERT_TRUE(outputs.Add(folder_ / "./f.safetensors:b", "y", Ones()).ok());
  EXPECT_FALSE(outputs.Add(folder_ / "none/../f.safetensors:a", "y", Ones()).ok());
  ASSERT_TRUE(outputs.Write().ok());
  EXPECT_THAT(*ListSafetensors(folder_ / "f.safetensors"), ElementsAre("a", "b"));
}

}  // namespace
}  // namespace norm::client
