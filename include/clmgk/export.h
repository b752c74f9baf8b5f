/* SPDX-License-Identifier: Apache-2.0 */
/* Linkage of public functions, the shared library's only exports, and initialisers of public structures. */

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
 * Initialiser of a public structure with a struct_size: all zero except that field, which states the caller's version
 * of the structure, so that structures can grow. Of an input the library reads struct_size bytes and takes missing
 * fields as zero. Of an output it writes struct_size bytes and leaves that field; fields that it does not know become
 * 0. Of a list of outputs the first element's struct_size is that of all; the library sets the others'. A struct_size
 * below the first version's is INVALID_VALUE. Structures without the field never change: clmgk_error, clmgk_buffer,
 * clmgk_layout, clmgk_shape, clmgk_allocator, clmgk_tuned. Those that the library owns (clmgk_array_info) may grow at
 * their end.
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
