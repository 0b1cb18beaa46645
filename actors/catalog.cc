#include "actors/catalog.h"

#include "actors/broadcaster/broadcaster.h"
#include "actors/data/data.h"
#include "actors/decode/decode.h"
#include "actors/env/env.h"
#include "actors/gateway/gateway.h"
#include "actors/judge/judge.h"
#include "actors/prefill/prefill.h"
#include "actors/rollout/rollout.h"
#include "actors/router/router.h"
#include "actors/teacher/teacher.h"
#include "actors/tinker/tinker.h"
#include "actors/trainer/trainer.h"

namespace primerl {

std::vector<Contract> actor_catalog() {
  return {
      Broadcaster::contract(), Data::contract(),    Decode::contract(),  Env::contract(),
      Gateway::contract(),     Judge::contract(),   Prefill::contract(), Rollout::contract(),
      Router::contract(),      Teacher::contract(), Tinker::contract(),  Trainer::contract(),
  };
}

}  // namespace primerl
