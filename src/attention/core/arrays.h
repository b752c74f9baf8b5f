/* SPDX-License-Identifier: Apache-2.0 */
/* The arrays of a descriptor: internal functions (public part: clmgk/arrays.h). */
#ifndef MGK_ARRAYS_H
#define MGK_ARRAYS_H

#include "base/base.h"
#include "clmgk/attention.h"

/* The first version's size. */
enum { MGK_LEAST_DESC_SIZE = offsetof(clmgk_attention_desc, use_window) };

/* Whether the variant has the trait. */
static inline bool mgk_has_trait(const clmgk_attention_desc *desc, clmgk_variant_trait trait)
{
    return (clmgk_variant_traits(desc->variant) & (uint32_t)trait) != 0;
}

/* Heads with a softmax of their own: H, or those that are mixed after it. */
int64_t mgk_softmax_heads(const clmgk_attention_desc *desc);

/* Whether packed sequences have a cache of keys and values each, of which `lengths` are in use, or pages. */
bool mgk_has_caches(const clmgk_attention_desc *desc);

/* The shape that the array would have, whether the descriptor uses it or not. */
clmgk_shape mgk_array_shape(const clmgk_attention_desc *desc, clmgk_array array);

/* clmgk_array_shape and its kin, for descriptors of this version. */
clmgk_shape mgk_array_used_shape(const clmgk_attention_desc *desc, clmgk_array array);
int64_t mgk_array_count(const clmgk_attention_desc *desc, clmgk_array array);
size_t mgk_array_element_size(const clmgk_attention_desc *desc, clmgk_array array);
clmgk_dtype mgk_array_dtype(const clmgk_attention_desc *desc, clmgk_array array);
clmgk_presence mgk_array_presence(const clmgk_attention_desc *desc, clmgk_pass pass, clmgk_array array);

/* The captured array that the array, or the gradient, is; NULL: none. */
const clmgk_capture *mgk_capture_of(const clmgk_attention_desc *desc, clmgk_array array);

/* The number of the score's and mask's numbers. */
int mgk_count_numbers(const clmgk_attention_desc *desc);

/* The largest position of a token: distances and their sums with a window fit into an int. */
#define MGK_MOST_POSITION ((INT64_C(1) << 30) - 1)

/* Whether Q, K, V, O and their gradients have the same type. */
bool mgk_has_one_type(const clmgk_attention_desc *desc);

/* Whether K or V has a type of CLMGK_CACHE_DTYPE_LIST. */
bool mgk_has_cache_types(const clmgk_attention_desc *desc);

/* Reads a resolved descriptor of the caller's version; false if it is none. */
bool mgk_desc_read(const clmgk_attention_desc *given, clmgk_attention_desc *desc);

/* The array's layout in the descriptor; NULL: dense. */
clmgk_layout *mgk_array_layout(clmgk_attention_desc *desc, clmgk_array array);

/* Whether the descriptor has the array; for a gradient, whether it may be requested. */
bool mgk_array_exists(const clmgk_attention_desc *desc, clmgk_array array);

/* Whether the descriptor asks for the pass. */
bool mgk_pass_is_wanted(const clmgk_attention_desc *desc, clmgk_pass pass);

/* Whether `pass` uses the array with some descriptor; whether a call of `pass` writes it. */
bool mgk_array_is_of_pass(clmgk_pass pass, clmgk_array array);
bool mgk_array_is_output(const clmgk_attention_desc *desc, clmgk_pass pass, clmgk_array array);

/* Fails because a required array is not given: `noun`, as in "a buffer", was expected. */
clmgk_status mgk_fail_missing(const clmgk_attention_desc *desc, clmgk_pass pass, clmgk_array array, const char *noun,
                              clmgk_error *error);

/* Elements from the array's first to one past its last (0: empty, or not used); false on overflow. */
bool mgk_array_extent(const clmgk_attention_desc *desc, clmgk_array array, int64_t *extent);

#endif
