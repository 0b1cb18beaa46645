/// Weight channels that leave a process: where its ends meet, and how each kind is made.
///
///   backend   reaches              holds versions in
///   memory    one process          pointers (memory_channel.h)
///   shm       processes of a host  shared memory, read-only for receivers, or the memory of a
///                                  device, where all ends have one
///   files     a shared disk        safetensors folders below run_folder/weights/<resource>/
///   stream    joined processes     memory of each process (stream_channel.h)
///
/// Publisher and receivers make the same call, each in its own process; the first publish() makes a
/// process the publisher. There is one: a second is refused while the first lives, and takes over
/// when it has died. Receivers may come before it, later, or again. Nobody waits for anybody:
/// publish() does not wait for receivers, nor fetch() for a publisher.
///
/// Half a version is never seen: it becomes visible in one step after all its bytes are in place,
/// and fetch() verifies the CRC-32C of every tensor before it gives anything out (not of what stays
/// on a device).
/// A version is an immutable snapshot, readable until `versions_max` newer ones of its key exist
/// or, where a receiver holds it, until that lets go. All channels are thread-safe.
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

/// The same in every process of a run, but for `log`.
struct ChannelSetup {
  std::filesystem::path run_folder;    // exists; names the meeting place
  std::string run_id;                  // a run that reuses the folder does not meet this one's ends
  std::string resource;                // the channel's name in the graph
  std::filesystem::path model_folder;  // files: what is not weights is copied from here; "" = none
  size_t versions_max = 2;             // newest versions of a key kept, at least 1
  uint64_t bytes_max = uint64_t{1} << 40;  // largest version
  std::string shm_owner;                   // in segment names, without '-'; "" = this user's number
  /// shm: of this process's device, where those of all ends reach each other. What is published
  /// from a device then stays there, and its place is sent instead. Null: all versions go as bytes.
  /// So they do from the moment on when a device's memory cannot be named, or a receiver cannot
  /// open it, which `log` is told once.
  std::shared_ptr<DeviceMemory> devices{};
  /// Called between the steps of a publish, and of a fetch from shared memory, with the name of the
  /// step that follows: a test dies there, or is late. May be null.
  std::function<void(std::string_view step)> probe;
  /// Told what an earlier, crashed run had left and this one removed, and why weights do not stay
  /// on their device. May be null.
  std::function<void(std::string_view)> log;
};

/// By shared memory. The last end that closes removes the segments; where all ends were killed, the
/// next start's remove_shm_leftovers() does.
Result<std::shared_ptr<WeightChannel>> make_shm_channel(ChannelSetup setup);

/// By files. The newest versions stay in the run folder after the end; `version.json` is written
/// last into each and makes it whole.
Result<std::shared_ptr<WeightChannel>> make_files_channel(ChannelSetup setup);

/// Segments of a channel of which no end lives any more.
struct ShmLeftover {
  std::string key;         // of the channel
  std::string run_folder;  // that it belonged to; empty when that can no longer be read
  size_t num_segments = 0;
  uint64_t num_bytes = 0;
  /// "removed 3 segments of shared memory (300 MB) that a crashed run left: /runs/x".
  std::string text() const;
};

/// Removes what crashed runs of this user (or of another ChannelSetup::shm_owner) left in shared
/// memory; live runs are not touched. Call at every start, before workers exist, and say what it
/// returns.
std::vector<ShmLeftover> remove_shm_leftovers(std::string_view shm_owner = {});

}  // namespace primerl
