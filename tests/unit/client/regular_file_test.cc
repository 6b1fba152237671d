#include "client/tensor_file/regular_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "client/tensor_file/file_tensor.h"
#include "tests/unit/client/scratch_folder.h"

namespace norm::client {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

absl::Status Write(const std::string& path, const std::string& text) {
  return WriteFile(
      path, {absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size())});
}

size_t CountFiles(const std::string& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(RegularFileTest, RefusesPipesAndFoldersWithoutWaiting) {
  const ScratchFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const std::string& path : {folder / "pipe", folder / ".", std::string("/dev/null")}) {
    const absl::Status status = RegularFile::Open(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), path + " is not a regular file");
  }
}

TEST(RegularFileTest, MapsFromAnyOffset) {
  const ScratchFolder folder;
  std::string text(10000, '.');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i % 23);
  const std::string path = folder.Write("x", text);
  std::shared_ptr<std::byte[]> memory;
  {
    const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
    ASSERT_TRUE(file.ok());
    const auto mapped = file->Map(5001, 3000);
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    memory = *mapped;
  }
  // Without the file, and whatever becomes of its name.
  fs::remove(path);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(memory.get()), 3000),
            text.substr(5001, 3000));
}

TEST(RegularFileTest, WritesToAMapStayInMemory) {
  const ScratchFolder folder;
  const std::string path = folder.Write("x", "original");
  const absl::StatusOr<RegularFile> file = RegularFile::Open(path);
  ASSERT_TRUE(file.ok());
  const auto mapped = file->Map(0, 8);
  ASSERT_TRUE(mapped.ok());
  (*mapped)[0] = std::byte{'X'};
  EXPECT_EQ(ScratchFolder::Read(path), "original");
}

TEST(TensorFromFileTest, LargeTensorsHaveTheBytesOfTheFile) {
  const ScratchFolder folder;
  std::string bytes((size_t{17} << 20) + 3, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
  const absl::StatusOr<RegularFile> file = RegularFile::Open(folder.Write("x", bytes));
  ASSERT_TRUE(file.ok());
  const auto elements = static_cast<int64_t>((size_t{17} << 20) / 2);
  // Mapped; read, since an element would lie across its alignment; read, being small.
  for (const auto& [offset, count] :
       {std::pair<int64_t, int64_t>{2, elements - 1}, std::pair<int64_t, int64_t>{3, elements},
        std::pair<int64_t, int64_t>{2, 100}}) {
    const absl::StatusOr<Tensor> tensor = TensorFromFile(*file, offset, DType::kBF16, {count});
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_TRUE(std::string(reinterpret_cast<const char*>(tensor->bytes().data()),
                            tensor->bytes().size()) ==
                bytes.substr(static_cast<size_t>(offset), static_cast<size_t>(2 * count)));
  }
  const absl::Status beyond = TensorFromFile(*file, 4, DType::kBF16, {elements}).status();
  EXPECT_EQ(beyond.code(), absl::StatusCode::kDataLoss);
}

TEST(WriteFileTest, KeepsTheModeOfAFile) {
  const ScratchFolder folder;
  const std::string path = folder.Write("x", "old");
  for (const auto mode : {fs::perms{0600}, fs::perms{0664}, fs::perms{0755}}) {
    fs::permissions(path, mode);
    ASSERT_TRUE(Write(path, "new").ok());
    EXPECT_EQ(fs::status(path).permissions(), mode);
    EXPECT_EQ(ScratchFolder::Read(path), "new");
  }
  EXPECT_EQ(CountFiles(folder / ""), 1u);
}

TEST(WriteFileTest, WritesThroughLinks) {
  const ScratchFolder folder;
  fs::create_directory(folder / "sub");
  fs::create_symlink("sub/x", folder / "link");
  fs::create_symlink("link", folder / "link2");
  for (const char* text : {"the target is new", "the target is there"}) {
    ASSERT_TRUE(Write(folder / "link2", text).ok());
    EXPECT_TRUE(fs::is_symlink(folder / "link"));
    EXPECT_TRUE(fs::is_symlink(folder / "link2"));
    EXPECT_EQ(ScratchFolder::Read(folder / "sub/x"), text);
    EXPECT_EQ(CountFiles(folder / "sub"), 1u);
  }
}

TEST(WriteFileTest, RefusesALoopOfLinks) {
  const ScratchFolder folder;
  fs::create_symlink("b", folder / "a");
  fs::create_symlink("a", folder / "b");
  const absl::Status status = Write(folder / "a", "text");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder / "a"));
  EXPECT_TRUE(fs::is_symlink(folder / "a"));
}

}  // namespace
}  // namespace norm::client
