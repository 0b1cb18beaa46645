// Runs the conformance suite with both executors.
#include "runtime/exec/caf_executor.h"
#include "runtime/exec/virtual_executor.h"
#include "tests/conformance/executor_conformance.h"

namespace primerl {
namespace {

struct CafFactory {
  static std::unique_ptr<Executor> make(std::shared_ptr<const Plan> plan,
                                        ProcessServices& process_services,
                                        ResourceFactory factory) {
    CafExecutorSetup setup;
    setup.plan = std::move(plan);
    setup.process_services = &process_services;
    setup.factory = std::move(factory);
    return std::make_unique<CafExecutor>(std::move(setup));
  }
};

struct VirtualFactory {
  static std::unique_ptr<Executor> make(std::shared_ptr<const Plan> plan,
                                        ProcessServices& process_services,
                                        ResourceFactory factory) {
    return std::make_unique<VirtualExecutor>(std::move(plan), std::move(factory), process_services,
                                             VirtualOptions{});
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Caf, ExecutorConformance, CafFactory);
INSTANTIATE_TYPED_TEST_SUITE_P(Virtual, ExecutorConformance, VirtualFactory);

}  // namespace
}  // namespace primerl
