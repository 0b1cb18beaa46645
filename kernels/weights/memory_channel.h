/// WeightChannel inside one process: snapshots are shared by pointer, nothing is copied.
///
/// Thread-safe: the publisher (Trainer) and the receivers (Prefill, Decode) run on different
/// threads. Keeps the newest snapshot of each key and the one before it; an older one is retired as
/// soon as two newer ones exist. A receiver that fetched a snapshot keeps it alive by its pointer.
#pragma once

#include <memory>

#include "kernels/weights/snapshot.h"

namespace primerl {

/// `versions_max`: how many of the newest versions of a key are kept. A replay keeps more than a
/// run: its publisher may be further ahead of its receivers.
std::shared_ptr<WeightChannel> make_memory_channel(size_t versions_max = 2);

}  // namespace primerl
