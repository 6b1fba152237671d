#include "bench/installation.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace norm::bench {

Result<std::string> BinaryPath() {
  std::error_code error;
  const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Status(StatusCode::kUnsupported, "/proc/self/exe: " + error.message());
  return binary.string();
}

Result<std::string> InstalledFile(const std::string& name) {
  const Result<std::string> binary = BinaryPath();
  NORM_RETURN_IF_ERROR(binary.status());
  const std::filesystem::path folder = std::filesystem::path(binary.value()).parent_path();
  std::error_code error;
  for (const std::filesystem::path& base : {folder, folder.parent_path()}) {
    const std::filesystem::path file = base / "share" / "normbench" / name;
    if (std::filesystem::exists(file, error)) return file.string();
  }
  return Status(StatusCode::kInvalidArgument, name + " is neither in " +
                                                  (folder / "share/normbench").string() +
                                                  " nor in share/normbench one folder above");
}

Status ExecScript(const std::string& script, const std::vector<std::string>& arguments) {
  const Result<std::string> path = InstalledFile(script);
  NORM_RETURN_IF_ERROR(path.status());
  std::vector<std::string> words = {"python3", path.value()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(nullptr);
  execvp("python3", argv.data());
  return Status(StatusCode::kUnsupported,
                std::string("python3 cannot be started (") + std::strerror(errno) + ")");
}

}  // namespace norm::bench
