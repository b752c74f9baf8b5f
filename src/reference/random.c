/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), and the dropout that is drawn from it. */
#include "reference/problem.h"

#define ROUNDS 10

/* One round: the words are multiplied, split into halves and crossed. */
static void philox_round(uint32_t x[4], const uint32_t key[2])
{
    const uint64_t first = (uint64_t)x[0] * 0xD2511F53U;
    const uint64_t second = (uint64_t)x[2] * 0xCD9E8D57U;
    const uint32_t odd[2] = {x[1], x[3]};
    x[0] = (uint32_t)(second >> 32U) ^ odd[0] ^ key[0];
    x[1] = (uint32_t)second;
    x[2] = (uint32_t)(first >> 32U) ^ odd[1] ^ key[1];
    x[3] = (uint32_t)first;
}

void clmgk_ref_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4])
{
    uint32_t round_key[2] = {key[0], key[1]};
    for (int n = 0; n < 4; n++)
        words[n] = counter[n];
    for (int round = 0; round < ROUNDS; round++) {
        philox_round(words, round_key);
        round_key[0] += 0x9E3779B9U; /* the golden ratio and sqrt(3) - 1, in 32 bits */
        round_key[1] += 0xBB67AE85U;
    }
}

double ref_kept(const clmgk_ref_problem *problem, int64_t h, const ref_span *span, int64_t j)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    if (desc->dropout == 0.0)
        return 1.0;
    const int64_t position = j - span->origin;
    const uint32_t counter[4] = {(uint32_t)(position / 4), (uint32_t)span->position,
                                 (uint32_t)(span->sequence * desc->heads + h), 0};
    const uint32_t key[2] = {(uint32_t)problem->seed, (uint32_t)(problem->seed >> 32U)};
    uint32_t words[4];
    clmgk_ref_philox(counter, key, words);
    const double threshold = floor(ldexp(desc->dropout, 32));
    return (double)words[position % 4] < threshold ? 0.0 : 1.0 / (1.0 - desc->dropout);
}

double clmgk_ref_dropout(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const ref_span span = ref_span_of(problem, b, i);
    return ref_kept(problem, h, &span, j);
}
