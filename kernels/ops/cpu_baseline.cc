#define PRIMERL_OPS_TARGET baseline
#include "kernels/ops/cpu_table.h"

namespace primerl {

#if defined(PRIMERL_OPS_AVX2)
extern const CpuOps kAvx2Ops;
extern const CpuOps kAvx512Ops;
#endif

namespace {

constexpr CpuOps kBaselineOps = baseline::table("baseline");

}  // namespace

const CpuOps& baseline_cpu_ops() { return kBaselineOps; }

const CpuOps& cpu_ops() {
#if defined(PRIMERL_OPS_AVX2)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  static const bool has_avx512 =
      has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl");
  if (has_avx512) return kAvx512Ops;
  if (has_avx2) return kAvx2Ops;
#endif
  return kBaselineOps;
}

}  // namespace primerl
