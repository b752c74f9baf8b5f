/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture family, before the kernels whose blocks of rows meet tiles of keys: beta_jr of all keys (mixture/forward.cl)
 * into the workspace, for Gaussian scores. Other kernels then read them (KEY_TERMS_GIVEN), where each block of rows
 * would sum over the features of every key again. The engine's own operations form the sums, so the bits are the same.
 *
 * A work-group is (b, h, r, tile of keys), tiles fastest. Without KEYS_SHIFTED beta_jr is the same for all heads h that
 * share a head g of keys: then it is (b, g, r, tile).
 */
#include "mixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_MIXTURE_KEYS_BUFFERS
#include "base/buffers.clh"

#include "mixture/block.clh"

#define KEYS_ALONE 1
#include "engine/engine.clh"

#include "mixture/key_terms.clh"

KERNEL(mixture_keys)
{
    BEGIN_BUFFERS
    if (a.length_k == 0)
        return;
    uint id = (uint)GROUP_ID; /* 64 bits would be divided by a loop on GPUs */
    const uint tiles = (a.length_k + TILE_KEYS - 1) / TILE_KEYS, sets = KEYS_SHIFTED ? a.heads : a.kv_heads;
    const int k0 = (int)(id % tiles) * TILE_KEYS;
    id /= tiles;
    const int r = (int)(id % COMPONENTS);
    id /= COMPONENTS;
    const int h = (int)(id % sets), b = (int)(id / sets);
    const int g = KEYS_SHIFTED ? (int)((long)h * a.kv_heads / a.heads) : h;
    /* packed: keys of all sequences, in their order on the axis */
    const int keys = a.has_lengths ? clamp(lengths[b], 0, a.length_k) : a.length_k;
    if (k0 >= keys)
        return;
    const tile_start none = tile_at(elements_of(k), -1);
    k += b * a.k.batch + g * a.k.head + (KEYS_SHIFTED ? 0 : r * a.k.component);
    shift += ((long)h * COMPONENTS + r) * a.head_size;
    work += a.key_terms + beta_row(&a, b, h, g, r);

    ENGINE_DECLARE(e, 1)
    const float scale = component_scale(&a, h, r, variance);
    const float own = KEYS_SHIFTED ? shift_norm(&a, 0, shift, scale) : 0.0f;
    keys_stage(&e, array_rows_of(elements_of(k), a.k.token, k0, keys, a.head_size), 1, 0, none);
    TILE_KEYS_FOR(&e, c, tile_extent(k0, keys)) {
        const kreal norm = keys_norm(&e, 0, c);
        const kreal product = KEYS_SHIFTED ? keys_dot(&e, 0, c, shift, a.head_size) : (kreal)(0.0f);
        key_store(work, k0 + c, keys, key_beta(scale, own, norm, product));
    }
}
