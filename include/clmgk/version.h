/* SPDX-License-Identifier: Apache-2.0 */
/* The library's version, stated here alone: the build reads these three lines. */
#ifndef CLMGK_VERSION_H
#define CLMGK_VERSION_H

#define CLMGK_VERSION_MAJOR 0
#define CLMGK_VERSION_MINOR 1
#define CLMGK_VERSION_PATCH 0

#define CLMGK_VERSION_TEXT_(a, b, c) #a "." #b "." #c
#define CLMGK_VERSION_TEXT(a, b, c)  CLMGK_VERSION_TEXT_(a, b, c)
#define CLMGK_VERSION                CLMGK_VERSION_TEXT(CLMGK_VERSION_MAJOR, CLMGK_VERSION_MINOR, CLMGK_VERSION_PATCH)

#endif
