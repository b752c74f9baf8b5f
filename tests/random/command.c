/* SPDX-License-Identifier: Apache-2.0 */
#include "random/random.h"

#include "harness/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- axes -------------------------------------------------------------------------------------------------------- */

static bool is_of_texts(th_name name)
{
    return (name >= TH_CAPTURE_0 && name <= TH_NUMBERS) || (name >= TH_GRAD_CAPTURE_0 && name <= TH_GRAD_NUMBERS);
}

const char *rd_axes_of(const clmgk_attention_desc *desc, th_name name)
{
    static const char *const mixed[TH_ARRAYS] = {[TH_Q] = "bm-nd",
                                                 [TH_K] = "bm-sd",
                                                 [TH_SCALE_K] = "bm-s-",
                                                 [TH_STATE_C] = "bhmfe",
                                                 [TH_STATE_Z] = "bm-f-",
                                                 [TH_STATE_M] = "b----",
                                                 [TH_GRAD_NEW_STATE_C] = "bhmfe",
                                                 [TH_GRAD_NEW_STATE_Z] = "bm-f-"};
    static const char *const shared[TH_ARRAYS] = {[TH_MIX] = "--m--"};
    static const char *const hidden[TH_ARRAYS] = {[TH_MIX] = "-um--", [TH_MIX_WEIGHT] = "-hu--"};
    static const char *const after[TH_ARRAYS] = {
        [TH_BIAS] = "ba-ns",       [TH_SLOPES] = "-a---",     [TH_SINKS] = "-a---",     [TH_MIX] = "-am--",
        [TH_MIX_WEIGHT] = "-am--", [TH_MIX_OFFSET] = "-a---", [TH_MIX_AFTER] = "-ha--", [TH_GRAD_LSE] = "ba-n-"};
    static const char *const hidden_after[TH_ARRAYS] = {[TH_MIX] = "-um--", [TH_MIX_WEIGHT] = "-au--"};
    static const char *const mgk[TH_ARRAYS] = {[TH_K] = "bgmsd", [TH_SCALE_K] = "bgms-"};
    static const char *const axes[TH_ARRAYS] = {
        [TH_Q] = "bh-nd",
        [TH_K] = "bg-sd",
        [TH_V] = "bg-se",
        [TH_SCALE_K] = "bg-s-",
        [TH_SCALE_V] = "bg-s-",
        [TH_VARIANCE] = "-hm--",
        [TH_SHIFT] = "-hm-d",
        [TH_LENGTHS] = "b----",
        [TH_LENGTHS_Q] = "b----",
        [TH_POSITIONS] = "bn---",
        [TH_POSITIONS_K] = "bs---",
        [TH_OFFSETS] = "t----",
        [TH_BIAS] = "bh-ns",
        [TH_OFFSETS_K] = "t----",
        [TH_SLOPES] = "-h---",
        [TH_SINKS] = "-h---",
        [TH_MIX] = "-hm--",
        [TH_MIX_WEIGHT] = "-hm--",
        [TH_MIX_OFFSET] = "-h---",
        [TH_MIX_HIDDEN_OFFSET] = "-u---",
        [TH_NOISE] = "--m--",
        [TH_PAGE_TABLE] = "tc---",
        [TH_PAGE_OFFSETS] = "t----",
        [TH_LAST_PAGE] = "t----",
        [TH_GRAD_O] = "bh-ne",
        [TH_GRAD_LSE] = "bh-n-",
        [TH_PRIOR] = "-hms-",
        [TH_PROJECTION] = "---fd",
        [TH_STATE_C] = "bh-fe",
        [TH_STATE_Z] = "bh-f-",
        [TH_STATE_M] = "bh---",
        [TH_GRAD_NEW_STATE_C] = "bh-fe",
        [TH_GRAD_NEW_STATE_Z] = "bh-f-",
    };
    const uint32_t traits = clmgk_variant_traits(desc->variant);
    if (is_of_texts(name))
        return "-----"; /* axes that are no problem's */
    if ((traits & CLMGK_TRAIT_ADMIXTURE) != 0 && mixed[name])
        return mixed[name];
    if ((traits & CLMGK_TRAIT_SHARED_MIX) != 0 && shared[name])
        return shared[name];
    if (desc->mix_hidden > 0 && desc->mix_after_heads > 0 && hidden_after[name])
        return hidden_after[name];
    if (desc->mix_after_heads > 0 && after[name])
        return after[name];
    if (desc->mix_hidden > 0 && hidden[name])
        return hidden[name];
    if ((traits & CLMGK_TRAIT_KEYS) != 0 && mgk[name])
        return mgk[name];
    return axes[name];
}

