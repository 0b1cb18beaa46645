/// The channels between processes, by the name that a test child gets.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/weights/channel.h"
#include "tests/weights/fake_device.h"

namespace primerl {

inline const std::vector<std::string>& process_channels() {
  static const std::vector<std::string> all = {"shm", "files"};
  return all;
}

/// "device": shm, with the publisher's weights on a device.
inline std::shared_ptr<WeightChannel> open_channel(const std::string& kind, ChannelSetup setup) {
  if (kind == "device") {
    constexpr uint64_t kBytesMax = 2'000'000;
    const auto device = std::make_shared<FakeDevice>(setup.shm_owner);
    setup.devices = device;
    return std::make_shared<ChannelOfDevice>(open_channel("shm", std::move(setup)), device,
                                             kBytesMax);
  }
  auto made =
      kind == "shm" ? make_shm_channel(std::move(setup)) : make_files_channel(std::move(setup));
  CHECK(made.ok(), made.ok() ? "" : made.error().text());
  return std::move(made).value();
}

/// Segments and leftovers of the runs of one folder, separate from all others.
inline ChannelSetup channel_setup(const std::string& folder) {
  ChannelSetup setup;
  setup.run_folder = folder;
  setup.run_id = "run";
  setup.resource = "weights";
  setup.shm_owner = "t";
  for (const char c : folder.substr(folder.rfind('/') + 1))
    if (c != '-') setup.shm_owner += c;
  return setup;
}

}  // namespace primerl
