/// How the router of a mixture chooses experts, as the operations read it. Any thread.
#pragma once

#include "kernels/models/config.h"
#include "kernels/ops/ops.h"

namespace primerl {

RouterShape router_shape(const MoeSpec& spec);

}  // namespace primerl
