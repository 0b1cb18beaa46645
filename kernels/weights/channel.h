/// Weight channels between processes: how their ends find each other, and the factory of each kind.
///
///   backend   reaches              holds versions in
///   memory    one process          pointers (memory_channel.h)
///   shm       processes of a host  shared memory, read-only for receivers, or the memory of a
///                                  device, where all ends have one
///   files     a shared disk        safetensors folders below run_folder/weights/<resource>/
///   stream    joined processes     memory of each process (stream_channel.h)
///
/// Publisher and receivers call the same factory, each in its own process; the first publish()
/// makes a process the publisher. There is only one publisher: a second one is refused while the
/// first is alive, and replaces it after its death. Receivers may start before it, later, or again.
/// No end blocks: publish() does not wait for receivers, and fetch() does not wait for a publisher.
///
/// A version becomes visible in one step after all its bytes are written. fetch() verifies the
/// CRC-32C of every tensor before it returns any (except bytes that stay on a device). A version is
/// an immutable snapshot. It is readable until `versions_max` newer ones of its key exist, or until
/// the last receiver releases it. All channels are thread-safe.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/weights/device_memory.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

/// The same in every process of a run, except for `log`.
struct ChannelSetup {
  std::filesystem::path run_folder;    // exists; its path is part of the names of shared objects
  std::string run_id;                  // keeps ends apart when another run reuses the folder
  std::string resource;                // the channel's name in the graph
  std::filesystem::path model_folder;  // files: everything but the weights is copied from here; ""
                                       // = nothing
  size_t versions_max = 2;             // number of newest versions kept per key, at least 1
  uint64_t bytes_max = uint64_t{1} << 40;  // largest version
  std::string shm_owner;                   // in segment names, without '-'; "" = this user's id
  /// shm: the memory of this process's device, if the devices of all ends can reach each other. A
  /// version published from a device then stays there, and only its location is sent. Null: all
  /// versions are sent as bytes. They also are from the moment when device memory cannot be shared
  /// or a receiver cannot open it; `log` gets one message about that.
  std::shared_ptr<DeviceMemory> devices{};
  /// For tests: called between the steps of a publish, and of a fetch from shared memory, with the
  /// name of the next step. A test may end the process there, or delay it. May be null.
  std::function<void(std::string_view step)> probe;
  /// Gets a message when leftovers of a crashed run were removed, and when weights cannot stay on
  /// their device. May be null.
  std::function<void(std::string_view)> log;
};

/// Channel over shared memory. The last end to close removes the segments. If all ends were killed,
/// remove_shm_leftovers() of the next start removes them.
Result<std::shared_ptr<WeightChannel>> make_shm_channel(ChannelSetup setup);

/// Channel over files. The newest versions stay in the run folder after the end. A version is
/// complete when it has `version.json`, which is written last.
Result<std::shared_ptr<WeightChannel>> make_files_channel(ChannelSetup setup);

/// Segments of a channel without a live end.
struct ShmLeftover {
  std::string key;         // of the channel
  std::string run_folder;  // of its run; empty if that can no longer be read
  size_t num_segments = 0;
  uint64_t num_bytes = 0;
  /// "removed 3 segments of shared memory (300 MB) that a crashed run left: /runs/x".
  std::string text() const;
};

/// Removes shared memory of crashed runs of this user (or of another ChannelSetup::shm_owner); live
/// runs are not touched. Call at every start, before workers exist, and log the result.
std::vector<ShmLeftover> remove_shm_leftovers(std::string_view shm_owner = {});

}  // namespace primerl
