#define PRIMERL_OPS_TARGET baseline
#include "kernels/ops/attention_kernels.h"

namespace primerl {

#if defined(PRIMERL_OPS_AVX2)
extern const CpuOps kAvx2Ops;
#endif

namespace {

constexpr CpuOps kBaselineOps = baseline::table("baseline");

}  // namespace

const CpuOps& baseline_cpu_ops() { return kBaselineOps; }

const CpuOps& cpu_ops() {
#if defined(PRIMERL_OPS_AVX2)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2) return kAvx2Ops;
#endif
  return kBaselineOps;
}

}  // namespace primerl
