// Runs the conformance suite of executors over several processes, one per group.
#include "tests/conformance/executor_conformance.h"
#include "tests/exec/split_executor.h"

namespace primerl {
namespace {

struct SplitFactory {
  /// Blobs are copied between processes.
  static constexpr bool kSharesMemory = false;
  static std::unique_ptr<Executor> make(std::shared_ptr<const Plan> plan,
                                        ProcessServices& process_services,
                                        ResourceFactory factory) {
    return std::make_unique<SplitExecutor>(std::move(plan), conformance_catalog().messages,
                                           process_services, std::move(factory));
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Split, ExecutorConformance, SplitFactory);

}  // namespace
}  // namespace primerl
