/// A plan made ready to be played on a virtual clock: the graph's own actors, edges, places, limits
/// and numbers, with everything outside scripted. Plain values; nothing is started here.
///
///   engine, learner   scripted, with the file's blocks and limits, at costs of their own
///   weight channel    memory, whatever the processes
///   tokenizer         a byte is a token
///   env, data         the scripted form that their contracts state
///
/// Tenants take at most `steps` steps and write only the last checkpoint, which does not touch the
/// disk.
#pragma once

#include <deque>
#include <memory>

#include "runtime/exec/executor.h"

namespace primerl {

struct RehearsalStage {
  std::shared_ptr<const Plan> plan;
  ResourceFactory factory;
  std::shared_ptr<const std::deque<Contract>> contracts;  // that the plan's nodes point at
};

RehearsalStage make_rehearsal_stage(const Plan& plan, int64_t steps);

}  // namespace primerl
