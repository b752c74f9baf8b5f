/* SPDX-License-Identifier: Apache-2.0 */
#include "offline/steps.h"

#include "attention/core/formulas.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A number of the descriptor, by its name; of the dropout and the soft-cap their bits. */
typedef struct field {
    const char *name;
    size_t offset, size;
} field;

#define FIELD(name)                                                                                                    \
    {                                                                                                                  \
#name, offsetof(clmgk_attention_desc, name), sizeof(((clmgk_attention_desc *)0)->name)                         \
    }
#define STRIDE(layout, axis)                                                                                           \
    {                                                                                                                  \
#layout "." #axis, offsetof(clmgk_attention_desc, layout) + offsetof(clmgk_layout, axis), sizeof(int64_t)      \
    }
#define STRIDES(layout) STRIDE(layout, batch), STRIDE(layout, head), STRIDE(layout, component), STRIDE(layout, token)

static const field fields[] = {
    FIELD(batch),       FIELD(heads),         FIELD(kv_heads),     FIELD(components),  FIELD(length),
    FIELD(length_k),    FIELD(head_size),     FIELD(value_size),   FIELD(causal),      FIELD(alignment),
    FIELD(use_window),  FIELD(window_left),   FIELD(window_right), FIELD(sequences),   FIELD(use_offsets_k),
    FIELD(use_lengths), FIELD(use_lengths_q), FIELD(use_sinks),    FIELD(gradients),   FIELD(variant),
    FIELD(dtype),       FIELD(dtype_k),       FIELD(dtype_v),      FIELD(dtype_o),     FIELD(estep),
    FIELD(statistics),  FIELD(prior_shape),   FIELD(dropout),      FIELD(softcap),     FIELD(use_scale_k),
    FIELD(use_scale_v), FIELD(page_size),     FIELD(pages),        FIELD(table_pages), STRIDES(q),
    STRIDES(k),         STRIDES(v),           STRIDES(o),          STRIDES(lse),       STRIDES(grad_o),
    STRIDES(grad_q),    STRIDES(grad_k),      STRIDES(grad_v),     STRIDES(scale_k),   STRIDES(scale_v),
};

static int64_t get(const clmgk_attention_desc *desc, const field *f)
{
    const unsigned char *const at = (const unsigned char *)desc + f->offset;
    int64_t wide = 0;
    int32_t narrow = 0;
    if (f->size == sizeof(wide))
        memcpy(&wide, at, sizeof(wide));
    else
        memcpy(&narrow, at, sizeof(narrow));
    return f->size == sizeof(wide) ? wide : narrow;
}

static void set(clmgk_attention_desc *desc, const field *f, int64_t value)
{
    unsigned char *const at = (unsigned char *)desc + f->offset;
    const int32_t narrow = (int32_t)value;
    if (f->size == sizeof(value))
        memcpy(at, &value, sizeof(value));
    else
        memcpy(at, &narrow, sizeof(narrow));
}

/* A number, or a variant's or storage type's name; false: neither. */
static bool parse(const char *text, int64_t *value)
{
    enum { BASE = 10, MOST = 64 };
    char *end = NULL;
    *value = strtoll(text, &end, BASE);
    if (end != text && *end == '\0')
        return true;
    for (int i = 0; i < MOST; ++i) {
        const char *const variant = clmgk_variant_name((clmgk_variant)i);
        const char *const dtype = i < CLMGK_ALL_DTYPES ? clmgk_dtype_name((clmgk_dtype)i) : NULL;
        *value = i;
        if ((variant != NULL && strcmp(text, variant) == 0) || (dtype != NULL && strcmp(text, dtype) == 0))
            return true;
    }
    return false;
}

/* A layout with strides of its own says so. */
static void mark_strided(clmgk_attention_desc *desc)
{
    clmgk_layout *const layouts[] = {&desc->q,      &desc->k,      &desc->v,      &desc->o,     &desc->lse,
                                     &desc->grad_o, &desc->grad_q, &desc->grad_k, &desc->grad_v};
    for (size_t i = 0; i < MGK_COUNT(layouts); ++i)
        layouts[i]->strided = layouts[i]->token != 0;
}

