/* SPDX-License-Identifier: Apache-2.0 */
/* The papers' figures as data, and the values of their curves. */
#include "figures.h"

#include "clmgk/counts.h"
#include "work.h"

#include <math.h>

/* ---- models --------------------------------------------------------------------------------------------------- */

/* MGK paper, A.1.1 and A.1.2: of the Long Range Arena heads of 32; of WikiText-103 as many tokens as its paper counts.
 */
static const figure_model wikitext = {"wikitext-103", 16, 1024, 8, 0, 1024, 1, 2048, 267735};
static const figure_model medium = {"wikitext-103 medium", 16, 256, 8, 0, 384, 1, 2048, 267735};
static const figure_model retrieval = {"lra-retrieval", 2, 64, 8, 32, 4096, 2, 128, 0}; /* of two documents */
static const figure_model listops = {"lra-listops", 2, 64, 8, 32, 2048, 1, 128, 0};
static const figure_model reviews = {"lra-text", 2, 64, 8, 32, 4096, 1, 128, 0};

/* The attention layer alone. */
static const figure_model layer = {"layer", 1, 512, 8, 0, 1024, 1, 0, 0};
static const figure_model lra_layer = {"lra-layer", 1, 64, 8, 32, 4096, 1, 0, 0};

/* Stages of Swin-T that FiSH mixes: layers, width, heads, and windows of 49 tokens. */
static const struct {
    figure_model model;
    int64_t global, windows;
} swin_stages[] = {{{"swin-t, third stage", 6, 384, 12, 32, 49, 1, 0, 0}, 6, 4},
                   {{"swin-t, fourth stage", 2, 768, 24, 32, 49, 1, 0, 0}, 12, 1}};

/* ---- curves --------------------------------------------------------------------------------------------------- */

static const int64_t at_lengths[] = {128, 256, 512, 1024, 2048, 4096, 8192};
static const int64_t at_widths[] = {256, 512, 1024, 2048, 4096};
static const int64_t at_heads[] = {2, 4, 8, 12};
static const int64_t at_few_heads[] = {1, 2, 4, 8};
static const int64_t at_many_heads[] = {2, 4, 8, 16, 32};
static const int64_t at_components[] = {1, 2, 3, 4, 5, 6, 7, 8};

/* One variant at all model widths. */
#define OVER_WIDTHS(variant, share, components)                                                                        \
    {"D 256", variant, share, components, 256, FIGURE_OF_PANEL, false},                                                \
        {"D 512", variant, share, components, 512, FIGURE_OF_PANEL, false},                                            \
        {"D 1024", variant, share, components, 1024, FIGURE_OF_PANEL, false},                                          \
        {"D 2048", variant, share, components, 2048, FIGURE_OF_PANEL, false},                                          \
    {                                                                                                                  \
        "D 4096", variant, share, components, 4096, FIGURE_OF_PANEL, false                                             \
    }
#define PARAMETER_CURVES(variant, share, components)                                                                   \
    {"total", variant, share, components, 0, FIGURE_ALL_PARAMETERS, false},                                            \
    {                                                                                                                  \
        "without embedding", variant, share, components, 0, FIGURE_PARAMETERS, false                                   \
    }
#define MEMORY_CURVES(variant, share, components)                                                                      \
    {"inference", variant, share, components, 0, FIGURE_INFERENCE_MEMORY, false},                                      \
    {                                                                                                                  \
        "training", variant, share, components, 0, FIGURE_TRAINING_MEMORY, false                                       \
    }
#define CURVE(label, variant, share, components)                                                                       \
    {                                                                                                                  \
        label, variant, share, components, 0, FIGURE_OF_PANEL, false                                                   \
    }

