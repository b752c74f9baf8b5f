/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes to measure, as data. */
#include "cases.h"

/* MGK paper, Table 7, at test time: two layers on the authors' GPUs. */
static const bench_figure lra_retrieval_figures[] = {
    {CLMGK_VARIANT_SOFTMAX, 8, 0.357, 58.00}, {CLMGK_VARIANT_MGK, 4, 0.278, 53.58},
    {CLMGK_VARIANT_SMGK, 4, 0.227, 45.50},    {CLMGK_VARIANT_LINEAR, 8, 0.055, 3.38},
    {CLMGK_VARIANT_MLK, 4, 0.043, 2.90},      {CLMGK_VARIANT_SMLK, 4, 0.042, 2.83},
    {CLMGK_VARIANT_SOFTMAX, 0, 0, 0},
};

enum { PAPER = BENCH_SUITE_PAPER | BENCH_SUITE_FULL, FULL = BENCH_SUITE_FULL, QUICK = BENCH_SUITE_QUICK };
enum { GPU = BENCH_SUITE_GPU, SCORES = BENCH_SUITE_SCORES };
enum { SHORT = PAPER | BENCH_SUITE_SHORT, ADMIXTURE = BENCH_SUITE_ADMIXTURE, LINEAR = BENCH_SUITE_LINEAR };
enum { SQUARE = BENCH_WITH_CAUSAL | BENCH_WITH_STORAGE, BESIDE_FULL = BENCH_WITH_FULL };

/* Texts; those of a built-in modifier say the same. */
#define TEXT_END                                                                                                       \
    {                                                                                                                  \
        .name = NULL                                                                                                   \
    }
static const bench_text softcap_texts[] = {{.name = "as text", .score_mod = "30 * tanh(s / 30)", .sparsity = 1},
                                           TEXT_END};
static const bench_text alibi_texts[] = {
    {.name = "as text", .score_mod = "s - slope[h] * abs(i - j)", .slopes = "slope", .sparsity = 1}, TEXT_END};
static const bench_text window_texts[] = {{.name = "as text", .mask_mod = "abs(i - j) <= 256", .sparsity = 1},
                                          TEXT_END};
static const bench_text causal_texts[] = {{.name = "as text", .mask_mod = "j <= i + S - N", .sparsity = 1}, TEXT_END};
#define BY_ARRAY                                                                                                       \
    {                                                                                                                  \
        .name = "by array", .mask_mod = "doc[i] == doc[j]", .documents = "doc", .sparsity = BENCH_DOCUMENTS            \
    }
#define CLASSES                                                                                                        \
    {                                                                                                                  \
        .name = "classes", .mask_mod = "doc[i] == doc[j]", .documents = "doc", .sparsity = BENCH_DOCUMENTS,            \
        .classes = true                                                                                                \
    }
static const bench_text array_texts[] = {BY_ARRAY, CLASSES, TEXT_END};
static const bench_text document_texts[] = {
    BY_ARRAY,
    {.name = "by position", .mask_mod = "i / 512 == j / 512", .sparsity = BENCH_DOCUMENTS},
    CLASSES,
    TEXT_END};

/* Modifiers. */
#define PLAIN                                                                                                          \
    {                                                                                                                  \
        0                                                                                                              \
    }
#define WINDOW_256                                                                                                     \
    {                                                                                                                  \
        .window = true, .window_left = 256, .window_right = 256                                                        \
    }
#define PACKED_32                                                                                                      \
    {                                                                                                                  \
        .sequences = 32                                                                                                \
    }
#define SWIN_BIAS                                                                                                      \
    {                                                                                                                  \
        .bias = true, .bias_axis = { false, true, true, true }                                                         \
    }

#define TEXTS(...)                                                                                                     \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

#define STATE                                                                                                          \
    {                                                                                                                  \
        .state = true                                                                                                  \
    }

/* Names of fields are left out so that a shape is a line: batch, heads, kv heads, components, N, S, D, E, causal,
 * figures, modifiers, short batch, width. */
