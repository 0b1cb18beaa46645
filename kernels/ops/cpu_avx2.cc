// Compiled with -mavx2 -mfma where the target is x86-64; see CMakeLists.txt.
#define PRIMERL_OPS_TARGET avx2
#include "kernels/ops/cpu_table.h"

namespace primerl {

extern const CpuOps kAvx2Ops;
const CpuOps kAvx2Ops = avx2::table("avx2");

}  // namespace primerl