static const figure_curve mgk_widths[] = {OVER_WIDTHS(CLMGK_VARIANT_MGK, 2, 2)};
static const figure_curve mgk_parameters[] = {PARAMETER_CURVES(CLMGK_VARIANT_MGK, 2, 2)};
static const figure_curve mgk_memory[] = {MEMORY_CURVES(CLMGK_VARIANT_MGK, 2, 2)};
static const figure_curve mlk_widths[] = {OVER_WIDTHS(CLMGK_VARIANT_MLK, 2, 2)};
static const figure_curve mlk_parameters[] = {PARAMETER_CURVES(CLMGK_VARIANT_MLK, 2, 2)};
static const figure_curve mlk_memory[] = {MEMORY_CURVES(CLMGK_VARIANT_MLK, 2, 2)};
static const figure_curve gfish_widths[] = {OVER_WIDTHS(CLMGK_VARIANT_GFISH, 1, 2)};
static const figure_curve gfish_parameters[] = {PARAMETER_CURVES(CLMGK_VARIANT_GFISH, 1, 2)};

static const figure_curve mgk_heads[] = {CURVE("softmax", CLMGK_VARIANT_SOFTMAX, 1, 0),
                                         CURVE("MGK, half the heads", CLMGK_VARIANT_MGK, 2, 2)};
static const figure_curve mlk_heads[] = {CURVE("linear", CLMGK_VARIANT_LINEAR, 1, 0),
                                         CURVE("MLK, half the heads", CLMGK_VARIANT_MLK, 2, 2)};
/* How the prior is found: by gradients, by the M-step. */
static const figure_curve learning[] = {CURVE("sMGK", CLMGK_VARIANT_SMGK, 1, 2),
                                        CURVE("MGK", CLMGK_VARIANT_MGK, 1, 2),
                                        {"MGK soft or hard E", CLMGK_VARIANT_MGK, 1, 2, 0, FIGURE_OF_PANEL, true}};

static const figure_curve fish_kinds[] = {
    CURVE("FiSH", CLMGK_VARIANT_FISH, 1, 2), CURVE("hard FiSH", CLMGK_VARIANT_HARD_FISH, 1, 2),
    CURVE("GFiSH", CLMGK_VARIANT_GFISH, 1, 2), CURVE("hard GFiSH", CLMGK_VARIANT_HARD_GFISH, 1, 2)};
static const figure_curve gfish_globals[] = {CURVE("2 global heads", CLMGK_VARIANT_GFISH, 1, 2),
                                             CURVE("4 global heads", CLMGK_VARIANT_GFISH, 1, 4),
                                             CURVE("6 global heads", CLMGK_VARIANT_GFISH, 1, 6)};

static const figure_curve mixture[] = {
    CURVE("gaussian", CLMGK_VARIANT_GAUSSIAN, 1, 1), CURVE("mgk", CLMGK_VARIANT_MGK, 1, 2),
    CURVE("mgk, half the heads", CLMGK_VARIANT_MGK, 2, 2), CURVE("smgk", CLMGK_VARIANT_SMGK, 1, 2),
    CURVE("smgk, half the heads", CLMGK_VARIANT_SMGK, 2, 2)};
static const figure_curve linear[] = {
    CURVE("mlk", CLMGK_VARIANT_MLK, 1, 2), CURVE("mlk, half the heads", CLMGK_VARIANT_MLK, 2, 2),
    CURVE("smlk", CLMGK_VARIANT_SMLK, 1, 2), CURVE("smlk, half the heads", CLMGK_VARIANT_SMLK, 2, 2)};
static const figure_curve admixture[] = {
    CURVE("fish", CLMGK_VARIANT_FISH, 1, 2),
    CURVE("hard-fish", CLMGK_VARIANT_HARD_FISH, 1, 2),
    CURVE("mish", CLMGK_VARIANT_MISH, 1, 2),
    CURVE("hard-mish", CLMGK_VARIANT_HARD_MISH, 1, 2),
    CURVE("gfish", CLMGK_VARIANT_GFISH, 1, 2),
    CURVE("hard-gfish", CLMGK_VARIANT_HARD_GFISH, 1, 2),
    CURVE("talking-heads", CLMGK_VARIANT_TALKING_HEADS, 1, 2),
};
static const figure_curve linear_admixture[] = {
    CURVE("lfish", CLMGK_VARIANT_LFISH, 1, 2),   CURVE("lhard-fish", CLMGK_VARIANT_LHARD_FISH, 1, 2),
    CURVE("lmish", CLMGK_VARIANT_LMISH, 1, 2),   CURVE("lhard-mish", CLMGK_VARIANT_LHARD_MISH, 1, 2),
    CURVE("lgfish", CLMGK_VARIANT_LGFISH, 1, 2), CURVE("lhard-gfish", CLMGK_VARIANT_LHARD_GFISH, 1, 2),
};

