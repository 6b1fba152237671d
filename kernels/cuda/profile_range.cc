#include "norm/cuda/profile_range.h"

#include <nvtx3/nvToolsExt.h>

namespace norm::cuda {

ProfileRange::ProfileRange(const char* name) { nvtxRangePushA(name); }

ProfileRange::~ProfileRange() { nvtxRangePop(); }

}  // namespace norm::cuda