/* Whether the file of an array has axis `axis`: not those that its shape leaves out. */
static bool is_in_file(const clmgk_attention_desc *desc, th_name name, int axis)
{
    if (is_of_texts(name))
        return name == TH_NUMBERS ? axis == 0 : axis < desc->captures[name - TH_CAPTURE_0].axes;
    if (rd_axes_of(desc, name)[axis] == '-')
        return false;
    if (name == TH_PAGE_TABLE)
        return axis == 1 || !desc->use_page_offsets;
    if (name == TH_PRIOR)
        return axis == 2 || desc->prior_shape >= (axis == 1 ? CLMGK_PRIOR_HM : CLMGK_PRIOR_HMS);
    return name != TH_VARIANCE || axis == 2 || desc->variance_shape == CLMGK_VARIANCE_HM;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* A .npy file of version 1: float32, or int32. (The programs' own writer knows no integers.) */
static void write_array(const rd_case *c, th_name name, const char *path)
{
    const th_array *const array = &c->problem.array[name];
    char shape[128] = "", header[256];
    for (int axis = 0; axis < TH_RANK; axis++)
        if (is_in_file(&c->problem.desc, name, axis))
            snprintf(shape + strlen(shape), sizeof(shape) - strlen(shape), "%lld,", (long long)array->shape[axis]);
    int length = snprintf(header, sizeof(header), "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }",
                          array->integer ? "<i4" : "<f4", shape);
    while ((10 + length + 1) % 64 != 0)
        header[length++] = ' ';
    header[length++] = '\n';

    const size_t start = 10 + (size_t)length;
    unsigned char *const bytes = malloc(start + array->count * 4);
    assert_non_null(bytes);
    const unsigned char magic[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)length, 0};
    memcpy(bytes, magic, sizeof(magic));
    memcpy(bytes + sizeof(magic), header, (size_t)length);
    for (size_t n = 0; n < array->count; n++) {
        const int32_t integer = array->integer ? (int32_t)array->values[n] : 0;
        if (array->integer)
            memcpy(bytes + start + 4 * n, &integer, sizeof(integer));
        else
            clmgk_ref_store(CLMGK_DTYPE_F32, &array->values[n], 1, bytes + start + 4 * n);
    }
    scratch_write(path, bytes, start + array->count * 4);
    free(bytes);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

/* Options for states take several files. */
static bool is_of_state(th_name name)
{
    return (name >= TH_STATE_C && name <= TH_STATE_M) || name == TH_GRAD_NEW_STATE_C || name == TH_GRAD_NEW_STATE_Z ||
           name == TH_GRAD_STATE_C || name == TH_GRAD_STATE_Z;
}

/* The option of clmgk-run that takes the array; false where there is none. */
static bool option_of(th_name name, char option[64])
{
    const bool gradient = th_is_gradient(name);
    const char *const field = clmgk_array_get_info((clmgk_array)name)->name + (gradient ? strlen("grad_") : 0);
    snprintf(option, 64, "%s%s", gradient ? "d" : "",
             name == TH_SLOPES   ? "alibi"
             : name == TH_GRAD_O ? "grad-out"
                                 : field);
    for (char *c = strchr(option, '_'); c; c = strchr(c, '_'))
        *c = '-';
    return (name <= TH_NLL && !th_is_output(name) && !is_of_state(name) && !is_of_texts(name)) ||
           (name >= TH_PAGE_TABLE && name <= TH_LAST_PAGE) || name == TH_SCALE_K || name == TH_SCALE_V;
}

typedef struct command {
    char *text;
    size_t capacity, used;
} command;

static void add(command *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(command *out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(out->text + out->used, out->capacity - out->used, format, arguments);
    va_end(arguments);
    assert_true(length >= 0 && (size_t)length < out->capacity - out->used);
    out->used += (size_t)length;
}

static void add_arrays(command *out, const rd_case *c, const char *folder)
{
    for (th_name name = 0; name <= TH_SCALE_V; name++) {
        char path[SCRATCH_PATH], option[64], file[72];
        if (!option_of(name, option) || !c->problem.array[name].used)
            continue;
        snprintf(file, sizeof(file), "%s.npy", option);
        scratch_join(path, folder, file);
        if (th_is_input(name) || name == TH_GRAD_O || name == TH_GRAD_LSE)
            write_array(c, name, path);
        add(out, " --%s %s", option, path);
    }
}

static void add_texts(command *out, const rd_case *c, const char *folder)
{
    const clmgk_attention_desc *const d = &c->problem.desc;
    if (d->score_mod)
        add(out, " --score-mod '%s'", d->score_mod);
    if (d->mask_mod)
        add(out, " --mask-mod '%s' --mask-block %d,%d", d->mask_mod, (int)d->mask_block_q, (int)d->mask_block_k);
    for (int n = 0; n < CLMGK_MAX_CAPTURES && d->captures[n].name; n++) {
        char path[SCRATCH_PATH], file[72];
        snprintf(file, sizeof(file), "capture-%s.npy", d->captures[n].name);
        scratch_join(path, folder, file);
        write_array(c, TH_CAPTURE_0 + (th_name)n, path);
        add(out, " --capture %s=%s", d->captures[n].name, path);
        if (c->problem.array[TH_GRAD_CAPTURE_0 + (th_name)n].used)
            add(out, " --grad-capture %s=%s.d", d->captures[n].name, path);
    }
    for (int n = 0; n < CLMGK_MAX_NUMBERS && d->numbers[n]; n++)
        add(out, " --number %s=%.9g", d->numbers[n], c->problem.array[TH_NUMBERS].values[n]);
    for (int n = 0; c->problem.array[TH_GRAD_NUMBERS].used && n < CLMGK_MAX_NUMBERS && d->numbers[n]; n++)
        add(out, " --grad-number %s=%s/d%s.npy", d->numbers[n], folder, d->numbers[n]);
}

/* The state's files have its true numbers. */
static void add_states(command *out, const rd_case *c, const char *folder)
{
    char path[SCRATCH_PATH];
    if (c->problem.desc.use_state) {
        static const char *const files[] = {"state.c.npy", "state.z.npy"};
        for (size_t n = 0; n < TH_COUNT(files); n++) {
            scratch_join(path, folder, files[n]);
            write_array(c, TH_STATE_C + n, path);
        }
        scratch_join(path, folder, "state");
        add(out, " --state-in %s", path);
    }
    if (c->problem.desc.use_new_state) {
        scratch_join(path, folder, "new-state");
        add(out, " --state-out %s", path);
    }
}

static void add_linear_options(command *out, const clmgk_attention_desc *d)
{
    add(out, " --feature %s", clmgk_feature_name(d->feature));
    if (d->feature == CLMGK_FEATURE_DPFP)
        add(out, " --feature-order %d", (int)d->feature_order);
    if (d->guard > 0.0)
        add(out, " --guard %.17g", d->guard);
    if (d->unnormalised)
        add(out, " --unnormalised");
    if (d->feature_epsilon > 0.0)
        add(out, " --feature-epsilon %.17g", d->feature_epsilon);
}

static void add_types(command *out, const clmgk_attention_desc *d)
{
    const struct {
        char letter;
        clmgk_storage storage;
    } types[] = {{'k', d->dtype_k}, {'v', d->dtype_v}, {'o', d->dtype_o}};
    for (size_t n = 0; n < TH_COUNT(types); n++)
        if (types[n].storage != CLMGK_STORAGE_AS_Q)
            add(out, " --dtype-%c %s", types[n].letter, clmgk_dtype_name((clmgk_dtype)(types[n].storage - 1)));
}

static void add_options(command *out, const rd_case *c)
{
    const clmgk_attention_desc *const d = &c->problem.desc;
    const uint32_t traits = clmgk_variant_traits(d->variant);
    if (d->precision != CLMGK_PRECISION_EXACT)
        add(out, " --precision %s", clmgk_precision_name(d->precision));
    if (d->variant == CLMGK_VARIANT_MGK || d->variant == CLMGK_VARIANT_SMGK)
        add(out, " --score %s", clmgk_score_name(d->score));
    if (d->estep == CLMGK_ESTEP_HARD)
        add(out, " --estep hard");
    if ((traits & CLMGK_TRAIT_LINEAR) != 0)
        add_linear_options(out, d);
    else if ((traits & CLMGK_TRAIT_ADMIXTURE) == 0 && d->variance_shape == CLMGK_VARIANCE_NUMBER)
        add(out, " --variance %.17g", d->variance);
    if ((traits & CLMGK_TRAIT_SHARED_MIX) != 0)
        add(out, " --heads %lld", (long long)d->heads);
    if (d->shared_noise)
        add(out, " --shared-noise");
    if (d->causal)
        add(out, " --causal");
    if (d->alignment != CLMGK_ALIGN_BOTTOM_RIGHT && (d->causal || d->use_window || d->use_alibi))
        add(out, " --causal-align %s", clmgk_alignment_name(d->alignment));
    if (d->use_window)
        add(out, " --window %lld,%lld", (long long)d->window_left, (long long)d->window_right);
    if (d->softcap > 0.0)
        add(out, " --softcap %.17g", d->softcap);
    if (d->dropout > 0.0)
        add(out, " --dropout %.17g", d->dropout);
    if (d->dropout > 0.0 || (traits & CLMGK_TRAIT_NOISE) != 0)
        add(out, " --seed %llu", (unsigned long long)c->problem.seed);
}

/* What a command has no option for. */
static void add_remarks(command *out, const rd_case *c)
{
    if (c->problem.array[TH_STATE_M].used)
        add(out, "\n# here the state has scales of its own");
    if (c->problem.array[TH_GRAD_NEW_STATE_C].used || (c->desc.gradients & CLMGK_GRADIENT_STATE_C) != 0)
        add(out, "\n# here with gradients of states");
    if (c->layout > RD_TOKENS_FIRST)
        add(out, "\n# here with strides of its own: layout %d, repeated %d", c->layout, c->repeated);
    if (c->layout == RD_TOKENS_FIRST)
        add(out, "\n# here with tokens before heads: repeated %d", c->repeated);
    if (c->problem.desc.page_size > 0 &&
        c->problem.desc.length_k < c->problem.desc.table_pages * c->problem.desc.page_size)
        add(out, "\n# here the tables have room for more than S = %lld keys", (long long)c->problem.desc.length_k);
    if (c->problem.array[TH_PAGE_TABLE].used && !th_has_pages(&c->problem))
        add(out, "\n# here the page table has numbers that are no pages");
    if (c->problem.accumulate != 0)
        add(out, "\n# here gradients are added to what is there: %u", c->problem.accumulate);
}

void rd_write_command(const rd_case *c, const char *folder, char *text, size_t capacity)
{
    command out = {text, capacity, 0};
    const char *const flags = getenv("POCL_EXTRA_BUILD_FLAGS");
    if (flags) /* such programs are no others' */
        add(&out, "POCL_EXTRA_BUILD_FLAGS='%s' CLMGK_CACHE_DIR= ", flags);
    add(&out, "clmgk-run --check --variant %s --dtype %s --engine %s --parameters %s",
        clmgk_variant_name(c->problem.desc.variant), clmgk_dtype_name(c->problem.desc.dtype),
        clmgk_engine_name(c->engine), c->parameters);
    if (c->desc.gradients != 0 || c->desc.statistics != 0)
        add(&out, " --backward-parameters %s", c->backward_parameters);
    add_types(&out, &c->problem.desc);
    add_options(&out, c);
    add_arrays(&out, c, folder);
    add_states(&out, c, folder);
    add_texts(&out, c, folder);
    add_remarks(&out, c);
}
