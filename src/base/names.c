/* SPDX-License-Identifier: Apache-2.0 */
/* Names of the public enumerations, from their lists; and back. */
#include "base/base.h"
#include "clmgk/layer.h"
#include "clmgk/tuning.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct name_row {
    const char *name; /* NULL: the list's end */
    int value;
} name_row;

/* An enumeration. */
typedef struct name_list {
    const char *noun; /* for messages */
    const name_row *rows;
} name_list;

/* clang-format off */
#define LIST(noun, ...) {noun, (const name_row[]){__VA_ARGS__ {NULL, 0}}}
/* clang-format on */
#define STATUS_ROW(NAME, value, text)        {#NAME, value},
#define VARIANT_ROW(NAME, value, name, ...)  {name, value},
#define ENGINE_ROW(NAME, value, name)        {#name, value},
#define ROW(NAME, value, name)               {name, value},
#define DTYPE_ROW(NAME, value, name, ...)    {name, value},
#define ARRAY_ROW(NAME, field, ...)          {#field, CLMGK_ARRAY_##NAME},
#define GRADIENT_ROW(NAME, field, ...)       {"grad_" #field, CLMGK_ARRAY_GRAD_##NAME},
#define LAYER_ARRAY_ROW(NAME, field, ...)    {#field, CLMGK_LAYER_ARRAY_##NAME},
#define LAYER_GRADIENT_ROW(NAME, field, ...) {"grad_" #field, CLMGK_LAYER_ARRAY_GRAD_##NAME},

static const name_list statuses = LIST("status", CLMGK_STATUS_LIST(STATUS_ROW));
static const name_list variants = LIST("variant", CLMGK_VARIANT_LIST(VARIANT_ROW));
static const name_list dtypes = LIST("dtype", CLMGK_DTYPE_LIST(DTYPE_ROW) CLMGK_CACHE_DTYPE_LIST(DTYPE_ROW));
static const name_list precisions = LIST("precision", CLMGK_PRECISION_LIST(ROW));
static const name_list scores = LIST("score", CLMGK_SCORE_LIST(ROW));
static const name_list esteps = LIST("estep", CLMGK_ESTEP_LIST(ROW));
static const name_list alignments = LIST("alignment", CLMGK_ALIGNMENT_LIST(ROW));
static const name_list features = LIST("feature", CLMGK_FEATURE_LIST(ROW));
static const name_list engines = LIST("engine", {"auto", CLMGK_ENGINE_AUTO}, CLMGK_ENGINE_LIST(ENGINE_ROW));
static const name_list arrays = LIST("array", CLMGK_ARRAY_LIST(ARRAY_ROW, GRADIENT_ROW, ARRAY_ROW));
static const name_list passes = LIST("pass", CLMGK_PASS_LIST(ROW));
static const name_list device_classes = LIST("device class", CLMGK_DEVICE_CLASS_LIST(ROW));
static const name_list origins = LIST("program origin", CLMGK_PROGRAM_ORIGIN_LIST(ROW));
static const name_list keepers = LIST("program keeper", CLMGK_PROGRAM_KEEPER_LIST(ROW));
static const name_list sources = LIST("tuning source", CLMGK_TUNING_SOURCE_LIST(ROW));

static const name_list norms = LIST("norm", CLMGK_NORM_LIST(ROW));
static const name_list rotaries = LIST("rotary", CLMGK_ROTARY_LIST(ROW));
static const name_list layer_arrays = LIST("layer array", CLMGK_LAYER_ARRAY_LIST(LAYER_ARRAY_ROW, LAYER_GRADIENT_ROW));

static const char *name_of(const name_list *list, int value)
{
    for (const name_row *row = list->rows; row->name != NULL; ++row)
        if (row->value == value)
            return row->name;
    return NULL;
}

