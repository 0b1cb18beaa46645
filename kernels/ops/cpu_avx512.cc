// Compiled with -mavx512f -mavx512vl -mfma where the target is x86-64; see CMakeLists.txt.
//
// Only linear_rows uses vectors of 16. Everything else adds in the order of eight lanes, as on
// other targets.
#define PRIMERL_OPS_TARGET avx512
#define PRIMERL_OPS_AVX512
#include "kernels/ops/cpu_table.h"

namespace primerl {

extern const CpuOps kAvx512Ops;
const CpuOps kAvx512Ops = avx512::table("avx512");

}  // namespace primerl
