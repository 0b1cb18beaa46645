/// The loss of a position against the likeliest tokens of a teacher: the specification of "gkd".
///
/// Pure functions in double. The teacher gives k tokens with probabilities q_i, and p_i are those
/// of the learner. All other tokens together are one bucket, with Q = 1 - sum q_i and P = 1 - sum
/// p_i; there is none if the k tokens are the whole vocabulary. Over these buckets, with b =
/// jsd_beta and m = b * q + (1 - b) * p:
///
///   b = 0    sum of q * (log q - log p)                the forward KL
///   b = 1    sum of p * (log p - log q)                the reverse KL
///   else     b * sum of q * (log q - log m) + (1 - b) * sum of p * (log p - log m)
///
/// These are the three cases of GKD (Agarwal et al., 2024) and of TRL's GKDTrainer. Buckets make
/// the loss at most that over the whole vocabulary, and equal to it if k is the vocabulary. Unlike
/// a renormalisation over the k tokens, they also train what the learner gives to the others. The
/// gradient by the logits z, with g the gradients by the logarithms of the buckets and s their sum:
///
///   token i of the k     g_i - p_i * s
///   another token j      g_rest * p_j / P - p_j * s
#pragma once

#include <cstdint>
#include <span>

#include "graph/base/result.h"

namespace primerl {

struct TrainSample;  // learner.h

/// Q and P count as at least these. The teacher's float numbers leave no smaller Q.
inline constexpr double kTeacherRestMin = 1e-7;
inline constexpr double kLearnerRestMin = 1e-30;

struct TopKLoss {
  double loss = 0;
  double kl = 0;             // the forward KL, whatever beta is
  double mass = 0;           // sum of q_i
  double rest_gradient = 0;  // by log P; 0 if P counts as more than it is
};

/// The probability of all tokens but the k; `is_there`: false if there are no others.
struct TopKRest {
  double learner = 0;
  bool is_there = true;
};

/// `teacher`, `learner`: log q_i and log p_i. `gradients` [k] receives g_i.
TopKLoss top_k_loss(double beta, std::span<const float> teacher, std::span<const double> learner,
                    const TopKRest& rest, std::span<double> gradients);

/// The same of a whole row, as log_prob() (loss.h): of softmax(logits * inverse_temperature) for
/// the tokens `ids`. `gradient`, unless it is empty, receives d loss / d logits.
TopKLoss top_k_loss_of_row(double beta, std::span<const float> logits, double inverse_temperature,
                           std::span<const int32_t> ids, std::span<const float> teacher,
                           std::span<double> gradient = {});

/// The number k of tokens at each loss token of the sample; 0: none are stored. The arrays were
/// checked.
size_t top_k_of(const TrainSample& sample);

/// Refuses arrays that are missing, that are not whole rows of k, ids below 0 or twice in a row,
/// log-probabilities out of range (packing.h), and rows whose probabilities add up to more than 1.
/// Ids of the teacher's own further tokens are valid: they count as other tokens. The row of a loss
/// token at position 0 is not read.
Status check_top_k(const TrainSample& sample);

}  // namespace primerl