/* ---- panels --------------------------------------------------------------------------------------------------- */

#define SOFTMAX     CLMGK_VARIANT_SOFTMAX
#define LINEAR      CLMGK_VARIANT_LINEAR
#define LIST(array) (array), TOOL_COUNT(array)
#define NOT_MEASURED                                                                                                   \
    {                                                                                                                  \
        0, 0, 0                                                                                                        \
    }
#define LAYERS                                                                                                         \
    {                                                                                                                  \
        512, 256, 2048                                                                                                 \
    } /* these lengths */
#define LRA_HEADS                                                                                                      \
    {                                                                                                                  \
        64, 2, 8                                                                                                       \
    }

/* Of a 4-head mixture and an 8-head baseline: the model as in the paper, and its attention layer. */
#define HALF_PANELS(over, sizes, bytes, base)                                                                          \
    {"A: training, model", FIGURE_TRAINING, FIGURE_LENGTH, &wikitext, 1, true, base,                                   \
     LIST(at_lengths),     LIST(over),      NOT_MEASURED},                                                             \
        {"B: inference, model", FIGURE_INFERENCE, FIGURE_LENGTH, &wikitext, 1, true, base,                             \
         LIST(at_lengths),      LIST(over),       NOT_MEASURED},                                                       \
        {"C: parameters, model", FIGURE_PARAMETERS, FIGURE_WIDTH, &wikitext, 1, true, base,                            \
         LIST(at_widths),        LIST(sizes),       NOT_MEASURED},                                                     \
        {"training, attention layer",                                                                                  \
         FIGURE_TRAINING,                                                                                              \
         FIGURE_LENGTH,                                                                                                \
         &layer,                                                                                                       \
         1,                                                                                                            \
         true,                                                                                                         \
         base,                                                                                                         \
         LIST(at_lengths),                                                                                             \
         LIST(over),                                                                                                   \
         LAYERS},                                                                                                      \
        {"inference, attention layer",                                                                                 \
         FIGURE_INFERENCE,                                                                                             \
         FIGURE_LENGTH,                                                                                                \
         &layer,                                                                                                       \
         1,                                                                                                            \
         true,                                                                                                         \
         base,                                                                                                         \
         LIST(at_lengths),                                                                                             \
         LIST(over),                                                                                                   \
         LAYERS},                                                                                                      \
    {                                                                                                                  \
        "memory, attention layer, D 512", FIGURE_INFERENCE_MEMORY, FIGURE_LENGTH, &layer, 1, true, base,               \
            LIST(at_lengths), LIST(bytes), LAYERS                                                                      \
    }
static const figure_panel mgk_3[] = {HALF_PANELS(mgk_widths, mgk_parameters, mgk_memory, SOFTMAX)};
static const figure_panel mgk_10[] = {HALF_PANELS(mlk_widths, mlk_parameters, mlk_memory, LINEAR)};

#define OVER_HEADS(title, quantity, model, batch, base, curves, measured)                                              \
    {                                                                                                                  \
        title, quantity, FIGURE_HEADS, model, batch, false, base, LIST(at_heads), LIST(curves), measured               \
    }
