/// The text of the reference about the options `numerics` and `products` of engines and learners.
#pragma once

namespace primerl {

inline constexpr const char* kNumericsDoc =
    "\"invariant\": matmuls that give engine and learner equal bits; \"fast\": the vendor's, or "
    "our own where they are faster";
inline constexpr const char* kProductsDoc =
    "numbers that the layers' matmuls read: those of \"dtype\"; \"bf16\", on the CPU only, also in "
    "the head, summed in float32 with equal bits on every processor, fast where it has AMX; or "
    "\"fp8\", e4m3 with a scale for each 128 activations and each 128 x 128 weights; on the CPU "
    "rounded and computed in float32, on a Hopper device as codes; router and norms are not "
    "changed, and with \"fp8\" embedding and head neither";

}  // namespace primerl
