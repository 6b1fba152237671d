#include "client/tensor_file/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "client/tensor_file/safetensors.h"
#include "tests/unit/client/scratch_folder.h"

namespace norm::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kData = NORM_TEST_DATA_DIR;

/// A version 1.0 file with `dict` as its header.
std::string Npy(const std::string& dict, const std::string& data) {
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes.push_back(static_cast<char>(dict.size() & 0xff));
  bytes.push_back(static_cast<char>(dict.size() >> 8));
  return bytes + dict + data;
}

class NpyTest : public ::testing::Test {
 protected:
  absl::Status Error(const std::string& bytes) {
    return ReadNpy(folder_.Write("x.npy", bytes)).status();
  }
  ScratchFolder folder_;
};

TEST_F(NpyTest, ReadsWhatNumpyWroteInEveryForm) {
  const std::vector<double> expected =
      ToDoubles(*ReadSafetensors(kData + "/formats.safetensors", "f32"));
  ASSERT_EQ(expected.size(), 32u);
  for (const char* name : {"/formats_fortran.npy", "/formats_big_endian.npy"}) {
    absl::StatusOr<Tensor> tensor = ReadNpy(kData + name);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_THAT(tensor->shape(), ElementsAre(4, 8));
    EXPECT_EQ(ToDoubles(*tensor), expected) << name;
  }
  absl::StatusOr<Tensor> bf16 = ReadNpy(kData + "/formats_bf16.npy");
  ASSERT_TRUE(bf16.ok()) << bf16.status();
  EXPECT_EQ(bf16->dtype(), DType::kBF16);
  EXPECT_EQ(ToDoubles(*bf16), ToDoubles(*ReadSafetensors(kData + "/formats.safetensors", "bf16")));
}

TEST_F(NpyTest, WritesTheBytesThatNumpyWrites) {
  for (const char* name : {"/digits_nc.npy", "/digits_nchw.npy", "/formats_bf16.npy"}) {
    absl::StatusOr<Tensor> tensor = ReadNpy(kData + name);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    ASSERT_TRUE(WriteNpy(folder_ / "copy.npy", *tensor).ok());
    EXPECT_EQ(ScratchFolder::Read(folder_ / "copy.npy"), ScratchFolder::Read(kData + name)) << name;
  }
}

TEST_F(NpyTest, BringsEveryDTypeBack) {
  const Tensor source = *ReadNpy(kData + "/digits_nc.npy");
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    const Tensor tensor = *Cast(source, dtype);
    ASSERT_TRUE(WriteNpy(folder_ / "x.npy", tensor).ok());
    const Tensor back = *ReadNpy(folder_ / "x.npy");
    EXPECT_EQ(back.dtype(), dtype);
    EXPECT_EQ(back.shape(), tensor.shape());
    EXPECT_EQ(std::memcmp(back.bytes().data(), tensor.bytes().data(), tensor.bytes().size()), 0);
  }
}

TEST_F(NpyTest, TakesEmptyArraysAndOneDimension) {
  absl::StatusOr<Tensor> empty = ReadNpy(folder_.Write(
      "x.npy", Npy("{'descr': '<f4', 'fortran_order': True, 'shape': (0, 64), }\n", "")));
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_THAT(empty->shape(), ElementsAre(0, 64));
  absl::StatusOr<Tensor> line =
      ReadNpy(folder_.Write("x.npy", Npy("{'shape': (1,), 'descr': '<f4', 'fortran_order': False}",
                                         std::string("\0\0\x80?", 4))));
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(ToDoubles(*line)[0], 1.0);
}

TEST_F(NpyTest, RefusesTruncatedAndOverlongFiles) {
  const std::string whole = ScratchFolder::Read(kData + "/formats_fortran.npy");
  for (size_t size = 0; size < whole.size(); ++size) {
    ASSERT_EQ(Error(whole.substr(0, size)).code(), absl::StatusCode::kDataLoss) << size;
  }
  EXPECT_THAT(std::string(Error(whole + "x").message()),
              HasSubstr("129 bytes of data where shape (4, 8) of f32 needs 128"));
}

TEST_F(NpyTest, RefusesHostileHeaders) {
  const std::string huge =
      "{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 4), }";
  EXPECT_THAT(std::string(Error(Npy(huge, "")).message()), HasSubstr("more bytes than 63 bits"));
  const std::string large = "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }";
  EXPECT_EQ(Error(Npy(large, "data")).code(), absl::StatusCode::kDataLoss);
  for (const char* dict :
       {"", "{", "{}", "[]", "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} import os",
        "{'descr': '<f4, 'fortran_order': False, 'shape': (1,)}"}) {
    EXPECT_EQ(Error(Npy(dict, "1234")).code(), absl::StatusCode::kDataLoss) << dict;
  }
  std::string version2("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12);
  EXPECT_THAT(std::string(Error(version2 + "{}").message()),
              HasSubstr("header of 4294967295 bytes"));
  EXPECT_EQ(Error(std::string("\x93NUMPY\x09\x00\x00\x00\x00\x00", 12)).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(Error("PK\x03\x04 a zip file, as .npz is").code(), absl::StatusCode::kDataLoss);
}

TEST_F(NpyTest, RefusesOtherDTypesByName) {
  const absl::Status status =
      Error(Npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }", "12345678"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("dtype '<i8' is not f2, f4, f8 or bf16"));
  EXPECT_EQ(Error(Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", "1234")).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(NpyTest, LeavesNoFileBehindWhenItCannotWrite) {
  const Tensor tensor = *Tensor::Allocate(DType::kF32, {1});
  EXPECT_FALSE(WriteNpy(folder_ / "no/such/folder/x.npy", tensor).ok());
  EXPECT_EQ(ReadNpy(folder_ / "missing.npy").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(ReadNpy("/dev/zero").ok());
}

}  // namespace
}  // namespace norm::client
