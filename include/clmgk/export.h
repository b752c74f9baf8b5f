/* SPDX-License-Identifier: Apache-2.0 */
/* Linkage of public functions (the only exports of the shared library) and initialisers of public structures. */

#ifndef CLMGK_EXPORT_H
#define CLMGK_EXPORT_H

#if defined(__GNUC__)
#define CLMGK_VISIBLE __attribute__((visibility("default")))
#else
#define CLMGK_VISIBLE
#endif

#ifdef __cplusplus
#define CLMGK_API extern "C" CLMGK_VISIBLE
#else
#define CLMGK_API CLMGK_VISIBLE
#endif

/*
 * Initialiser of a public structure with a field struct_size. It sets struct_size and zeroes all other fields.
 * struct_size tells the library which version of the structure the caller was compiled with, so that structures can
 * grow:
 *
 *     input             the library reads struct_size bytes and takes missing fields as zero
 *     output            the library writes struct_size bytes except struct_size itself; fields that it does not know
 *                       become 0
 *     list of outputs   the first element's struct_size applies to all; the library sets it in the other elements
 *
 * A struct_size smaller than that of the first version is INVALID_VALUE. Structures without struct_size never change:
 * clmgk_error, clmgk_buffer, clmgk_layout, clmgk_shape, clmgk_allocator, clmgk_tuned. Structures that the library owns
 * (clmgk_array_info) may grow at their end.
 */
#ifdef __cplusplus
template <class T> inline T clmgk_initialised()
{
    T value = T();
    value.struct_size = sizeof(T);
    return value;
}
#define CLMGK_INIT(type) clmgk_initialised<type>()
#else
#define CLMGK_INIT(type)                                                                                               \
    {                                                                                                                  \
        .struct_size = sizeof(type)                                                                                    \
    }
#endif

#endif