static clmgk_status fail_name(const name_list *list, const char *name, clmgk_error *error)
{
    char names[CLMGK_ERROR_MESSAGE_SIZE] = "";
    size_t used = 0;
    for (const name_row *row = list->rows; row->name != NULL && used < sizeof(names); ++row)
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", used > 0 ? ", " : "", row->name);
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: \"%s\": expected one of %s", list->noun, name, names);
}

/* *value, an enumeration of int's size, is written on success alone. */
static clmgk_status from_name(const name_list *list, const char *name, void *value, clmgk_error *error)
{
    _Static_assert(sizeof(clmgk_variant) == sizeof(int) && sizeof(clmgk_array) == sizeof(int), "enumerations are ints");
    if (name == NULL || value == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s", name == NULL ? "name" : list->noun,
                        name == NULL ? "a name" : "room for the value");
    for (const name_row *row = list->rows; row->name != NULL; ++row)
        if (strcmp(row->name, name) == 0) {
            memcpy(value, &row->value, sizeof(row->value));
            return CLMGK_OK;
        }
    return fail_name(list, name, error);
}

const char *clmgk_status_name(clmgk_status status)
{
    const char *const name = name_of(&statuses, (int)status);
    return name != NULL ? name : "unknown";
}

clmgk_status clmgk_status_from_name(const char *name, clmgk_status *status, clmgk_error *error)
{
    return from_name(&statuses, name, status, error);
}

const char *clmgk_variant_name(clmgk_variant variant)
{
    return name_of(&variants, (int)variant);
}

clmgk_status clmgk_variant_from_name(const char *name, clmgk_variant *variant, clmgk_error *error)
{
    return from_name(&variants, name, variant, error);
}

const char *clmgk_dtype_name(clmgk_dtype dtype)
{
    return name_of(&dtypes, (int)dtype);
}

clmgk_status clmgk_dtype_from_name(const char *name, clmgk_dtype *dtype, clmgk_error *error)
{
    return from_name(&dtypes, name, dtype, error);
}

clmgk_dtype_info clmgk_dtype_get_info(clmgk_dtype dtype)
{
#define INFO(NAME, value, name, exponent_bits, significand_bits, has_infinity)                                         \
    [value] = {                                                                                                        \
        name, (1 + (exponent_bits) + (significand_bits)) / 8, exponent_bits, significand_bits, has_infinity, 0.0, 0.0, \
        1},
#define CACHE_INFO(NAME, value, name, exponent_bits, significand_bits, has_infinity, block, bytes)                     \
    [value] = {name, bytes, exponent_bits, significand_bits, has_infinity, 0.0, 0.0, block},
    static const clmgk_dtype_info infos[] = {CLMGK_DTYPE_LIST(INFO) CLMGK_CACHE_DTYPE_LIST(CACHE_INFO)};
#undef INFO
#undef CACHE_INFO
    if ((unsigned)dtype >= MGK_COUNT(infos))
        return (clmgk_dtype_info){0};
    clmgk_dtype_info info = infos[dtype];
    if (info.exponent_bits == 0) { /* integers */
        info.largest = ldexp(1.0, info.significand_bits) - 1.0;
        info.least_normal = 1.0;
        return info;
    }
    const int bias = (1 << (info.exponent_bits - 1)) - 1, bits = info.significand_bits;
    /* the largest significand is 2 - 2^-bits; without infinity its last bit is 0 in the largest exponent */
    info.largest = info.has_infinity ? ldexp(2.0 - ldexp(1.0, -bits), bias) : ldexp(2.0 - ldexp(2.0, -bits), bias + 1);
    info.least_normal = ldexp(1.0, 1 - bias);
    return info;
}

const char *clmgk_precision_name(clmgk_precision precision)
{
    return name_of(&precisions, (int)precision);
}

clmgk_status clmgk_precision_from_name(const char *name, clmgk_precision *precision, clmgk_error *error)
{
    return from_name(&precisions, name, precision, error);
}

const char *clmgk_score_name(clmgk_score score)
{
    return name_of(&scores, (int)score);
}

clmgk_status clmgk_score_from_name(const char *name, clmgk_score *score, clmgk_error *error)
{
    return from_name(&scores, name, score, error);
}

