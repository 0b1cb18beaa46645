/// EngineResume: the note of a step in which an engine of a resumed run answered for the first
/// time. With it a replay at full depth makes its engine anew at the same place.
///
/// A plain value. docs/formats/trace.md describes the note.
#pragma once

#include <cstdint>

#include "kernels/weights/weights_key.h"

namespace primerl {

struct EngineResume {
  int32_t resource = -1;       // index into Plan::resources
  uint64_t num_sequences = 0;  // unfinished ones, which the new engine received
  VersionsByKey versions;      // weights that the new engine had before it received them

  template <class F>
  static void fields(F& f) {
    using E = EngineResume;
    f("resource", &E::resource)("num_sequences", &E::num_sequences)("versions", &E::versions);
  }
};

}  // namespace primerl
