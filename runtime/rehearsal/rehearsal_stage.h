/// A plan that is ready to run on a virtual clock: the graph's own actors, edges, places, limits
/// and numbers, with everything outside scripted. Plain values; nothing is started here.
///
///   engine, learner   scripted, with the file's blocks and limits, and with fixed costs
///   weight channel    memory, also between processes
///   tokenizer         a byte is a token
///   env, data         the scripted form that their contracts define
///
/// Tenants make at most `steps` steps and write only the last checkpoint, which does not touch the
/// disk.
#pragma once

#include <deque>
#include <memory>

#include "runtime/exec/executor.h"

namespace primerl {

struct RehearsalStage {
  std::shared_ptr<const Plan> plan;
  ResourceFactory factory;
  std::shared_ptr<const std::deque<Contract>> contracts;  // the plan's nodes point to these
};

RehearsalStage make_rehearsal_stage(const Plan& plan, int64_t steps);

}  // namespace primerl
