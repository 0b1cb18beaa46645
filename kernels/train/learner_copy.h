/// LearnerCopy: the weights and the optimizer of a learner at one moment, as a checkpoint keeps
/// them. Every tensor owns its bytes, so another thread may write them while the learner continues.
#pragma once

#include <vector>

#include "graph/base/json.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

struct LearnerCopy {
  std::vector<WeightTensor> weights;  // in the layout of files, in fp32
  std::vector<WeightTensor> moments;  // of learner/optimizer.safetensors
  Json state;                         // of learner/state.json
};

}  // namespace primerl