static const figure_panel mgk_4[] = {
    OVER_HEADS("operations, softmax and MGK", FIGURE_INFERENCE, &retrieval, 1, SOFTMAX, mgk_heads, NOT_MEASURED),
    OVER_HEADS("parameters, softmax and MGK", FIGURE_PARAMETERS, &retrieval, 1, SOFTMAX, mgk_heads, NOT_MEASURED),
    OVER_HEADS("one layer of one sequence", FIGURE_INFERENCE, &lra_layer, 1, SOFTMAX, mgk_heads, LRA_HEADS),
    OVER_HEADS("operations, linear and MLK", FIGURE_INFERENCE, &retrieval, 1, LINEAR, mlk_heads, NOT_MEASURED),
    OVER_HEADS("parameters, linear and MLK", FIGURE_PARAMETERS, &retrieval, 1, LINEAR, mlk_heads, NOT_MEASURED),
    OVER_HEADS("one layer of one sequence", FIGURE_INFERENCE, &lra_layer, 1, LINEAR, mlk_heads, LRA_HEADS)};
static const figure_panel mgk_15[] = {
    OVER_HEADS("softmax and MGK, batch 32", FIGURE_TRAINING, &retrieval, 32, SOFTMAX, mgk_heads, NOT_MEASURED),
    OVER_HEADS("one layer of one sequence", FIGURE_TRAINING, &lra_layer, 1, SOFTMAX, mgk_heads, LRA_HEADS),
    OVER_HEADS("linear and MLK, batch 32", FIGURE_TRAINING, &retrieval, 32, LINEAR, mlk_heads, NOT_MEASURED),
    OVER_HEADS("one layer of one sequence", FIGURE_TRAINING, &lra_layer, 1, LINEAR, mlk_heads, LRA_HEADS)};

#define OF_TASKS(quantity, batch)                                                                                      \
    {"retrieval", quantity, FIGURE_HEADS,       &retrieval,     batch,                                                 \
     false,       SOFTMAX,  LIST(at_few_heads), LIST(learning), NOT_MEASURED},                                         \
        {"listops", quantity, FIGURE_HEADS,       &listops,       batch,                                               \
         false,     SOFTMAX,  LIST(at_few_heads), LIST(learning), NOT_MEASURED},                                       \
    {                                                                                                                  \
        "text", quantity, FIGURE_HEADS, &reviews, batch, false, SOFTMAX, LIST(at_few_heads), LIST(learning),           \
            NOT_MEASURED                                                                                               \
    }
static const figure_panel mgk_8[] = {OF_TASKS(FIGURE_PARAMETERS, 1), OF_TASKS(FIGURE_INFERENCE, 1)};
static const figure_panel mgk_16[] = {OF_TASKS(FIGURE_TRAINING, 32)};

#define OF_FISH(title, quantity, axis, at, curves, ratio)                                                              \
    {                                                                                                                  \
        title, quantity, axis, &wikitext, 1, ratio, SOFTMAX, LIST(at), LIST(curves), NOT_MEASURED                      \
    }
static const figure_panel fish_3[] = {
    OF_FISH("A: training, model", FIGURE_TRAINING, FIGURE_LENGTH, at_lengths, gfish_widths, true),
    OF_FISH("B: inference, model", FIGURE_INFERENCE, FIGURE_LENGTH, at_lengths, gfish_widths, true),
    OF_FISH("C: parameters, model", FIGURE_PARAMETERS, FIGURE_WIDTH, at_widths, gfish_parameters, true),
    {"training, attention layer", FIGURE_TRAINING, FIGURE_LENGTH, &layer, 1, true, SOFTMAX, LIST(at_lengths),
     LIST(gfish_widths), LAYERS},
    {"inference, attention layer", FIGURE_INFERENCE, FIGURE_LENGTH, &layer, 1, true, SOFTMAX, LIST(at_lengths),
     LIST(gfish_widths), LAYERS},
    OF_FISH("D: memory at inference, model", FIGURE_INFERENCE_MEMORY, FIGURE_LENGTH, at_lengths, gfish_widths, true)};
static const figure_panel fish_6[] = {
    OF_FISH("training, D 1024", FIGURE_TRAINING, FIGURE_LENGTH, at_lengths, fish_kinds, false),
    OF_FISH("inference, D 1024", FIGURE_INFERENCE, FIGURE_LENGTH, at_lengths, fish_kinds, false),
    OF_FISH("parameters with embedding", FIGURE_ALL_PARAMETERS, FIGURE_WIDTH, at_widths, fish_kinds, false),
    OF_FISH("memory at inference, N 1024", FIGURE_INFERENCE_MEMORY, FIGURE_WIDTH, at_widths, fish_kinds, false)};
