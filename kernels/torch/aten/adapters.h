/// What adapters add to the rows of a decode step, for the operations by ATen that read them.
#pragma once

#include "kernels/torch/aten/on_stream.h"

namespace primerl::cuda {

/// Of all rows and columns of the product: fp32 [num_rows, columns], zeros where nothing is added.
at::Tensor added_of(const OnStream& on, const AdapterAddend& addend);

}  // namespace primerl::cuda
