#include "tests/conformance/channel_conformance.h"

#include "kernels/weights/memory_channel.h"
#include "tests/weights/channels.h"
#include "tests/weights/fake_device.h"
#include "tests/weights/link_wire.h"

namespace primerl {
namespace {

ChannelUnderTest memory() {
  return {"memory", [](const ChannelSetup& setup) {
            const auto one = make_memory_channel(setup.versions_max);
            return ChannelEnds{one, one};
          }};
}

/// Two ends that find each other as two processes would.
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

/// Ends joined by a simulated link that moves everything at once.
ChannelUnderTest linked(const std::string& name, uint32_t receiver) {
  return {name, [receiver](const ChannelSetup& setup) {
            StreamChannelSetup made;
            made.resource = setup.resource;
            made.versions_max = setup.versions_max;
            made.chunk_bytes = 512;
            struct Wire {
              ConnectionWire wire;
              std::vector<std::shared_ptr<StreamChannel>> ends;
            };
            const auto joined = std::make_shared<Wire>();
            for (int i = 0; i < 2; ++i) joined->ends.push_back(joined->wire.add(made, true));
            joined->wire.carry_all();
            const auto end = [&](uint32_t number) {
              return std::shared_ptr<WeightChannel>(joined, joined->ends[number].get());
            };
            return ChannelEnds{end(0), end(receiver)};
          }};
}

/// Weights on a device: they stay there in memory channels and, between two ends that can open each
/// other's memory, in shm.
ChannelUnderTest of_device(const std::string& kind, bool is_one) {
  return {kind + "_of_device" + (is_one ? "_in_one" : ""), [=](ChannelSetup setup) {
            constexpr uint64_t kBytes = 100'000;
            const auto device = std::make_shared<FakeDevice>(setup.run_folder.filename().string());
            if (kind == "shm") setup.devices = device;
            const auto end = [&]() -> std::shared_ptr<WeightChannel> {
              auto made = kind == "memory" ? make_memory_channel(setup.versions_max)
                                           : open_channel(kind, setup);
              return std::make_shared<ChannelOfDevice>(std::move(made), device, kBytes);
            };
            const auto one = end();
            return ChannelEnds{one, is_one ? one : end()};
          }};
}

INSTANTIATE_TEST_SUITE_P(Every, ChannelConformance,
                         testing::Values(memory(), apart("shm"), together("shm"), apart("files"),
                                         together("files"), linked("stream", 1),
                                         linked("link_in_one", 0), of_device("memory", true),
                                         of_device("shm", false), of_device("shm", true),
                                         of_device("files", false)),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace primerl
