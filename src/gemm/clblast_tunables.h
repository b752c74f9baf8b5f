/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameters of CLBlast's kernels for products, as in its own tuner (CLBlast 1.5: src/tuning/kernels/xgemm.hpp and
 * xgemm_direct.hpp, src/tuning/routines/xgemm.cpp). Same form as cl/engine/lane/tunables.h, without macros; the default
 * 0 means the value of CLBlast's own database.
 */
#ifndef MGK_CLBLAST_TUNABLES_H
#define MGK_CLBLAST_TUNABLES_H

/* Large products: copied into tiles, multiplied, copied back. */
#define MGK_CLBLAST_XGEMM_TUNABLES(T)                                                                                  \
    T(GEMMK, "GEMMK", NULL, 0, 0, "kernel: 0 tiles in local memory, 1 tiles in registers", 0, 1)                       \
    T(KREG, "KREG", NULL, 0, 0, "kernel 1: register tile along k", 1, 2, 4, 8, 16)                                     \
    T(KWG, "KWG", NULL, 0, 0, "kernel 0: tile of a work-group along k", 1, 16, 32)                                     \
    T(KWI, "KWI", NULL, 0, 0, "kernel 0: unrolling along k", 1, 2, 8)                                                  \
    T(MDIMA, "MDIMA", NULL, 0, 0, "work-items along m that load A", 2, 4, 8, 16, 32)                                   \
    T(MDIMC, "MDIMC", NULL, 0, 0, "work-items along m", 2, 4, 8, 16, 32)                                               \
    T(MWG, "MWG", NULL, 0, 0, "tile of a work-group along m", 8, 16, 32, 64, 128)                                      \
    T(NDIMB, "NDIMB", NULL, 0, 0, "work-items along n that load B", 2, 4, 8, 16, 32)                                   \
    T(NDIMC, "NDIMC", NULL, 0, 0, "work-items along n", 2, 4, 8, 16, 32)                                               \
    T(NWG, "NWG", NULL, 0, 0, "tile of a work-group along n", 8, 16, 32, 64, 128)                                      \
    T(SA, "SA", NULL, 0, 0, "1: A goes through local memory", 0, 1)                                                    \
    T(SB, "SB", NULL, 0, 0, "1: B goes through local memory", 0, 1)                                                    \
    T(STRM, "STRM", NULL, 0, 0, "1: strided access along m", 0, 1)                                                     \
    T(STRN, "STRN", NULL, 0, 0, "1: strided access along n", 0, 1)                                                     \
    T(VWM, "VWM", NULL, 0, 0, "vector width along m", 1, 2, 4, 8)                                                      \
    T(VWN, "VWN", NULL, 0, 0, "vector width along n", 1, 2, 4, 8)

#define MGK_CLBLAST_XGEMM_CONSTRAINTS(C)                                                                               \
    C(KWG % KWI == 0)                                                                                                  \
    C(MWG % (MDIMC * VWM) == 0)                                                                                        \
    C(NWG % (NDIMC * VWN) == 0)                                                                                        \
    C(MWG % (MDIMA * VWM) == 0)                                                                                        \
    C(NWG % (NDIMB * VWN) == 0)                                                                                        \
    C(GEMMK == 1 || (MDIMC * NDIMC % MDIMA == 0 && KWG * MDIMA % (MDIMC * NDIMC) == 0))                                \
    C(GEMMK == 1 || (MDIMC * NDIMC % NDIMB == 0 && KWG * NDIMB % (MDIMC * NDIMC) == 0))                                \
    C(GEMMK == 1 || (KREG == 1 && KWG >= 16 && KWI >= 2))                                                              \
    C(GEMMK == 0 || (KREG % VWN == 0 && KWG == 1 && KWI == 1))                                                         \
    C(GEMMK == 0 || (MWG == NWG && MDIMC == MDIMA && NDIMC == NDIMB))                                                  \
    C(GEMMK == 0 || (SA == 0 && SB == 0 && STRM == 0 && STRN == 0))

/* Small products: one kernel for any size. */
#define MGK_CLBLAST_XGEMMDIRECT_TUNABLES(T)                                                                            \
    T(KWID, "KWID", NULL, 0, 0, "unrolling along k", 2, 8, 16)                                                         \
    T(MDIMAD, "MDIMAD", NULL, 0, 0, "work-items along m that load A", 8, 16, 32)                                       \
    T(MDIMCD, "MDIMCD", NULL, 0, 0, "work-items along m", 8, 16, 32)                                                   \
    T(NDIMBD, "NDIMBD", NULL, 0, 0, "work-items along n that load B", 8, 16, 32)                                       \
    T(NDIMCD, "NDIMCD", NULL, 0, 0, "work-items along n", 8, 16, 32)                                                   \
    T(PADA, "PADA", NULL, 0, 0, "padding of A in local memory", 0, 1)                                                  \
    T(PADB, "PADB", NULL, 0, 0, "padding of B in local memory", 0, 1)                                                  \
    T(VWMD, "VWMD", NULL, 0, 0, "vector width along m", 1, 2, 4, 8)                                                    \
    T(VWND, "VWND", NULL, 0, 0, "vector width along n", 1, 2, 4, 8)                                                    \
    T(WGD, "WGD", NULL, 0, 0, "tile of a work-group along m, n and k", 8, 16, 32, 64)

#define MGK_CLBLAST_XGEMMDIRECT_CONSTRAINTS(C)                                                                         \
    C(WGD % KWID == 0)                                                                                                 \
    C(WGD % (MDIMCD * VWMD) == 0)                                                                                      \
    C(WGD % (NDIMCD * VWND) == 0)                                                                                      \
    C(WGD % (MDIMAD * VWMD) == 0)                                                                                      \
    C(WGD % (NDIMBD * VWND) == 0)                                                                                      \
    C(MDIMCD *NDIMCD % MDIMAD == 0 && WGD * MDIMAD % (MDIMCD * NDIMCD) == 0)                                           \
    C(MDIMCD *NDIMCD % NDIMBD == 0 && WGD * NDIMBD % (MDIMCD * NDIMCD) == 0)

/* The choice between the two, by the third root of m n k. */
#define MGK_CLBLAST_ROUTINE_TUNABLES(T)                                                                                \
    T(XGEMM_MIN_INDIRECT_SIZE, "XGEMM_MIN_INDIRECT_SIZE", NULL, 0, 0, "smallest product, as a cube's edge, for Xgemm", \
      0, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)

#define MGK_CLBLAST_ROUTINE_CONSTRAINTS(C) C(XGEMM_MIN_INDIRECT_SIZE >= 0)

#endif