const char *clmgk_estep_name(clmgk_estep estep)
{
    return name_of(&esteps, (int)estep);
}

clmgk_status clmgk_estep_from_name(const char *name, clmgk_estep *estep, clmgk_error *error)
{
    return from_name(&esteps, name, estep, error);
}

const char *clmgk_alignment_name(clmgk_alignment alignment)
{
    return name_of(&alignments, (int)alignment);
}

clmgk_status clmgk_alignment_from_name(const char *name, clmgk_alignment *alignment, clmgk_error *error)
{
    return from_name(&alignments, name, alignment, error);
}

const char *clmgk_feature_name(clmgk_feature feature)
{
    return name_of(&features, (int)feature);
}

clmgk_status clmgk_feature_from_name(const char *name, clmgk_feature *feature, clmgk_error *error)
{
    return from_name(&features, name, feature, error);
}

const char *clmgk_engine_name(clmgk_engine engine)
{
    return name_of(&engines, (int)engine);
}

clmgk_status clmgk_engine_from_name(const char *name, clmgk_engine *engine, clmgk_error *error)
{
    return from_name(&engines, name, engine, error);
}

const char *clmgk_array_name(clmgk_array array)
{
    return name_of(&arrays, (int)array);
}

clmgk_status clmgk_array_from_name(const char *name, clmgk_array *array, clmgk_error *error)
{
    return from_name(&arrays, name, array, error);
}

const char *clmgk_pass_name(clmgk_pass pass)
{
    return name_of(&passes, (int)pass);
}

clmgk_status clmgk_pass_from_name(const char *name, clmgk_pass *pass, clmgk_error *error)
{
    return from_name(&passes, name, pass, error);
}

const char *clmgk_device_class_name(clmgk_device_class device_class)
{
    return name_of(&device_classes, (int)device_class);
}

clmgk_status clmgk_device_class_from_name(const char *name, clmgk_device_class *device_class, clmgk_error *error)
{
    return from_name(&device_classes, name, device_class, error);
}

const char *clmgk_program_origin_name(clmgk_program_origin program_origin)
{
    return name_of(&origins, (int)program_origin);
}

clmgk_status clmgk_program_origin_from_name(const char *name, clmgk_program_origin *program_origin, clmgk_error *error)
{
    return from_name(&origins, name, program_origin, error);
}

const char *clmgk_program_keeper_name(clmgk_program_keeper program_keeper)
{
    return name_of(&keepers, (int)program_keeper);
}

clmgk_status clmgk_program_keeper_from_name(const char *name, clmgk_program_keeper *program_keeper, clmgk_error *error)
{
    return from_name(&keepers, name, program_keeper, error);
}

const char *clmgk_tuning_source_name(clmgk_tuning_source tuning_source)
{
    return name_of(&sources, (int)tuning_source);
}

clmgk_status clmgk_tuning_source_from_name(const char *name, clmgk_tuning_source *tuning_source, clmgk_error *error)
{
    return from_name(&sources, name, tuning_source, error);
}

const char *clmgk_norm_name(clmgk_norm norm)
{
    return name_of(&norms, (int)norm);
}

clmgk_status clmgk_norm_from_name(const char *name, clmgk_norm *norm, clmgk_error *error)
{
    return from_name(&norms, name, norm, error);
}

const char *clmgk_rotary_name(clmgk_rotary rotary)
{
    return name_of(&rotaries, (int)rotary);
}

clmgk_status clmgk_rotary_from_name(const char *name, clmgk_rotary *rotary, clmgk_error *error)
{
    return from_name(&rotaries, name, rotary, error);
}

const char *clmgk_layer_array_name(clmgk_layer_array layer_array)
{
    return name_of(&layer_arrays, (int)layer_array);
}

clmgk_status clmgk_layer_array_from_name(const char *name, clmgk_layer_array *layer_array, clmgk_error *error)
{
    return from_name(&layer_arrays, name, layer_array, error);
}
