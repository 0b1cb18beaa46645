/// The Outside that asks worker processes: one pool of workers for each pool of the spec, and one
/// I/O thread for all of them (docs/design/outside.md, docs/formats/outside.md).
///
/// Threads: those of Outside. Workers are started by the I/O thread at once and die with it.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "graph/outside.h"

namespace primerl {

struct OutsideWorkersSetup {
  OutsideSpec spec;  // of its pools, those of kind kWorkers are served; others are never asked
  std::function<void(std::string_view)> log;  // receives lines for a person; may be null
};

std::shared_ptr<Outside> make_outside_workers(OutsideWorkersSetup setup);

}  // namespace primerl
