/// A Learner whose checkpoints are written by a thread of its own: begin_save() copies weights and
/// optimizer and returns, the thread writes the copy and commits it (docs/design/recovery.md).
///
/// One thread for all tenants of the learner; it starts with the first save. Copies are written in
/// the order of the calls, one at a time. A tenant has at most one copy: its next begin_save()
/// waits. When the object is destroyed, all checkpoints that were begun are written first. The
/// thread has the lowest priority of the system, so it uses cores that the steps leave idle, and it
/// pauses while steps want all cores (writer_pace.h).
///
/// Threads: as for the learner that it wraps. `commit` of a save and the wake function are called
/// on the writer's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/train/learner.h"
#include "runtime/exec/executor.h"

namespace primerl {

/// Called on the thread of a call that closed open gradients of the tenant without a training step:
/// a client discarded them, or the call was stopped or failed.
using GradientsDiscarded = std::function<void(TenantSlot tenant)>;

/// `discarded` may be empty. `bytes` grows by the bytes that the writer's thread writes, and reads
/// again for checksums; it must stay valid while the learner exists. Null: they are not counted.
std::shared_ptr<Learner> make_writing_learner(std::shared_ptr<Learner> learner,
                                              GradientsDiscarded discarded = {},
                                              std::atomic<uint64_t>* bytes = nullptr);

/// Wraps every learner that `make` makes.
ResourceFactory writing_factory(ResourceFactory make, GradientsDiscarded discarded = {},
                                std::atomic<uint64_t>* bytes = nullptr);

}  // namespace primerl
