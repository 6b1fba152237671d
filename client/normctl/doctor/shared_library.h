// A library that is looked for while the program runs.
#pragma once

#include <dlfcn.h>

#include <string>

namespace norm::normctl {

/// Loads on construction, never unloads: NVIDIA's libraries leave threads behind.
class SharedLibrary {
 public:
  explicit SharedLibrary(const std::string& name) : handle_(dlopen(name.c_str(), RTLD_NOW)) {
    if (handle_ == nullptr) error_ = dlerror();
  }

  bool loaded() const { return handle_ != nullptr; }
  const std::string& error() const { return error_; }

  /// Null where the library has no such function.
  template <typename Function>
  Function* Find(const char* name) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle_, name));
  }

 private:
  void* handle_;
  std::string error_;
};

}  // namespace norm::normctl
