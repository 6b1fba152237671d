#include "client/tensor_file/regular_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

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