const bench_shape bench_shapes[] = {
    {"lra-retrieval", "LRA retrieval, MGK paper Table 7", SHORT | LINEAR, 0, 32, 8, 0, 2, 4096, 0, 32, 0, false,
     lra_retrieval_figures, PLAIN, 2, 64},
    {"lra-listops", "LRA ListOps, MGK paper A.1.1", SHORT, 0, 32, 8, 0, 2, 2048, 0, 32, 0, false, NULL, PLAIN, 4, 64},
    {"lra-narrow", "LRA with head size 64/H, MGK paper A.1.1", PAPER, 0, 32, 8, 0, 2, 2048, 0, 8, 0, false, NULL, PLAIN,
     0, 64},
    {"wikitext-small", "WikiText-103 small, MGK paper A.1.2", PAPER, 0, 96, 8, 0, 2, 256, 0, 16, 0, true, NULL, PLAIN,
     0, 128},
    {"wikitext-medium", "WikiText-103 medium, MGK paper A.1.2", SHORT, 0, 96, 8, 0, 2, 384, 0, 32, 0, true, NULL, PLAIN,
     24, 256},
    {"iwslt", "IWSLT'14 width 512, 4 heads, MGK paper A.1.3", PAPER, 0, 128, 4, 0, 2, 64, 0, 128, 0, false, NULL, PLAIN,
     0, 512},
    {"wmt", "WMT width 1024, 16 heads, FiSH paper 4.2", SHORT, 0, 64, 16, 0, 2, 64, 0, 64, 0, false, NULL, PLAIN, 0,
     1024},
    {"swin", "Swin-T windows of stage 2, FiSH paper Table 4", SHORT, 0, 1024, 6, 0, 2, 49, 0, 32, 0, false, NULL, PLAIN,
     0, 192},
    {"swin-49", "Swin-T windows of stage 1, with a bias", PAPER, 0, 4096, 3, 0, 2, 49, 0, 32, 0, false, NULL, SWIN_BIAS,
     0, 96},
    {"lm1b", "LM1B fixed head size, LRB paper 4", PAPER, 0, 8, 32, 0, 2, 256, 0, 32, 0, true, NULL, PLAIN, 0, 256},
    {"bert-128", "BERT fixed head size, LRB paper 4", PAPER, 0, 32, 8, 0, 2, 128, 0, 128, 0, false, NULL, PLAIN, 0,
     512},
    {"bert-512", "BERT fixed head size, LRB paper 4", SHORT, 0, 4, 32, 0, 2, 512, 0, 128, 0, false, NULL, PLAIN, 1,
     512},
    {"short-24", "N = 24, 12 heads", 0, 0, 256, 12, 0, 2, 24, 0, 64, 0, false, NULL, PLAIN, 0, 768},
    {"square-32", "N = S = 4096", FULL, SQUARE, 1, 8, 0, 2, 4096, 0, 32, 0, false, NULL, PLAIN, 0, 0},
    {"square-64", "N = S = 4096", FULL, SQUARE, 1, 8, 0, 2, 4096, 0, 64, 0, false, NULL, PLAIN, 0, 0},
    {"square-128", "N = S = 4096", FULL, SQUARE, 1, 8, 0, 2, 4096, 0, 128, 0, false, NULL, PLAIN, 0, 0},
    {"long", "a long sequence", FULL, 0, 1, 8, 0, 2, 16384, 0, 64, 0, false, NULL, PLAIN, 0, 0},
    {"grouped", "grouped heads, causal", FULL, 0, 1, 16, 2, 2, 2048, 0, 128, 0, true, NULL, PLAIN, 0, 0},
    {"cross", "few queries, many keys", FULL, 0, 1, 8, 0, 2, 512, 8192, 64, 0, false, NULL, PLAIN, 0, 0},
    {"window-16k", "256 keys to each side", FULL, BESIDE_FULL, 1, 8, 0, 2, 16384, 0, 64, 0, false, NULL, WINDOW_256, 0,
     0},
    {"decode-64k", "one query against a cache", FULL | GPU, BENCH_WITH_CACHES, 1, 8, 0, 2, 1, 65536, 64, 0, false, NULL,
     PLAIN, 0, 0},
    {"decode-64k-16", "16 queries against a cache", FULL, BENCH_WITH_CACHES, 1, 8, 0, 2, 16, 65536, 64, 0, false, NULL,
     PLAIN, 0, 0},
    {"decode-64", "a query of each of 64 sequences against 4,096 keys of its own", 0, BENCH_WITH_CACHES, 64, 8, 2, 2, 1,
     4096, 128, 0, false, NULL, PLAIN, 0, 0},
    {"gpu-4096", "N = S = 4096", GPU, 0, 1, 8, 0, 2, 4096, 0, 64, 0, false, NULL, PLAIN, 0, 0},
    {"gpu-64", "N = S = 8192", GPU, BENCH_WITH_CAUSAL, 1, 8, 0, 2, 8192, 0, 64, 0, false, NULL, PLAIN, 0, 0},
    {"gpu-128", "N = S = 8192", GPU, BENCH_WITH_CAUSAL, 1, 8, 0, 2, 8192, 0, 128, 0, false, NULL, PLAIN, 0, 0},
    {"packed", "sequences back to back, causal", FULL, 0, 1, 8, 0, 2, 8192, 0, 64, 0, true, NULL, PACKED_32, 0, 0},
    {"uneven", "sizes of no power of two", FULL, 0, 3, 6, 0, 3, 1000, 1500, 72, 40, false, NULL, PLAIN, 0, 0},
    {"quick-32", "N = S = 1024", QUICK, 0, 1, 8, 0, 2, 1024, 0, 32, 0, false, NULL, PLAIN, 0, 0},
    {"quick-64", "N = S = 1024", QUICK, 0, 1, 8, 0, 2, 1024, 0, 64, 0, false, NULL, PLAIN, 0, 0},
    {"quick-128", "N = S = 1024", QUICK, 0, 1, 8, 0, 2, 1024, 0, 128, 0, false, NULL, PLAIN, 0, 0},
    {"mixed-32", "N = S = 4096, heads mixed", ADMIXTURE, 0, 1, 8, 0, 2, 4096, 0, 32, 0, false, NULL, PLAIN, 0, 0},
    {"mixed-64", "N = S = 4096, heads mixed", ADMIXTURE, 0, 1, 8, 0, 2, 4096, 0, 64, 0, false, NULL, PLAIN, 0, 0},
    {"mixed-128", "N = S = 4096, heads mixed", ADMIXTURE, 0, 1, 8, 0, 2, 4096, 0, 128, 0, false, NULL, PLAIN, 0, 0},
    {"linear-32", "N = S = 4096", LINEAR, 0, 1, 8, 0, 2, 4096, 0, 32, 0, false, NULL, PLAIN, 0, 0},
    {"linear-64", "N = S = 4096", LINEAR, 0, 1, 8, 0, 2, 4096, 0, 64, 0, false, NULL, PLAIN, 0, 0},
    {"linear-128", "N = S = 4096", LINEAR, 0, 1, 8, 0, 2, 4096, 0, 128, 0, false, NULL, PLAIN, 0, 0},
    {"linear-64-causal", "N = S = 4096, by chunks", LINEAR, 0, 1, 8, 0, 2, 4096, 0, 64, 0, true, NULL, PLAIN, 0, 0},
    {"linear-1k", "a short sequence", LINEAR, 0, 1, 8, 0, 2, 1024, 0, 64, 0, false, NULL, PLAIN, 0, 0},
    {"linear-1k-causal", "a short sequence, by chunks", LINEAR, 0, 1, 8, 0, 2, 1024, 0, 64, 0, true, NULL, PLAIN, 0, 0},
    {"linear-256k", "a very long sequence", LINEAR, 0, 1, 8, 0, 2, 262144, 0, 64, 0, false, NULL, PLAIN, 0, 0},
    {"linear-256k-causal", "a very long sequence, by chunks", LINEAR, 0, 1, 8, 0, 2, 262144, 0, 64, 0, true, NULL,
     PLAIN, 0, 0},
    {"linear-step", "decoding: a token of a sequence", LINEAR, 0, 1, 8, 0, 2, 1, 0, 64, 0, true, NULL, STATE, 0, 0},
    {"linear-steps", "decoding: a token of each of 64 sequences", LINEAR, 0, 64, 8, 0, 2, 1, 0, 64, 0, true, NULL,
     STATE, 0, 0},
    {"scores-softcap", "a soft-cap of 30, built in and as text", SCORES, 0, 1, 8, 0, 2, 2048, 0, 64, 0, false, NULL,
     TEXTS(.texts = softcap_texts, .softcap = 30), 0, 0},
    {"scores-alibi", "ALiBi, built in and as text", SCORES, 0, 1, 8, 0, 2, 2048, 0, 64, 0, false, NULL,
     TEXTS(.texts = alibi_texts, .alibi = true), 0, 0},
    {"scores-window", "256 keys to each side, built in and as text", SCORES, 0, 1, 8, 0, 2, 2048, 0, 64, 0, false, NULL,
     TEXTS(.texts = window_texts, .window = true, .window_left = 256, .window_right = 256), 0, 0},
    {"scores-causal", "causal, built in and as text", SCORES, 0, 1, 8, 0, 2, 2048, 0, 64, 0, true, NULL,
     TEXTS(.texts = causal_texts), 0, 0},
    {"scores-documents", "full, and eight documents of equal length", SCORES, 0, 1, 8, 0, 2, 4096, 0, 64, 0, false,
     NULL, TEXTS(.texts = document_texts), 0, 0},
    {"scores-alibi-128", "ALiBi of a short sequence, built in and as text", 0, 0, 1, 8, 0, 2, 128, 0, 64, 0, false,
     NULL, TEXTS(.texts = alibi_texts, .alibi = true), 0, 0},
    {"scores-documents-256", "full, and eight short documents", 0, 0, 1, 8, 0, 2, 256, 0, 64, 0, false, NULL,
     TEXTS(.texts = array_texts), 0, 0},
};
const size_t bench_shape_count = TOOL_COUNT(bench_shapes);

const bench_figure *bench_find_figure(const bench_shape *shape, clmgk_variant variant, int64_t heads)
{
    for (const bench_figure *figure = shape->figures; figure && figure->heads; figure++) {
        if (figure->variant == variant && figure->heads == heads)
            return figure;
    }
    return NULL;
}
