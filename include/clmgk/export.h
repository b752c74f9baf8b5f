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

/* An initialiser: all zero except struct_size. */
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