static const figure_panel fish_7[] = {
    OF_FISH("training, D 1024", FIGURE_TRAINING, FIGURE_LENGTH, at_lengths, gfish_globals, true),
    OF_FISH("inference, D 1024", FIGURE_INFERENCE, FIGURE_LENGTH, at_lengths, gfish_globals, true)};
static const figure_panel fish_8[] = {
    OF_FISH("parameters with embedding", FIGURE_ALL_PARAMETERS, FIGURE_WIDTH, at_widths, gfish_globals, true),
    OF_FISH("parameters without embedding", FIGURE_PARAMETERS, FIGURE_WIDTH, at_widths, gfish_globals, true),
    OF_FISH("memory at inference, N 1024", FIGURE_INFERENCE_MEMORY, FIGURE_WIDTH, at_widths, gfish_globals, true)};

/* Every variant of a family, in the layer of width 512 and N = 1024 but for the axis. */
#define OF_AXIS(title, quantity, axis, at, base, curves)                                                               \
    {                                                                                                                  \
        title, quantity, axis, &layer, 1, true, base, LIST(at), LIST(curves), NOT_MEASURED                             \
    }
#define OF_FAMILY(quantity, name, base, curves)                                                                        \
    OF_AXIS(name " over N", quantity, FIGURE_LENGTH, at_lengths, base, curves),                                        \
        OF_AXIS(name " over D", quantity, FIGURE_WIDTH, at_widths, base, curves),                                      \
        OF_AXIS(name " over H", quantity, FIGURE_HEADS, at_many_heads, base, curves),                                  \
        OF_AXIS(name " over M", quantity, FIGURE_COMPONENTS, at_components, base, curves)
#define FAMILY(base, curves)                                                                                           \
    OF_FAMILY(FIGURE_INFERENCE, "forward", base, curves), OF_FAMILY(FIGURE_TRAINING, "training", base, curves),        \
        OF_FAMILY(FIGURE_PARAMETERS, "parameters", base, curves),                                                      \
        OF_FAMILY(FIGURE_INFERENCE_MEMORY, "memory", base, curves)
static const figure_panel all_mixture[] = {FAMILY(SOFTMAX, mixture)};
static const figure_panel all_linear[] = {FAMILY(LINEAR, linear)};
static const figure_panel all_admixture[] = {FAMILY(SOFTMAX, admixture)};
static const figure_panel all_linear_admixture[] = {FAMILY(LINEAR, linear_admixture)};

const figure bench_figures[] = {
    {"mgk-3", "MGK with 4 heads / softmax with 8 (MGK paper, Fig. 3)", 3, LIST(mgk_3)},
    {"mgk-4", "Cost of MGK and MLK over the number of heads (MGK paper, Fig. 4)", 3, LIST(mgk_4)},
    {"mgk-8", "Ways of learning MGK, inference (MGK paper, Fig. 8)", 3, LIST(mgk_8)},
    {"mgk-10", "MLK with 4 heads / linear with 8 (MGK paper, Fig. 10)", 3, LIST(mgk_10)},
    {"mgk-15", "Training over the number of heads (MGK paper, Fig. 15)", 2, LIST(mgk_15)},
    {"mgk-16", "Ways of learning MGK, training (MGK paper, Fig. 16)", 3, LIST(mgk_16)},
    {"fish-3", "GFiSH with 2 global heads / softmax with 8 (FiSH paper, Fig. 3)", 3, LIST(fish_3)},
    {"fish-6", "Kinds of FiSH, 2 global heads (FiSH paper, Fig. 6)", 2, LIST(fish_6)},
    {"fish-7", "GFiSH / softmax with 8 heads, operations (FiSH paper, Fig. 7)", 2, LIST(fish_7)},
    {"fish-8", "GFiSH / softmax with 8 heads, parameters and memory (FiSH paper, Fig. 8)", 3, LIST(fish_8)},
    {"mixture", "Mixtures of keys / softmax: layer of width 512, 8 heads, M = 2, N = 1024", 4, LIST(all_mixture)},
    {"linear", "Linear mixtures of keys / linear: layer of width 512, 8 heads, M = 2, N = 1024", 4, LIST(all_linear)},
    {"admixture", "Mixed heads / softmax: layer of width 512, 8 heads, M = 2, N = 1024", 4, LIST(all_admixture)},
    {"linear-admixture", "Linear forms of mixed heads / linear: layer of width 512, 8 heads, M = 2, N = 1024", 4,
     LIST(all_linear_admixture)}};
