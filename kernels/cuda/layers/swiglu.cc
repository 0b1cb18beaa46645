#include "kernels/cuda/layers/swiglu.h"

namespace primerl {

Status apply_swiglu(int64_t rows, const at::Tensor& gate_up, const at::Tensor& activated,
                    const CudaStream& stream, const cuda::LoraDelta* lora_delta) {
  return launched(cuda::swiglu({.rows = rows,
                                .width = activated.size(1),
                                .type = op_type(activated.scalar_type()),
                                .gate_up = {gate_up.const_data_ptr(), lora_delta},
                                .activated = activated.mutable_data_ptr()},
                               stream.raw()),
                  "swiglu");
}

Status apply_swiglu_backward(int64_t rows, const at::Tensor& gate_up, const at::Tensor& dactivated,
                             const CudaStream& stream) {
  return launched(cuda::swiglu_backward({.rows = rows,
                                         .width = dactivated.size(1),
                                         .type = op_type(dactivated.scalar_type()),
                                         .gate_up = gate_up.const_data_ptr(),
                                         .dactivated = dactivated.const_data_ptr(),
                                         .dgate_up = gate_up.mutable_data_ptr()},
                                        stream.raw()),
                  "swiglu_backward");
}

}  // namespace primerl
