/* SPDX-License-Identifier: Apache-2.0 */
/* Strides in any order, offsets, broadcast and packed arrays: the harness holds canaries in every byte between. */
#include "harness/harness.h"

static const clmgk_variant variants[] = {CLMGK_VARIANT_SOFTMAX, CLMGK_VARIANT_MGK, CLMGK_VARIANT_SMGK};
enum { B = 2, H = 4, G = 2, M = 2, N = 37, S = 70, D = 17, E = 8 };

static clmgk_attention_desc base_desc(clmgk_variant variant, clmgk_dtype dtype)
{
    clmgk_attention_desc desc = th_sized_desc(variant, (th_sizes){B, H, G, 0, N, S, D, E});
    desc.dtype = dtype;
    return desc;
}

/*
 * Strides for the axes batch, head, component, token in the order that permutation `number` (0..23) makes, the last
 * one varying fastest; `gap` elements lie between neighbours of each axis.
 */
static clmgk_layout permuted(int number, const int64_t shape[4], int64_t innermost, int64_t gap)
{
    int64_t stride[4] = {0};
    bool taken[4] = {false};
    int64_t next = innermost + gap;
    for (int left = 4; left > 0; left--) {
        int choice = number % left;
        number /= left;
        int axis = 0;
        while (taken[axis] || choice-- > 0)
            axis++;
        taken[axis] = true;
        stride[axis] = next;
        next = next * shape[axis] + gap;
    }
    return (clmgk_layout){
        .strided = 1, .batch = stride[0], .head = stride[1], .component = stride[2], .token = stride[3]};
}

static void set_permutation(clmgk_attention_desc *desc, int number, int64_t gap)
{
    const int64_t components = desc->variant == CLMGK_VARIANT_MGK ? M : 1;
    desc->q = permuted(number, (int64_t[]){B, H, 1, N}, D, gap);
    desc->k = permuted(23 - number, (int64_t[]){B, G, components, S}, D, gap);
    desc->v = permuted((number + 7) % 24, (int64_t[]){B, G, 1, S}, E, gap);
    desc->o = permuted((number + 11) % 24, (int64_t[]){B, H, 1, N}, E, gap);
    desc->lse = permuted((number + 17) % 24, (int64_t[]){B, H, 1, N}, 1, gap);
}

TH_TEST(strides_in_any_order)
{
    for (size_t v = 0; v < TH_COUNT(variants); v++) {
        for (int number = 0; number < 24; number++) {
            clmgk_attention_desc desc = base_desc(variants[v], th_dtypes[((size_t)number + v) % TH_COUNT(th_dtypes)]);
            set_permutation(&desc, number, number % 4);
            th_expect_desc(session, &desc, (uint64_t)number);
        }
    }
}

TH_TEST(odd_offsets)
{
    static const uint64_t offsets[] = {0, 1, 3, 7, 61, 127};
    for (size_t n = 0; n < TH_COUNT(offsets) * TH_COUNT(th_dtypes); n++) {
        const clmgk_attention_desc desc =
            base_desc(variants[n % TH_COUNT(variants)], th_dtypes[n % TH_COUNT(th_dtypes)]);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        for (size_t name = 0; name < TH_ARRAYS; name++)
            problem.array[name].offset = offsets[(n / TH_COUNT(th_dtypes) + name) % TH_COUNT(offsets)];
        th_expect(session, &problem);
    }
}

/* Problems with all optional arrays; each array begins at an odd element. */
TH_TEST(odd_offsets_of_optional_arrays)
{
    for (size_t v = 1; v < TH_COUNT(variants); v++) {
        clmgk_attention_desc desc = base_desc(variants[v], CLMGK_DTYPE_F32);
        desc.prior_shape = CLMGK_PRIOR_HMS;
        desc.variance_shape = CLMGK_VARIANCE_HM;
        desc.use_lengths = 1;
        desc.use_lengths_q = 1;
        TH_PROBLEM problem = th_problem_make(&desc, v);
        th_offset_arrays(&problem, 2, 1);
        th_expect(session, &problem);
    }
}

/* Keys and values with strides of 0: one token, one head, one batch or one component for all. */
TH_TEST(broadcast_keys_and_values)
{
    for (size_t n = 0; n < 6 * TH_COUNT(variants); n++) {
        const size_t v = n / 6;
        clmgk_attention_desc desc = base_desc(variants[v], th_dtypes[n % TH_COUNT(th_dtypes)]);
        desc.k = (clmgk_layout){1, (int64_t)G * M * S * D, (int64_t)M * S * D, (int64_t)S * D, D};
        desc.v = (clmgk_layout){1, (int64_t)G * S * E, (int64_t)S * E, 0, E};
        int64_t *const zero[] = {&desc.k.batch, &desc.k.head, &desc.k.token,
                                 &desc.v.batch, &desc.v.head, &desc.v.token};
        *zero[n % 6] = 0;
        if (n % 2 == 1)
            *zero[(n + 3) % 6] = 0;
        if (variants[v] == CLMGK_VARIANT_MGK && n % 3 == 0)
            desc.k.component = 0;
        th_expect_desc(session, &desc, n);
    }
}

/* Q, K and V interleaved token by token in one buffer [B,N,3,H,D], tokens first in O too. */
TH_TEST(packed_qkv)
{
    for (size_t n = 0; n < TH_COUNT(th_dtypes) * 2; n++) {
        clmgk_attention_desc desc =
            base_desc(n % 2 == 0 ? CLMGK_VARIANT_SOFTMAX : CLMGK_VARIANT_SMGK, th_dtypes[n / 2]);
        desc.kv_heads = H;
        desc.lse = (clmgk_layout){.strided = 1, .batch = (int64_t)N * H, .head = 1, .token = H};
        TH_PROBLEM problem = th_packed_problem(desc, n);
        th_sweep(session, &problem, n);
    }
}

/* Q and O share one array [B,H,N,D+E], so that inputs and outputs alternate in memory. */
TH_TEST(output_beside_its_input)
{
    for (size_t n = 0; n < TH_COUNT(th_dtypes); n++) {
        clmgk_attention_desc desc = base_desc(variants[n % TH_COUNT(variants)], th_dtypes[n]);
        desc.q = (clmgk_layout){1, (int64_t)H * N * (D + E), (int64_t)N * (D + E), 0, D + E};
        desc.o = desc.q;
        TH_PROBLEM problem = th_problem_make(&desc, n);
        problem.array[TH_O].home = TH_Q;
        problem.array[TH_O].offset = problem.array[TH_Q].offset + D;
        th_expect(session, &problem);
    }
}

/* Keys that are their own values. */
TH_TEST(inputs_may_alias)
{
    clmgk_attention_desc desc = base_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_DTYPE_F32);
    desc.value_size = D;
    TH_PROBLEM problem = th_problem_make(&desc, 9);
    problem.array[TH_V].home = TH_K;
    for (size_t n = 0; n < problem.array[TH_V].count; n++)
        problem.array[TH_V].values[n] = problem.array[TH_K].values[n];
    th_expect(session, &problem);
}