const size_t bench_figure_count = TOOL_COUNT(bench_figures);

const char *figure_quantity_name(figure_quantity quantity)
{
    static const char *const names[FIGURE_QUANTITIES] = {[FIGURE_INFERENCE] = "inference_operations",
                                                         [FIGURE_TRAINING] = "training_operations",
                                                         [FIGURE_PARAMETERS] = "parameters",
                                                         [FIGURE_ALL_PARAMETERS] = "all_parameters",
                                                         [FIGURE_INFERENCE_MEMORY] = "inference_memory",
                                                         [FIGURE_TRAINING_MEMORY] = "training_memory"};
    return names[quantity];
}

const char *figure_axis_name(figure_axis axis)
{
    static const char *const names[FIGURE_AXES] = {[FIGURE_LENGTH] = "length",
                                                   [FIGURE_WIDTH] = "width",
                                                   [FIGURE_HEADS] = "heads",
                                                   [FIGURE_COMPONENTS] = "components"};
    return names[axis];
}

/* ---- values --------------------------------------------------------------------------------------------------- */

static clmgk_attention_desc describe(const figure_setting *setting)
{
    const uint32_t traits = clmgk_variant_traits(setting->variant);
    const bool components = (traits & (CLMGK_TRAIT_KEYS | CLMGK_TRAIT_SHIFT)) != 0;
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = setting->variant;
    desc.batch = setting->batch * setting->model->sequences;
    desc.heads = setting->heads;
    desc.components = components || (traits & CLMGK_TRAIT_ADMIXTURE) ? setting->components : 0;
    desc.length = setting->length;
    desc.head_size = setting->head_size;
    desc.prior_shape = components && !setting->given_prior ? CLMGK_PRIOR_HM : CLMGK_PRIOR_UNIFORM;
    desc.shared_noise = (traits & CLMGK_TRAIT_NOISE) != 0; /* as the FiSH paper counts it */
    desc.use_mix_weight = (traits & CLMGK_TRAIT_GENERALISED) != 0;
    desc.use_mix_offset = desc.use_mix_weight && !(traits & CLMGK_TRAIT_LINEAR);
    return desc;
}

/* Of a layer's feed-forward network: two products, and those of the gradients of weights, X and hidden units. */
static double count_feed_forward(const figure_setting *setting, bool training)
{
    const double rows = (double)(setting->batch * setting->model->sequences * setting->length);
    const double width = (double)setting->width, hidden = (double)setting->model->feed_forward;
    if (setting->model->feed_forward == 0)
        return 0;
    const double terms = 2 * rows * width * hidden, results = rows * (width + hidden);
    return 2 * terms - results + (training ? 4 * terms - results - 2 * width * hidden : 0);
}

/* Elements of X, Y, the hidden units, Q, K, V and O of a layer. */
static double count_elements(const figure_setting *setting)
{
    const uint32_t traits = clmgk_variant_traits(setting->variant);
    const double rows = (double)(setting->batch * setting->model->sequences * setting->length);
    const int64_t of_keys = traits & CLMGK_TRAIT_KEYS ? setting->heads * setting->components : setting->heads;
    const bool mixed = tool_is_mixed(setting->variant);
    const int64_t vectors = mixed ? 2 * setting->components + 2 * setting->heads : of_keys + 3 * setting->heads;
    return rows * (double)(2 * setting->width + setting->model->feed_forward + vectors * setting->head_size);
}