/* Sets the field, or `parameters`, that the text names; false: there is none. */
static bool apply(const char *text, clmgk_attention_desc *desc, const char **parameters)
{
    const struct {
        const char *name, **to;
    } strings[] = {{"parameters", parameters}, {"score_mod", &desc->score_mod}, {"mask_mod", &desc->mask_mod}};
    const char *const value = strchr(text, '=');
    const size_t length = value == NULL ? 0 : (size_t)(value - text);
    for (size_t i = 0; i < MGK_COUNT(strings); ++i)
        if (length == strlen(strings[i].name) && strncmp(text, strings[i].name, length) == 0) {
            *strings[i].to = value + 1;
            return true;
        }
    for (size_t i = 0; i < MGK_COUNT(fields); ++i) {
        int64_t number = 0;
        if (length == strlen(fields[i].name) && strncmp(text, fields[i].name, length) == 0) {
            if (!parse(value + 1, &number))
                return false;
            set(desc, &fields[i], number);
            return true;
        }
    }
    return false;
}

static void print_problem(const clmgk_attention_desc *desc)
{
    (void)printf("problem");
    for (size_t i = 0; i < MGK_COUNT(fields); ++i)
        (void)printf(" %s=%" PRId64, fields[i].name, get(desc, &fields[i]));
    (void)printf("\n");
}

static const char *array_name(int buffer)
{
    return clmgk_array_get_info((clmgk_array)buffer)->name;
}

void offline_print_step(const mgk_step *step, const char *(*name_of)(int buffer))
{
    if (step->launch.global[0] == 0)
        return;
    (void)printf("step %s %s %zu %zu ", step->file, step->name, step->launch.global[0], step->launch.local[0]);
    for (size_t i = 0; i < step->buffers; ++i)
        (void)printf("%s%s", i == 0 ? "" : ",", name_of(step->buffer[i]));
    (void)printf(" ");
    for (size_t i = 0; i < step->args_bytes; ++i)
        (void)printf("%02x", step->args[i]);
    (void)printf(" %s\n", step->options.data);
}

/* The OpenCL C of a score and a mask, in hexadecimal digits. */
static void print_code(const mgk_text *code)
{
    (void)printf("code ");
    for (size_t i = 0; i < code->length; ++i)
        (void)printf("%02x", (unsigned char)code->data[i]);
    (void)printf("\n");
}

int offline_print_steps(clmgk_attention_desc desc, clmgk_pass pass, const mgk_device_facts *facts, int count,
                        char **texts)
{
    clmgk_error error = {0};
    mgk_pass_request request = {.desc = &desc,
                                .limits = &desc,
                                .facts = facts,
                                .engine = CLMGK_ENGINE_MATRIX,
                                .parameters = {.text = NULL, .origin = MGK_ORIGIN_CALLER},
                                .pass = pass};
    mgk_formulas formulas = {0};
    mgk_mod_texts mods = {.code = ""};
    mgk_pass_plan plan = {.mods = &mods};
    for (int i = 0; i < count; ++i)
        if (!apply(texts[i], &desc, &request.parameters.text)) {
            (void)fprintf(stderr, "%s: no field of the descriptor, or no value\n", texts[i]);
            return 1;
        }
    mark_strided(&desc);
    clmgk_status status = clmgk_attention_validate(&desc, &desc, &error);
    if (status == CLMGK_OK)
        status = mgk_mask_to_window(NULL, &desc, &error);
    if (status == CLMGK_OK && mgk_has_texts(&desc))
        status = mgk_formulas_of(&desc, NULL, &formulas, &error);
    if (status == CLMGK_OK)
        status = mgk_family_plan(mgk_family_of(desc.variant), &request, &plan, &error);
    if (status != CLMGK_OK)
        (void)fprintf(stderr, "%s\n", error.message);
    else
        print_problem(&desc);
    for (size_t i = 0; status == CLMGK_OK && i < plan.steps.count; ++i)
        offline_print_step(&plan.steps.step[i], array_name);
    if (status == CLMGK_OK)
        (void)printf("workspace %" PRIu64 "\n", plan.steps.workspace_bytes);
    if (formulas.code.length > 0)
        print_code(&formulas.code);
    mgk_steps_clear(&plan.steps, NULL);
    mgk_formulas_free(&formulas);
    return status == CLMGK_OK ? 0 : 1;
}
