// New weights of an engine on a CUDA device: whole weights, or an adapter that is loaded or
// evicted.
#include <algorithm>

#include "kernels/common/boundary.h"
#include "kernels/cuda/engine/engine.h"

namespace primerl {
namespace {

/// A snapshot over tensors that another object keeps alive.
std::shared_ptr<const WeightSnapshot> borrowed(const WeightSnapshot& snapshot) {
  return {std::shared_ptr<const void>(), &snapshot};
}

}  // namespace

/// An adapter is small. Router biases are exact only on the host.
bool CudaEngine::needs_bytes() const {
  return known_.applies_adapters() || has_selection_biases(table_);
}

Status CudaEngine::take(const WeightSnapshot& snapshot) {
  if (known_.applies_adapters()) return apply_adapter(snapshot);
  RETURN_IF_ERROR(whole_->apply(snapshot));
  RETURN_IF_ERROR(decoder_.weights_changed());
  return snapshot.device == nullptr ? decoder_.take(table_, snapshot.tensors) : ok();
}

/// If a tenant has no slot, apply() only keeps its tensors.
bool CudaEngine::prepare_adapter(const std::shared_ptr<const WeightSnapshot>& snapshot) {
  if (adapters_->holds(*snapshot)) return !adapters_->is_busy();
  if (adapters_->is_busy() || is_loading_) return false;
  const auto number = known_.number_of(snapshot->key);
  if (number.ok() && scheduler_.slots().slot_of(*number) == AdapterSlots::kNone) return true;
  const auto config = known_.check(*snapshot);
  // apply() reports the refusal
  return !config.ok() || !adapters_->begin({}, *config, snapshot).ok();
}

/// The previous version stays until the whole new one is known to fit.
Status CudaEngine::apply_adapter(const WeightSnapshot& snapshot) {
  if (is_loading_) RETURN_IF_ERROR(end_load());
  ASSIGN_OR_RETURN(const auto config, known_.check(snapshot));
  AdapterSlots& slots = scheduler_.slots();
  const auto known = known_.number_of(snapshot.key);
  const auto no_other = [](int32_t) { return false; };
  const int32_t slot = known.ok() ? slots.slot_of(*known) : slots.slot_for(no_other);
  const bool has_slot = slot != AdapterSlots::kNone;
  if (has_slot && !adapters_->holds(snapshot))
    RETURN_IF_ERROR(adapters_->begin({}, config, borrowed(snapshot)));
  ASSIGN_OR_RETURN(const int32_t number, known_.take(snapshot, config));
  if (!has_slot) return ok();
  if (!known.ok()) slots.place(number);
  return adapters_->take(slot);
}

/// A slot whose adapter is unused gets the adapter that prompts wait for.
Status CudaEngine::load_adapter(bool waits) {
  const auto& load = scheduler_.next_load();
  if (!load) return ok();
  if (!is_loading_) {
    if (adapters_->is_busy() && !waits) return ok();  // a prepared version
    const KnownAdapters::Adapter& known = known_.at(load->adapter);
    const WeightSnapshot kept{known.key, {}, known_.tensors_of(load->adapter)};
    RETURN_IF_ERROR(
        adapters_->begin(load->slot, known.config, std::make_shared<const WeightSnapshot>(kept)));
    is_loading_ = true;
  }
  return adapters_->is_busy() && !waits ? ok() : end_load();
}

Status CudaEngine::end_load() {
  AdapterSlots& slots = scheduler_.slots();
  is_loading_ = false;
  RETURN_IF_ERROR(adapters_->take(slots.coming()->slot));
  slots.finish();
  return ok();
}

/// An upload to the slot of the dropped adapter may be running: the next begin() waits for it. No
/// row names the slot until an adapter is taken into it.
void CudaEngine::drop(WeightsKey key) {
  finish_step_in_progress();
  const auto number = known_.drop(key);
  const auto& coming = scheduler_.slots().coming();
  if (number && coming && coming->adapter == *number) is_loading_ = false;
  scheduler_.drop(key, number);
}

/// The adapter rows of a step padded to `rows` rows: empty, or the largest number of tiles, which
/// cover all rows.
CudaAdapterRows CudaEngine::decode_adapters(const RowBatch& batch, int64_t rows) {
  if (adapters_ == nullptr) return {};
  adapters_->begin_step(batch, kDecodeTileRows);
  if (adapters_->tiles().empty()) return {};
  adapters_->cover(rows);
  const int64_t num_tiles = adapters_->num_tiles(rows);
  cuda::AdapterTile* end = std::ranges::copy(adapters_->tiles(), memory_.host().tiles).out;
  std::fill(end, memory_.host().tiles + num_tiles, cuda::AdapterTile{});
  for (const cuda::AdapterTile& tile : adapters_->tiles())
    std::fill_n(memory_.host().adapter_rows + tile.first, tile.rows,
                cuda::AdapterRow{tile.slot, tile.rank, tile.targets, tile.scaling});
  CudaAdapterRows made{memory_.device().tiles, num_tiles, memory_.device().adapter_rows, rows};
  if (adapters_->expert_runs().empty()) return made;
  made.expert_runs = memory_.device().runs;
  made.num_expert_runs = adapters_->num_expert_runs(rows);
  cuda::AdapterTile* last = std::ranges::copy(adapters_->expert_runs(), memory_.host().runs).out;
  const cuda::AdapterTile none{.first = static_cast<int32_t>(rows)};
  std::fill(last, memory_.host().runs + made.num_expert_runs, none);
  return made;
}

}  // namespace primerl