static tool_exit count(const figure_setting *setting, figure_quantity quantity, double *value, tool_error *error)
{
    const clmgk_attention_desc desc = describe(setting);
    const figure_model *const model = setting->model;
    const double layers = (double)model->layers, width = (double)setting->width;
    clmgk_counts counts = CLMGK_COUNTS_INIT;
    TOOL_TRY(tool_check_library(
        clmgk_count_attention(&desc, setting->width, 0, setting->width, &counts, &error->library), error));
    const double forward = clmgk_sum_operations(&counts, CLMGK_PASS_FORWARD, CLMGK_PART_ALL);
    const double backward = clmgk_sum_operations(&counts, CLMGK_PASS_BACKWARD, CLMGK_PART_ALL);
    const double parameters =
        layers * (clmgk_sum_parameters(&counts, CLMGK_PART_ALL) + 2 * width * (double)model->feed_forward);
    const double all = parameters + width * (double)model->vocabulary, elements = count_elements(setting);
    const double values[FIGURE_QUANTITIES] = {
        [FIGURE_INFERENCE] = layers * (forward + count_feed_forward(setting, false)),
        [FIGURE_TRAINING] = layers * (forward + backward + count_feed_forward(setting, true)),
        [FIGURE_PARAMETERS] = parameters,
        [FIGURE_ALL_PARAMETERS] = all,
        [FIGURE_INFERENCE_MEMORY] = sizeof(float) * (all + elements),
        [FIGURE_TRAINING_MEMORY] = sizeof(float) * (2 * all + (layers + 1) * elements)};
    *value = values[quantity];
    return TOOL_DONE;
}

/* The setting of a variant with `share` of the heads, at a place of the panel's axis. */
static figure_setting set(const figure_panel *panel, const figure_curve *curve, clmgk_variant variant, int64_t share,
                          int64_t at)
{
    const figure_model *const model = panel->model;
    const int64_t of_axis[FIGURE_AXES] = {[FIGURE_LENGTH] = model->length,
                                          [FIGURE_WIDTH] = curve->width ? curve->width : model->width,
                                          [FIGURE_HEADS] = model->heads,
                                          [FIGURE_COMPONENTS] = curve->components};
    int64_t given[FIGURE_AXES];
    for (figure_axis axis = 0; axis < FIGURE_AXES; axis++)
        given[axis] = axis == panel->axis ? at : of_axis[axis];
    const int64_t own_heads = TOOL_MAX(given[FIGURE_HEADS] / share, 1);
    const bool square = (clmgk_variant_traits(variant) & CLMGK_TRAIT_SQUARE) != 0;
    return (figure_setting){.model = model,
                            .variant = variant,
                            .heads = own_heads,
                            .components = square ? own_heads : given[FIGURE_COMPONENTS],
                            .width = given[FIGURE_WIDTH],
                            .head_size = model->head_size ? model->head_size : given[FIGURE_WIDTH] / model->heads,
                            .length = given[FIGURE_LENGTH],
                            .batch = panel->batch,
                            .given_prior = curve->given_prior};
}

tool_exit figure_count_point(const figure_panel *panel, const figure_curve *curve, size_t at, figure_point *point,
                             tool_error *error)
{
    const int64_t place = panel->at[at];
    *point = (figure_point){.panel = panel,
                            .curve = curve,
                            .quantity = curve->quantity == FIGURE_OF_PANEL ? panel->quantity : curve->quantity,
                            .at = place,
                            .own = set(panel, curve, curve->variant, curve->share, place),
                            .baseline = set(panel, curve, panel->baseline, 1, place)};
    point->measurable = panel->measured.high > 0 && point->own.width == panel->measured.width &&
                        place >= panel->measured.low && place <= panel->measured.high;
    TOOL_TRY(count(&point->own, point->quantity, &point->value, error));
    return count(&point->baseline, point->quantity, &point->baseline_value, error);
}

