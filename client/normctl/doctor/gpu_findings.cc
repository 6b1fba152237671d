#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/normctl/doctor/architectures.h"
#include "client/normctl/doctor/machine_findings.h"

namespace norm::normctl {
namespace {

// Of CUresult.
constexpr int kOutOfMemory = 2;
constexpr int kStubLibrary = 34;
constexpr int kDeviceUnavailable = 46;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr int kSystemNotReady = 802;
constexpr int kDriverMismatch = 803;
constexpr int kCompatNotSupported = 804;

// Shares of what the hardware could, below which something is wrong: an H200 copies at 0.87 of both.
constexpr double kSlowPcie = 0.6;
constexpr double kSlowMemory = 0.6;

/// 13000 as "13.0".
std::string CudaVersion(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

std::string Variable(const MachineFacts& facts, const std::string& name) {
  const auto found = facts.environment.find(name);
  return found == facts.environment.end() ? "" : found->second;
}

bool IsSet(const MachineFacts& facts, const std::string& name) {
  return facts.environment.contains(name);
}

/// /dev/nvidia0 and its like.
int GpuNodes(const MachineFacts& facts) {
  return static_cast<int>(std::count_if(
      facts.device_nodes.begin(), facts.device_nodes.end(), [](absl::string_view node) {
        return absl::ConsumePrefix(&node, "/dev/nvidia") && !node.empty() &&
               node.find_first_not_of("0123456789") == absl::string_view::npos;
      }));
}

bool HasKernelDriver(const MachineFacts& facts) {
  return !facts.kernel_driver_version.empty() || GpuNodes(facts) > 0;
}

/// What the lack of a usable GPU is to who wanted one.
Severity Missing(WantedDevice wanted) {
  return wanted == WantedDevice::kCuda ? Severity::kError : Severity::kWarning;
}

Finding JudgeBuild(const MachineFacts& facts, WantedDevice wanted) {
  const BuildFacts& build = facts.build;
  if (build.cuda_version == 0) {
    return {wanted == WantedDevice::kCuda ? Severity::kError : Severity::kNote, "build",
            absl::StrCat("normd ", build.version, ", built without CUDA: it computes on the CPU"),
            "for GPUs build where nvcc is found (deploy/build.sh says which it is)"};
  }
  return {
      Severity::kOk, "build",
      absl::StrCat("normd ", build.version, ", built with CUDA ", CudaVersion(build.cuda_version),
                   " for ", absl::StrJoin(build.architectures, " ")),
      ""};
}

/// Without libcuda.so.1.
Finding JudgeMissingLibrary(const MachineFacts& facts, WantedDevice wanted) {
  if (HasKernelDriver(facts)) {
    return {
        Severity::kError, "driver library",
        absl::StrCat("NVIDIA's kernel driver ", facts.kernel_driver_version,
                     " is here, libcuda.so.1 is not: ", facts.driver.library_error),
        absl::StrCat(
            "in a container: NVIDIA_DRIVER_CAPABILITIES must name compute (now '",
            Variable(facts, "NVIDIA_DRIVER_CAPABILITIES"),
            "') and the NVIDIA container toolkit start it (docker run --gpus all); else install "
            "the driver's libraries of the same version")};
  }
  if (IsSet(facts, "NVIDIA_VISIBLE_DEVICES")) {
    return {
        Missing(wanted), "driver library",
        absl::StrCat("no NVIDIA driver is here, though the container's NVIDIA_VISIBLE_DEVICES is '",
                     Variable(facts, "NVIDIA_VISIBLE_DEVICES"), "'"),
        "start the container with the NVIDIA runtime (docker run --gpus all); without it normd "
        "serves on the CPU"};
  }
  return {Missing(wanted), "driver library",
          absl::StrCat("no NVIDIA driver: ", facts.driver.library_error),
          "none where normd is to serve on the CPU (--device=cpu says so); for GPUs install the "
          "driver"};
}

std::string HiddenBy(const MachineFacts& facts) {
  if (IsSet(facts, "CUDA_VISIBLE_DEVICES"))
    return absl::StrCat("CUDA_VISIBLE_DEVICES='", Variable(facts, "CUDA_VISIBLE_DEVICES"),
                        "' hides GPUs");
  return "";
}

Finding JudgeNoDevice(const MachineFacts& facts, WantedDevice wanted) {
  const std::string hidden = HiddenBy(facts);
  if (!hidden.empty() && (GpuNodes(facts) > 0 || facts.management.gpus > 0)) {
    return {Severity::kError, "devices",
            absl::StrCat(hidden, ": all ", std::max(GpuNodes(facts), facts.management.gpus),
                         " of this machine"),
            "unset it, or name ordinals from 0 or UUIDs of `nvidia-smi -L`"};
  }
  const std::string visible = Variable(facts, "NVIDIA_VISIBLE_DEVICES");
  if (visible == "void" || visible == "none" || GpuNodes(facts) == 0) {
    return {
        Missing(wanted), "devices",
        absl::StrCat("the driver is here, no GPU is: no /dev/nvidia0, NVIDIA_VISIBLE_DEVICES='",
                     visible, "'"),
        "give the container GPUs: docker run --gpus all, or nvidia.com/gpu in Kubernetes' limits"};
  }
  return {Severity::kError, "devices",
          facts.driver.error.has_value() ? facts.driver.error->what : "the driver has no GPU",
          "nvidia-smi and dmesg (Xid) say why the GPU is not usable; reset or reboot"};
}

Finding JudgeDriverError(const MachineFacts& facts, WantedDevice wanted) {
  const DriverError& error = *facts.driver.error;
  std::string cure;
  switch (error.code) {
    case kNoDevice:
    case kInvalidDevice:
      return JudgeNoDevice(facts, wanted);
    case kStubLibrary:
      cure = absl::StrCat(
          "the libcuda.so.1 that is found is the toolkit's stub for linking: take its stubs folder "
          "out of "
          "LD_LIBRARY_PATH (now '",
          Variable(facts, "LD_LIBRARY_PATH"), "')");
      break;
    case kDriverMismatch:
      cure = absl::StrCat(
          "libcuda.so.1 and the kernel driver (", facts.kernel_driver_version,
          ") are of different versions: reboot after the update, or restart the container");
      break;
    case kCompatNotSupported:
      cure =
          "forward compatibility libraries (cuda-compat) do not work on this GPU: remove them, "
          "update the driver";
      break;
    case kSystemNotReady:
      cure =
          "start NVIDIA's fabric manager (systemctl start nvidia-fabricmanager): NVSwitch machines "
          "need it";
      break;
    case kDeviceUnavailable:
      cure = "another process holds the GPU in exclusive mode: nvidia-smi -c DEFAULT, or end it";
      break;
    default:
      cure = std::any_of(facts.device_nodes.begin(), facts.device_nodes.end(),
                         [](const std::string& node) { return node == "/dev/nvidia-uvm"; })
                 ? "nvidia-smi and dmesg (Xid) say more; check the permissions of /dev/nvidia*"
                 : "/dev/nvidia-uvm is not here: load the module (nvidia-modprobe -u -c=0), or "
                   "give it to the container";
      break;
  }
  return {Severity::kError, "driver", error.what, cure};
}

void JudgeVersions(const MachineFacts& facts, std::vector<Finding>* findings) {
  const int driver = facts.driver.cuda_version;
  const int built = facts.build.cuda_version;
  const std::string seen =
      absl::StrCat("driver ",
                   facts.management.driver_version.empty() ? "of unknown version"
                                                           : facts.management.driver_version,
                   " supports CUDA up to ", CudaVersion(driver));
  // Without CUDA built is 0: no driver is too old.
  if (driver / 1000 < built / 1000) {
    findings->push_back({Severity::kError, "driver",
                         absl::StrCat(seen, ", this build is of CUDA ", CudaVersion(built)),
                         absl::StrCat("update the driver to one of CUDA ", built / 1000,
                                      " or later, or build with an older toolkit")});
  } else if (driver < built) {
    findings->push_back({Severity::kNote, "driver",
                         absl::StrCat(seen, ", this build is of CUDA ", CudaVersion(built),
                                      ": machine code runs, PTX for later GPUs does not"),
                         "update the driver where a GPU has no machine code in this build"});
  } else {
    findings->push_back({Severity::kOk, "driver", seen, ""});
  }
  if (built == 0) return;
  if (facts.runtime_version == 0) {
    findings->push_back(
        {Severity::kNote, "runtime",
         absl::StrCat("no libcudart.so.", built / 1000,
                      " is found; normd runs if the runtime is linked into it"),
         "where normd does not start for it: put the library beside normd's, in lib/"});
  } else if (facts.runtime_version < built) {
    findings->push_back(
        {Severity::kWarning, "runtime",
         absl::StrCat("the libcudart that is found is ", CudaVersion(facts.runtime_version),
                      ", older than the ", CudaVersion(built), " of this build"),
         "take the older one out of LD_LIBRARY_PATH"});
  } else {
    findings->push_back({Severity::kOk, "runtime",
                         absl::StrCat("libcudart ", CudaVersion(facts.runtime_version)), ""});
  }
}

/// Ordinals in CUDA_VISIBLE_DEVICES that no GPU has: CUDA ignores them, and all that follow.
void JudgeVisibility(const MachineFacts& facts, std::vector<Finding>* findings) {
  const int all = std::max(facts.management.gpus, GpuNodes(facts));
  const std::string list = Variable(facts, "CUDA_VISIBLE_DEVICES");
  for (absl::string_view entry : absl::StrSplit(list, ',', absl::SkipWhitespace())) {
    int ordinal = 0;
    if (absl::SimpleAtoi(entry, &ordinal) && all > 0 && (ordinal < 0 || ordinal >= all)) {
      findings->push_back(
          {Severity::kError, "devices",
           absl::StrCat("CUDA_VISIBLE_DEVICES='", list, "': ordinal ", ordinal, " is not in [0, ",
                        all - 1, "]; CUDA ignores it and all after it"),
           "name ordinals from 0 or UUIDs of `nvidia-smi -L`"});
      return;
    }
  }
  const auto visible = static_cast<int>(facts.driver.gpus.size());
  if (visible < all) {
    findings->push_back(
        {Severity::kNote, "devices",
         absl::StrCat(visible, " of ", all, " GPUs are visible: CUDA_VISIBLE_DEVICES='", list, "'"),
         "unset it where normd is to use all"});
  }
}

void JudgeImage(const MachineFacts& facts, const GpuFacts& gpu, std::vector<Finding>* findings) {
  const std::string check = absl::StrCat("cuda:", gpu.ordinal);
  const std::string seen = absl::StrFormat(
      "%s, sm_%d, %d multiprocessors, %.1f GiB, %s", gpu.name, gpu.compute_capability,
      gpu.multiprocessors, static_cast<double>(gpu.memory_bytes) / (1 << 30), gpu.pci_bus_id);
  if (facts.build.cuda_version == 0 ||
      HasImage(facts.build.architectures, gpu.compute_capability)) {
    findings->push_back({Severity::kOk, check, seen, ""});
    return;
  }
  findings->push_back({Severity::kError, check,
                       absl::StrCat(seen, ": no kernel image: this build is for ",
                                    absl::StrJoin(facts.build.architectures, " ")),
                       absl::StrCat("build for it: NORM_CUDA_ARCHITECTURES=",
                                    gpu.compute_capability, "-real deploy/build.sh")});
}

std::string Throttling(const GpuFacts& gpu) {
  return gpu.slowed_by.empty()
             ? ""
             : absl::StrCat("; clocks are lowered: ", absl::StrJoin(gpu.slowed_by, ", "));
}

/// Bytes/s of a lane in one direction, after the line's coding.
double LaneBandwidth(int generation) {
  constexpr std::array<double, 7> kLane = {0, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};
  return generation > 0 && generation < static_cast<int>(kLane.size())
             ? kLane[static_cast<size_t>(generation)]
             : 0;
}

void JudgeCopies(const GpuFacts& gpu, std::vector<Finding>* findings) {
  const std::string pcie = absl::StrCat("cuda:", gpu.ordinal, " pcie");
  const std::string memory = absl::StrCat("cuda:", gpu.ordinal, " memory");
  if (gpu.copy_error.has_value()) {
    findings->push_back(
        {Severity::kError, memory, absl::StrCat("a copy failed: ", gpu.copy_error->what),
         gpu.copy_error->code == kOutOfMemory
             ? "another process holds the GPU's memory: nvidia-smi names it"
             : "the GPU does not work for a plain copy either: dmesg (Xid), then reset or reboot; "
               "where only normd "
               "meets an illegal address, run it under compute-sanitizer and report what it says"});
    return;
  }
  if (!gpu.copies.has_value()) return;
  const CopyBandwidth& copies = *gpu.copies;
  const double slower = std::min(copies.to_device, copies.from_device);
  std::string seen = absl::StrFormat("%.1f GB/s to the GPU, %.1f back", copies.to_device * 1e-9,
                                     copies.from_device * 1e-9);
  if (!gpu.link.has_value()) {
    findings->push_back(
        {Severity::kOk, pcie, absl::StrCat(seen, "; what the link could is not known"), ""});
  } else {
    const double expected = LaneBandwidth(gpu.link->generation) * gpu.link->width;
    absl::StrAppendFormat(&seen, ", of %.0f GB/s of generation %d x%d", expected * 1e-9,
                          gpu.link->generation, gpu.link->width);
    if (gpu.link->width < gpu.link->max_width) {
      findings->push_back({Severity::kWarning, pcie,
                           absl::StrCat(seen, "; the GPU has ", gpu.link->max_width, " lanes"),
                           "seat the card anew, or move it to a slot with all lanes"});
    } else if (slower < kSlowPcie * expected) {
      findings->push_back(
          {Severity::kWarning, pcie, seen,
           "another process copies, or the memory is of another socket: start normd with numactl "
           "--cpunodebind of the GPU's node (nvidia-smi topo -m)"});
    } else {
      findings->push_back({Severity::kOk, pcie, seen, ""});
    }
  }
  seen = absl::StrFormat("a copy moves %.0f GB/s", copies.on_device * 1e-9);
  if (gpu.memory_bandwidth > 0)
    absl::StrAppendFormat(&seen, " of %.0f", gpu.memory_bandwidth * 1e-9);
  absl::StrAppend(&seen, Throttling(gpu));
  const bool slow = copies.on_device < kSlowMemory * gpu.memory_bandwidth;
  findings->push_back(
      {slow || !gpu.slowed_by.empty() ? Severity::kWarning : Severity::kOk, memory, seen,
       slow || !gpu.slowed_by.empty() ? "kernels are slow with it: another process uses the GPU "
                                        "(nvidia-smi), or heat or power lower its "
                                        "clocks (nvidia-smi -q -d PERFORMANCE)"
                                      : ""});
}

}  // namespace

std::vector<Finding> JudgeGpus(const MachineFacts& facts, WantedDevice wanted) {
  std::vector<Finding> findings = {JudgeBuild(facts, wanted)};
  if (wanted == WantedDevice::kCpu) return findings;
  if (!facts.driver.library_error.empty()) {
    findings.push_back(JudgeMissingLibrary(facts, wanted));
    return findings;
  }
  if (facts.driver.error.has_value()) {
    // An old driver does not know some errors' causes: its version comes first.
    if (facts.driver.cuda_version > 0) JudgeVersions(facts, &findings);
    findings.push_back(JudgeDriverError(facts, wanted));
    return findings;
  }
  JudgeVersions(facts, &findings);
  if (facts.driver.gpus.empty()) findings.push_back(JudgeNoDevice(facts, wanted));
  JudgeVisibility(facts, &findings);
  for (const GpuFacts& gpu : facts.driver.gpus) {
    JudgeImage(facts, gpu, &findings);
    JudgeCopies(gpu, &findings);
    if (gpu.uncorrected_memory_errors > 0) {
      findings.push_back({Severity::kError, absl::StrCat("cuda:", gpu.ordinal, " memory"),
                          absl::StrCat(gpu.uncorrected_memory_errors,
                                       " uncorrected memory errors since the last reset"),
                          "results may be NaN or wrong, and kernels fail: drain normd, reset the "
                          "GPU (nvidia-smi -r), replace "
                          "it where they come back"});
    }
  }
  return findings;
}

}  // namespace norm::normctl
