#include "tests/conformance/channel_conformance.h"

#include "kernels/weights/memory_channel.h"
#include "tests/weights/channels.h"

namespace primerl {
namespace {

ChannelUnderTest memory() {
  return {"memory", [](const ChannelSetup& setup) {
            const auto one = make_memory_channel(setup.versions_max);
            return ChannelEnds{one, one};
          }};
}

/// Two ends that meet as two processes would.
ChannelUnderTest apart(const std::string& kind) {
  return {kind, [kind](const ChannelSetup& setup) {
            return ChannelEnds{open_channel(kind, setup), open_channel(kind, setup)};
          }};
}

ChannelUnderTest together(const std::string& kind) {
  return {kind + "_in_one", [kind](const ChannelSetup& setup) {
            const auto one = open_channel(kind, setup);
            return ChannelEnds{one, one};
          }};
}

INSTANTIATE_TEST_SUITE_P(Every, ChannelConformance,
                         testing::Values(memory(), apart("shm"), together("shm"), apart("files"),
                                         together("files")),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace primerl