double figure_drawn(const figure_point *point)
{
    return point->panel->ratio ? point->value / point->baseline_value : point->value;
}

double figure_drawn_measured(const figure_point *point)
{
    if (!point->panel->ratio)
        return point->measured;
    return point->baseline_measured > 0 ? point->measured / point->baseline_measured : 0;
}

/* ---- claims --------------------------------------------------------------------------------------------------- */

/* The largest part of operations that GFiSH saves in the FiSH paper's Fig. 3, A and B. */
static tool_exit count_largest_saving(double *saved, tool_error *error)
{
    *saved = 0;
    for (const figure_panel *panel = fish_3; panel < fish_3 + 2; panel++) {
        for (size_t c = 0; c < panel->curve_count; c++) {
            for (size_t i = 0; i < panel->at_count; i++) {
                figure_point point;
                TOOL_TRY(figure_count_point(panel, &panel->curves[c], i, &point, error));
                *saved = fmax(*saved, 1 - figure_drawn(&point));
            }
        }
    }
    return TOOL_DONE;
}

/* What hard GFiSH saves in Swin-T's last two stages: multiplications, which that table counts, and parameters. */
static tool_exit count_swin(double *multiplications, double *parameters, tool_error *error)
{
    *multiplications = *parameters = 0;
    for (size_t i = 0; i < TOOL_COUNT(swin_stages); i++) {
        const figure_model *const model = &swin_stages[i].model;
        for (int mixed = 0; mixed < 2; mixed++) {
            const figure_setting setting = {.model = model,
                                            .variant = mixed ? CLMGK_VARIANT_HARD_GFISH : SOFTMAX,
                                            .heads = model->heads,
                                            .components = swin_stages[i].global,
                                            .width = model->width,
                                            .head_size = model->head_size,
                                            .length = model->length,
                                            .batch = swin_stages[i].windows};
            const clmgk_attention_desc desc = describe(&setting);
            const double sign = mixed ? -(double)model->layers : (double)model->layers;
            clmgk_counts counts = CLMGK_COUNTS_INIT;
            TOOL_TRY(tool_check_library(
                clmgk_count_attention(&desc, model->width, 0, model->width, &counts, &error->library), error));
            for (clmgk_part part = 0; part < CLMGK_PARTS; part++)
                *multiplications += sign * counts.forward[part].multiplications;
            *parameters += sign * clmgk_sum_parameters(&counts, CLMGK_PART_ALL);
        }
    }
    return TOOL_DONE;
}

tool_exit figure_count_claims(figure_claim claims[FIGURE_CLAIMS], tool_error *error)
{
    const figure_setting baseline = {.model = &medium,
                                     .variant = SOFTMAX,
                                     .heads = medium.heads,
                                     .width = medium.width,
                                     .head_size = medium.width / medium.heads,
                                     .length = medium.length,
                                     .batch = 1};
    double saved = 0, multiplications = 0, fewer = 0, parameters = 0;
    TOOL_TRY(count_largest_saving(&saved, error));
    TOOL_TRY(count_swin(&multiplications, &fewer, error));
    TOOL_TRY(count(&baseline, FIGURE_ALL_PARAMETERS, &parameters, error));
    const figure_claim found[FIGURE_CLAIMS] = {
        {"MGK paper, section 3.2", "parameters of the medium softmax model of WikiText-103", "10^6", 90, false,
         1e-6 * parameters},
        {"FiSH paper, Appendix C, Fig. 3", "operations that GFiSH with 2 of 8 heads saves, at most", "%", 30, true,
         100 * saved},
        {"FiSH paper, Table 4", "operations that hard GFiSH 6/12 saves in Swin-T: 4.51 - 4.27", "10^9 multiply-adds",
         0.24, false, 1e-9 * multiplications},
        {"FiSH paper, Table 4", "parameters that it saves: 28.3 - 26.2", "10^6", 2.1, false, 1e-6 * fewer}};
    for (size_t i = 0; i < FIGURE_CLAIMS; i++)
        claims[i] = found[i];
    return TOOL_DONE;
}
