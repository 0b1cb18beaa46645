#define PRIMERL_OPS_TARGET baseline
#include <atomic>

#include "kernels/ops/cpu_table.h"

#if defined(PRIMERL_OPS_AVX2)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace primerl {

#if defined(PRIMERL_OPS_AVX2)
extern const CpuOps kAvx2Ops;
extern const CpuOps kAvx512Ops;
void amx_linear_bf16(const LinearRowsArgs& args);
#endif

namespace {

constexpr CpuOps kBaselineOps = baseline::table("baseline");

#if defined(PRIMERL_OPS_AVX2)

/// Whether processor and kernel let this process use AMX with bf16. A process asks once for the
/// memory of its tiles; all its threads may use them then.
bool may_use_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl of Linux
  if (!__builtin_cpu_supports("amx-tile") || !__builtin_cpu_supports("amx-bf16")) return false;
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512bf16")) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#endif

/// The tables of this machine, from the baseline to the best one.
struct Tables {
  Tables() {
#if defined(PRIMERL_OPS_AVX2)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return;
    all[count++] = &kAvx2Ops;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl")) return;
    all[count++] = &kAvx512Ops;
    if (!may_use_amx()) return;
    amx = kAvx512Ops;
    amx.name = "amx";
    amx.linear_bf16 = amx_linear_bf16;
    all[count++] = &amx;
#endif
  }

  CpuOps amx = kBaselineOps;
  const CpuOps* all[4] = {&kBaselineOps};
  size_t count = 1;
};

const Tables& tables() {
  static const Tables found;
  return found;
}

std::atomic<const CpuOps*>& table_in_use() {
  static std::atomic<const CpuOps*> in_use = tables().all[tables().count - 1];
  return in_use;
}

}  // namespace

void* thread_scratch() {
  alignas(64) static thread_local unsigned char scratch[kThreadScratchBytes];
  return scratch;
}

const CpuOps& baseline_cpu_ops() { return kBaselineOps; }

std::span<const CpuOps* const> all_cpu_ops() { return {tables().all, tables().count}; }

const CpuOps& cpu_ops() { return *table_in_use().load(std::memory_order_acquire); }

const CpuOps& replace_cpu_ops(const CpuOps& ops) { return *table_in_use().exchange(&ops); }

}  // namespace primerl
