/// The parts of this plugin. The program that loads it calls primerl_plugin() once.
#include "actors/plugin.h"

#include "brevity.h"
#include "diversity_filter.h"
#include "rotate_word.h"
#include "soft_gate.h"
#include "two_choices.h"

extern "C" void primerl_plugin(primerl::Plugin& plugin) {
  plugin.name = "word_games";
  plugin.version = "1.0";
  plugin.actors = {word_games::DiversityFilter::contract()};
  plugin.environments = {word_games::rotate_word_contract()};
  plugin.rewards = {word_games::brevity_contract()};
  plugin.route_policies = {word_games::two_choices_contract()};
  plugin.objectives = {word_games::soft_gate_objective()};
}
