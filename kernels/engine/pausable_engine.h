/// PausableEngine: an Engine that can pause. The engine of every backend is wrapped in one before
/// actors get it, so that a pause means the same for all of them.
///
/// While it is paused no step runs: sequences keep their KV and their running slots, and no token
/// is sampled. Everything else works: prompts are queued up to the queue's bound, sequences are
/// taken over, aborted and expire, weights are applied. It has no clock; the caller that pauses it
/// has one. Threads: those of the engine.
#pragma once

#include <memory>
#include <utility>

#include "kernels/engine/engine_wrapper.h"

namespace primerl {

class PausableEngine final : public EngineWrapper {
 public:
  using EngineWrapper::EngineWrapper;

  void set_paused(bool is_paused) override { is_paused_ = is_paused; }
  Status step() override { return is_paused_ ? ok() : EngineWrapper::step(); }
  bool has_work() const override { return !is_paused_ && EngineWrapper::has_work(); }
  std::string describe() const override {
    return is_paused_ ? "paused, " + EngineWrapper::describe() : EngineWrapper::describe();
  }

 private:
  bool is_paused_ = false;
};

}  // namespace primerl
