/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), and dropout and noise drawn from it. */
#include "reference/problem.h"

#define ROUNDS 10

/* A round: multiplies the words, splits the products into halves and swaps them. */
static void philox_round(uint32_t x[4], const uint32_t key[2])
{
    const uint64_t first = (uint64_t)x[0] * 0xD2511F53U, second = (uint64_t)x[2] * 0xCD9E8D57U;
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

/* Streams of numbers: the last word of the counter. */
enum { STREAM_DROPOUT = 0, STREAM_NOISE = 1 };

/* Draws the four words of key j's group. Returns the number of key j's index word. */
static int64_t draw(const clmgk_ref_problem *problem, int64_t h, const ref_span *span, int64_t j, uint32_t stream,
                    uint32_t words[4])
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const int64_t position = ref_key_position(problem, span, j), batch = desc->first_batch + span->sequence;
    const int64_t heads = desc->all_heads > 0 ? desc->all_heads : ref_softmax_heads(desc);
    const uint32_t counter[4] = {(uint32_t)(position / 4), (uint32_t)span->position, (uint32_t)(batch * heads + h),
                                 stream};
    const uint32_t key[2] = {(uint32_t)problem->seed, (uint32_t)(problem->seed >> 32U)};
    clmgk_ref_philox(counter, key, words);
    return position % 4;
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

double ref_kept(const clmgk_ref_problem *problem, int64_t h, const ref_span *span, int64_t j)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    if (desc->dropout == 0.0)
        return 1.0;
    uint32_t words[4];
    const int64_t index = draw(problem, desc->first_head + h, span, j, STREAM_DROPOUT, words);
    const double threshold = floor(ldexp(desc->dropout, 32));
    return (double)words[index] < threshold ? 0.0 : 1.0 / (1.0 - desc->dropout);
}

double clmgk_ref_dropout(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const ref_span span = ref_span_of(problem, b, i);
    return ref_kept(problem, h, &span, j);
}

/* ---- noise ------------------------------------------------------------------------------------------------------- */

/* The two words of a pair of normal numbers, and the requested number. */
typedef struct normal_pair {
    uint32_t radius, angle;
    bool sine;
} normal_pair;

static normal_pair draw_pair(const clmgk_ref_problem *problem, int64_t h, const ref_span *span, int64_t j)
{
    uint32_t words[4];
    const clmgk_attention_desc *const desc = &problem->desc;
    const int64_t first = desc->mix_hidden > 0 ? 0 : desc->first_head; /* hidden units are not heads */
    const int64_t index = draw(problem, desc->shared_noise ? 0 : first + h, span, j, STREAM_NOISE, words);
    const int64_t pair = index / 2 * 2;
    return (normal_pair){words[pair], words[pair + 1], index % 2 == 1};
}

/* sqrt(-2 ln u) cos(2 pi v) or sin(2 pi v), with u = (w + 1/2) / 2^32 of the first word and v of the second: exact
 * except for the functions. */
double ref_noise(const clmgk_ref_problem *problem, int64_t h, const ref_span *span, int64_t j)
{
    static const double tau = 6.283185307179586;
    if (!ref_form_of(&problem->desc).noisy)
        return 0.0;
    const normal_pair pair = draw_pair(problem, h, span, j);
    const double u = ldexp((double)pair.radius + 0.5, -32);
    const double v = ldexp((double)pair.angle + 0.5, -32);
    return sqrt(-2.0 * log(u)) * (pair.sine ? sin(tau * v) : cos(tau * v));
}

/* f32 can't hold the 33 bits of u and v: 1 - u and 1 - v keep more bits when small. */
float ref_plain_noise(const clmgk_ref_problem *problem, int64_t h, const ref_span *span, int64_t j)
{
    static const float tau = 6.28318531F;
    if (!ref_form_of(&problem->desc).noisy)
        return 0.0F;
    const normal_pair pair = draw_pair(problem, h, span, j);
    const bool high = pair.radius >> 31U != 0, late = pair.angle >> 31U != 0;
    const float u = ldexpf((float)(high ? ~pair.radius : pair.radius) + 0.5F, -32);
    const float v = ldexpf((float)(late ? ~pair.angle : pair.angle) + 0.5F, -32);
    const float radius = sqrtf(-2.0F * (high ? log1pf(-u) : logf(u)));
    const float sine = late ? -sinf(tau * v) : sinf(tau * v);
    return radius * (pair.sine ? sine : cosf(tau * v));
}

double clmgk_ref_noise(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const ref_span span = ref_span_of(problem, b, i);
    return ref_noise(problem, h, &span, j);
}
