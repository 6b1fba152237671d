#include "proto/credentials/watched_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "tests/unit/client/scratch_folder.h"

namespace norm::credentials {
namespace {

class WatchedFilesTest : public testing::Test {
 protected:
  absl::StatusOr<std::string> Read() {
    ++reads_;
    std::string text =
        client::ScratchFolder::Read(folder_ / "a") + client::ScratchFolder::Read(folder_ / "b");
    if (text.find("bad") != std::string::npos) return absl::InvalidArgumentError(text);
    if (text.find("early") != std::string::npos && early_) return absl::InvalidArgumentError(text);
    if (writes_while_read_ != "") folder_.Write("b", std::exchange(writes_while_read_, ""));
    return text;
  }

  const client::ScratchFolder folder_;
  int reads_ = 0;
  bool early_ = true;
  std::string writes_while_read_;
  WatchedFiles<std::string> files_{{folder_ / "a", folder_ / "b"}, [this] { return Read(); }};
};

TEST_F(WatchedFilesTest, ReadsAgainOnlyWhatHasChanged) {
  folder_.Write("a", "1");
  ASSERT_EQ(files_.Load(), absl::OkStatus());
  EXPECT_EQ(*files_.value(), "1");
  EXPECT_EQ(files_.LookAgain().value(), Look::kSame);
  EXPECT_EQ(reads_, 1);
  folder_.Write("b", "22");  // it was not there
  EXPECT_EQ(files_.LookAgain().value(), Look::kReplaced);
  EXPECT_EQ(*files_.value(), "122");
  EXPECT_EQ(files_.LookAgain().value(), Look::kSame);
  EXPECT_EQ(reads_, 2);
  std::filesystem::remove(folder_ / "a");
  EXPECT_EQ(files_.LookAgain().value(), Look::kReplaced);
  EXPECT_EQ(*files_.value(), "22");
}

TEST_F(WatchedFilesTest, ARefusedChangeIsToldOnceAndChangesNothing) {
  folder_.Write("a", "1");
  ASSERT_EQ(files_.Load(), absl::OkStatus());
  const std::shared_ptr<const std::string> before = files_.value();
  folder_.Write("a", "bad");
  EXPECT_EQ(files_.LookAgain().status().message(), "bad");
  EXPECT_EQ(files_.value(), before);
  EXPECT_EQ(files_.LookAgain().value(), Look::kSame);
  folder_.Write("a", "good");
  EXPECT_EQ(files_.LookAgain().value(), Look::kReplaced);
  EXPECT_EQ(*files_.value(), "good");
}

TEST_F(WatchedFilesTest, WhatWasRefusedIsTakenOnceItsReasonHasPassed) {
  folder_.Write("a", "1");
  ASSERT_EQ(files_.Load(), absl::OkStatus());
  folder_.Write("a", "early");
  EXPECT_EQ(files_.LookAgain().status().message(), "early");
  EXPECT_EQ(files_.LookAgain().value(), Look::kSame);
  EXPECT_EQ(*files_.value(), "1");
  early_ = false;
  EXPECT_EQ(files_.LookAgain().value(), Look::kReplaced);
  EXPECT_EQ(*files_.value(), "early");
  EXPECT_EQ(files_.LookAgain().value(), Look::kSame);
}

TEST_F(WatchedFilesTest, AChangeDuringTheReadIsSeenByTheNextLook) {
  folder_.Write("a", "1");
  folder_.Write("b", "2");
  writes_while_read_ = "three";
  ASSERT_EQ(files_.Load(), absl::OkStatus());
  EXPECT_EQ(*files_.value(), "12");
  EXPECT_EQ(files_.LookAgain().value(), Look::kReplaced);
  EXPECT_EQ(*files_.value(), "1three");
}

TEST_F(WatchedFilesTest, TheFirstReadFailsAsItIs) {
  folder_.Write("a", "bad");
  EXPECT_EQ(files_.Load().message(), "bad");
  EXPECT_EQ(files_.value(), nullptr);
}

}  // namespace
}  // namespace norm::credentials
