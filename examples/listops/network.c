/* SPDX-License-Identifier: Apache-2.0 */
/* The network's parameters, buffers, kernels and plans. */
#include "network.h"

#include <math.h>
#include <stdlib.h>

extern const unsigned char listops_kernels[];
extern const size_t listops_kernels_size;

enum { VECTOR = 16, BLOCK = 32 };

/* ---- parameters -------------------------------------------------------------------------------------------------- */

static size_t round_up(size_t count, size_t unit)
{
    return (count + unit - 1) / unit * unit;
}

static const parameter *add(parameters *p, const char *name, int32_t layer, int64_t count, beginning begin,
                            double scale)
{
    if (p->arrays == MAX_PARAMETERS) {
        fail(EXIT_USAGE, "more parameters than expected");
    }
    parameter *const one = &p->list[p->arrays++];
    *one = (parameter){.at = p->count, .count = (size_t)count, .begin = begin, .scale = (float)scale};
    (void)snprintf(one->name, sizeof(one->name), layer < 0 ? "%s" : "%s.%d", name, layer + 1);
    p->numbers += one->count;
    p->count = round_up(p->count + one->count, VECTOR);
    return one;
}

/* Gives the layer's array and its gradient their places. */
static const parameter *add_layer_array(network *n, const clmgk_layer_desc *desc, int32_t layer,
                                        clmgk_layer_array array, clmgk_layer_array gradient, beginning begin,
                                        double scale)
{
    clmgk_layer_args *const args = &n->layer[layer].args;
    const parameter *const p =
        add(&n->layout, clmgk_layer_array_name(array), layer, clmgk_layer_array_count(desc, array), begin, scale);
    *clmgk_layer_array_buffer(args, array) = (clmgk_buffer){n->values.memory, p->at};
    *clmgk_layer_array_buffer(args, gradient) = (clmgk_buffer){n->gradients.memory, p->at};
    return p;
}

/* An array of the attention, if the variant has it. */
static const parameter *add_attention_array(network *n, int32_t layer, clmgk_array array, clmgk_array gradient,
                                            beginning begin, double scale)
{
    clmgk_attention_args *const args = &n->layer[layer].attention;
    const int64_t count = clmgk_array_count(&n->attention, array);
    if (count == 0) {
        return NULL;
    }
    const parameter *const p = add(&n->layout, clmgk_array_name(array), layer, count, begin, scale);
    *clmgk_array_buffer(args, array) = (clmgk_buffer){n->values.memory, p->at};
    if (n->attention.gradients & clmgk_array_get_info(gradient)->gradient) {
        *clmgk_array_buffer(args, gradient) = (clmgk_buffer){n->gradients.memory, p->at};
    }
    return p;
}

#define WITH_GRADIENT(NAME) CLMGK_LAYER_ARRAY_##NAME, CLMGK_LAYER_ARRAY_GRAD_##NAME

static void add_matrices(network *n, const clmgk_layer_desc *desc)
{
    const settings *const s = &n->settings;
    const double in = 1.0 / sqrt(s->width), out = 1.0 / sqrt(2.0 * s->layers); /* a branch's share of the sum */
    for (int32_t i = 0; i < s->layers; ++i) {
        encoder_layer *const layer = &n->layer[i];
        const double wide = sqrt((double)n->attention.heads * s->head_size);
        layer->weight_qkv = add_layer_array(n, desc, i, WITH_GRADIENT(WEIGHT_QKV), BEGIN_NORMAL, in);
        (void)add_layer_array(n, desc, i, WITH_GRADIENT(WEIGHT_O), BEGIN_NORMAL, out / wide);
        layer->w1 = add(&n->layout, "w1", i, (int64_t)s->hidden * s->width, BEGIN_NORMAL, in);
        layer->w2 = add(&n->layout, "w2", i, (int64_t)s->width * s->hidden, BEGIN_NORMAL, out / sqrt(s->hidden));
    }
    n->w_class = add(&n->layout, "w_class", -1, (int64_t)CLASSES * s->width, BEGIN_NORMAL, in);
    n->layout.decays = n->layout.count;
}

static void add_summed(network *n)
{
    const settings *const s = &n->settings;
    parameters *const p = &n->layout;
    p->summed = p->count;
    n->words = add(p, "words", -1, (int64_t)VOCABULARY * s->width, BEGIN_NORMAL, 0.5);
    for (int32_t i = 0; i < s->layers; ++i) {
        n->layer[i].gain = add(p, "gain", i, s->width, BEGIN_ONE, 0.0);
        n->layer[i].bias = add(p, "bias", i, s->width, BEGIN_ZERO, 0.0);
        n->layer[i].b1 = add(p, "b1", i, s->hidden, BEGIN_ZERO, 0.0);
        n->layer[i].b2 = add(p, "b2", i, s->width, BEGIN_ZERO, 0.0);
    }
    n->last_gain = add(p, "last_gain", -1, s->width, BEGIN_ONE, 0.0);
    n->last_bias = add(p, "last_bias", -1, s->width, BEGIN_ZERO, 0.0);
    p->summed_end = p->count;
}

#define ATTENTION_ARRAY(NAME) CLMGK_ARRAY_##NAME, CLMGK_ARRAY_GRAD_##NAME

static void add_rest(network *n, const clmgk_layer_desc *desc)
{
    const settings *const s = &n->settings;
    const double components = (double)n->attention.components;
    n->places = add(&n->layout, "places", -1, (int64_t)s->max_length * s->width, BEGIN_PLACES, 0.5);
    n->b_class = add(&n->layout, "b_class", -1, CLASSES, BEGIN_ZERO, 0.0);
    for (int32_t i = 0; i < s->layers; ++i) {
        encoder_layer *const layer = &n->layer[i];
        layer->bias_qkv = add_layer_array(n, desc, i, WITH_GRADIENT(BIAS_QKV), BEGIN_ZERO, 0.0);
        (void)add_layer_array(n, desc, i, WITH_GRADIENT(BIAS_O), BEGIN_ZERO, 0.0);
        layer->norm_gain = add_layer_array(n, desc, i, WITH_GRADIENT(NORM_GAIN), BEGIN_ONE, 0.0);
        layer->norm_bias = add_layer_array(n, desc, i, WITH_GRADIENT(NORM_BIAS), BEGIN_ZERO, 0.0);
        (void)add_attention_array(n, i, ATTENTION_ARRAY(SHIFT), BEGIN_NORMAL, 1.0);
        (void)add_attention_array(n, i, ATTENTION_ARRAY(MIX), BEGIN_NORMAL, 1.0 / sqrt(components));
        (void)add_attention_array(n, i, ATTENTION_ARRAY(MIX_WEIGHT), BEGIN_ONE, 0.0);
    }
    n->layout.floored = n->layout.count;
    for (int32_t i = 0; i < s->layers; ++i) {
        n->layer[i].prior = add_attention_array(n, i, ATTENTION_ARRAY(PRIOR), BEGIN_SHARE, 1.0 / components);
        (void)add_attention_array(n, i, ATTENTION_ARRAY(NOISE), BEGIN_SHARE, 0.1);
    }
    n->layout.count = round_up(n->layout.count, (size_t)VECTOR * VECTOR); /* work-groups of adamw are full */
}

static float normal(uint64_t seed, uint64_t place)
{
    const double u = ((double)(random_bits(seed, 2 * place) >> 11) + 0.5) * 0x1p-53;
    const double v = (double)(random_bits(seed, 2 * place + 1) >> 11) * 0x1p-53;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

/* Sines and cosines: neighbours are alike from the beginning. */
static float place(const settings *s, size_t i)
{
    const size_t position = i / (size_t)s->width, c = i % (size_t)s->width;
    const size_t pair = c / 2;
    const double angle = (double)position * pow(10000.0, -2.0 * (double)pair / s->width);
    return (float)(c % 2 == 0 ? sin(angle) : cos(angle));
}

static float first_value(const settings *s, const parameter *p, size_t i)
{
    switch (p->begin) {
    case BEGIN_ZERO:
        return 0.0F;
    case BEGIN_ONE:
        return 1.0F;
    case BEGIN_NORMAL:
        return p->scale * normal(s->seed, p->at + i);
    case BEGIN_PLACES:
        return p->scale * place(s, i);
    default:
        return p->scale;
    }
}

static void begin(network *n)
{
    float *const values = allocate(n->layout.count, sizeof(float));
    for (size_t k = 0; k < n->layout.arrays; ++k) {
        const parameter *const p = &n->layout.list[k];
        for (size_t i = 0; i < p->count; ++i) {
            values[p->at + i] = first_value(&n->settings, p, i);
        }
    }
    device_write(n->device, n->values, n->layout.count * sizeof(float), values);
    free(values);
}

/* ---- the attention layer ----------------------------------------------------------------------------------------- */

static clmgk_attention_desc describe_attention(const network *n)
{
    const settings *const s = &n->settings;
    const uint32_t traits = clmgk_variant_traits(s->variant);
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = s->variant;
    desc.heads = s->heads;
    desc.components = s->components;
    desc.head_size = s->head_size;
    desc.length = s->rows;
    desc.sequences = n->sequences;
    if (traits & CLMGK_TRAIT_PRIOR) {
        desc.prior_shape = CLMGK_PRIOR_HM;
        desc.gradients |= s->em ? 0 : CLMGK_GRADIENT_PRIOR;
    }
    desc.gradients |= traits & CLMGK_TRAIT_SHIFT ? CLMGK_GRADIENT_SHIFT : 0;
    desc.gradients |= traits & CLMGK_TRAIT_ADMIXTURE ? CLMGK_GRADIENT_MIX : 0;
    desc.gradients |= traits & CLMGK_TRAIT_NOISE ? CLMGK_GRADIENT_NOISE : 0;
    if (traits & CLMGK_TRAIT_GENERALISED) {
        desc.use_mix_weight = 1;
        desc.gradients |= CLMGK_GRADIENT_MIX_WEIGHT;
    }
    return desc;
}

static void describe_layer(clmgk_layer_desc *desc, const clmgk_attention_desc *attention, const settings *s)
{
    desc->attention = attention;
    desc->width = s->width;
    desc->packed_weights = 1;
    desc->use_bias = desc->use_bias_o = 1;
    desc->residual = 1;
    desc->norm = CLMGK_NORM_PRE;
    desc->gradients = CLMGK_LAYER_GRADIENT_X | CLMGK_LAYER_GRADIENT_WEIGHT_QKV | CLMGK_LAYER_GRADIENT_WEIGHT_O |
                      CLMGK_LAYER_GRADIENT_BIAS_QKV | CLMGK_LAYER_GRADIENT_BIAS_O | CLMGK_LAYER_GRADIENT_NORM_GAIN |
                      CLMGK_LAYER_GRADIENT_NORM_BIAS;
}

/* The M-step: statistics of the layer's attention, whose layouts of Q and K it shares. */
static void plan_maximisation(network *n)
{
    clmgk_attention_desc desc = n->attention;
    if (!n->settings.em) {
        return;
    }
    if (!(clmgk_variant_traits(desc.variant) & CLMGK_TRAIT_PRIOR) || desc.components == 1) {
        fail(EXIT_USAGE, "--prior em: %s has no prior to learn", clmgk_variant_name(desc.variant));
    }
    desc.gradients = 0;
    desc.statistics = CLMGK_STATISTIC_NEW_PRIOR;
    TRY(clmgk_plan_create(n->device->clmgk, &desc, NULL, &n->maximisation, &error));
    n->maximisation_workspace = device_buffer(n->device, clmgk_plan_workspace_size(n->maximisation));
}

/* ---- kernels and products ---------------------------------------------------------------------------------------- */

static void build_kernels(network *n)
{
    static const char *const names[] = {
#define KERNEL_NAME(name) #name,
        KERNEL_LIST(KERNEL_NAME)
#undef KERNEL_NAME
    };
    const char *const source = (const char *)listops_kernels;
    char options[160], log[2000] = "";
    cl_int code = CL_SUCCESS;
    n->program = clCreateProgramWithSource(n->device->context, 1, (const char **)&source, &listops_kernels_size, &code);
    check_opencl(code, "clCreateProgramWithSource");
    (void)snprintf(options, sizeof(options), "-cl-std=CL1.2 -DW=%d -DU=%d -DBLOCK=%d -DVOCABULARY=%d -DCLASSES=%d",
                   n->settings.width / VECTOR, n->settings.hidden / VECTOR, BLOCK, VOCABULARY, CLASSES);
    code = clBuildProgram(n->program, 1, &n->device->info.device_id, options, NULL, NULL);
    if (code != CL_SUCCESS) {
        (void)clGetProgramBuildInfo(n->program, n->device->info.device_id, CL_PROGRAM_BUILD_LOG, sizeof(log) - 1, log,
                                    NULL);
        fail(EXIT_DEVICE, "kernels.cl: OpenCL error %d: %s", (int)code, log);
    }
    for (int i = 0; i < KERNELS; ++i) {
        n->kernel[i] = clCreateKernel(n->program, names[i], &code);
        check_opencl(code, names[i]);
    }
}

static void plan_products(network *n)
{
    const int64_t rows = n->settings.rows, w = n->settings.width, u = n->settings.hidden;
    const struct {
        int64_t m, n, k;
        int32_t transpose_a, transpose_b;
        double beta;
    } list[PRODUCTS] = {
        [PRODUCT_HIDDEN] = {rows, u, w, 0, 1, 0.0},          [PRODUCT_NEXT] = {rows, w, u, 0, 1, 1.0},
        [PRODUCT_GRAD_A] = {rows, u, w, 0, 0, 0.0},          [PRODUCT_GRAD_W2] = {w, u, rows, 1, 0, 0.0},
        [PRODUCT_GRAD_N] = {rows, w, u, 0, 0, 0.0},          [PRODUCT_GRAD_W1] = {u, w, rows, 1, 0, 0.0},
        [PRODUCT_QKV] = {rows, n->qkv_columns, w, 0, 1, 0.0}};
    size_t workspace = 0;
    for (int i = 0; i < PRODUCTS; ++i) {
        clmgk_gemm_desc desc = CLMGK_GEMM_DESC_INIT;
        desc.m = list[i].m, desc.n = list[i].n, desc.k = list[i].k;
        desc.transpose_a = list[i].transpose_a, desc.transpose_b = list[i].transpose_b;
        desc.beta = list[i].beta;
        TRY(clmgk_gemm_plan_create(n->device->clmgk, &desc, NULL, &n->product[i], &error));
        const size_t bytes = clmgk_gemm_plan_workspace_size(n->product[i]);
        workspace = bytes > workspace ? bytes : workspace;
    }
    n->product_workspace = device_buffer(n->device, workspace);
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static void make_buffers(network *n)
{
    const size_t f = sizeof(float), rows = (size_t)n->settings.rows, w = (size_t)n->settings.width * f;
    const size_t u = (size_t)n->settings.hidden * f, sequences = (size_t)n->sequences;
    device *const d = n->device;
    n->tokens = device_buffer(d, rows * sizeof(int32_t));
    n->positions = device_buffer(d, rows * sizeof(int32_t));
    n->offsets = device_buffer(d, (sequences + 1) * sizeof(int32_t));
    n->used_offsets = device_buffer(d, (sequences + 1) * sizeof(int32_t));
    n->answers = device_buffer(d, sequences * sizeof(int32_t));
    n->x = device_buffer(d, rows * w);
    n->y = device_buffer(d, rows * w);
    n->last_statistics = device_buffer(d, rows * 2 * f);
    n->pooled = device_buffer(d, sequences * w);
    n->results = device_buffer(d, sequences * 2 * f);
    n->dlogits = device_buffer(d, sequences * VECTOR * f);
    n->gradient = device_buffer(d, rows * w);
    n->gradient_hidden = device_buffer(d, rows * u);
    n->gradient_norm = device_buffer(d, rows * w);
    n->host_results = allocate(2 * sequences, f);
    for (int32_t i = 0; i < n->settings.layers; ++i) {
        encoder_layer *const layer = &n->layer[i];
        layer->r = device_buffer(d, rows * w);
        layer->normalised = device_buffer(d, rows * w);
        layer->statistics = device_buffer(d, rows * 2 * f);
        layer->hidden = device_buffer(d, rows * u);
        layer->a = device_buffer(d, rows * u);
        layer->next = device_buffer(d, rows * w);
    }
}

static void connect_layers(network *n)
{
    clmgk_layer_info info = CLMGK_LAYER_INFO_INIT;
    TRY(clmgk_layer_get_info(n->attention_layer, &info, &error));
    n->workspace =
        device_buffer(n->device, info.workspace_bytes > info.backward_workspace_bytes ? info.workspace_bytes
                                                                                      : info.backward_workspace_bytes);
    for (int32_t i = 0; i < n->settings.layers; ++i) {
        encoder_layer *const layer = &n->layer[i];
        layer->attention.offsets = n->offsets;
        layer->args.attention = &layer->attention;
        layer->args.x = i == 0 ? n->x : n->layer[i - 1].next;
        layer->args.out = layer->r;
        layer->args.grad_out = layer->args.grad_x = n->gradient; /* in the same place */
        layer->args.activations = device_buffer(n->device, info.activation_bytes);
        layer->args.workspace = n->workspace;
    }
}

/* The parameters' places need the memory's name, and its size needs the parameters: a first walk counts. */
static void place_parameters(network *n, const clmgk_layer_desc *desc)
{
    for (int walk = 0; walk < 2; ++walk) {
        n->layout = (parameters){0};
        add_matrices(n, desc);
        add_summed(n);
        add_rest(n, desc);
        if (walk == 0) {
            n->values = device_buffer(n->device, n->layout.count * sizeof(float));
            n->gradients = device_buffer(n->device, n->layout.count * sizeof(float));
        }
    }
    n->mean = device_buffer(n->device, n->layout.count * sizeof(float));
    n->square = device_buffer(n->device, n->layout.count * sizeof(float));
    n->partial = device_buffer(n->device, (size_t)(n->settings.rows / BLOCK) *
                                              (n->layout.summed_end - n->layout.summed) * sizeof(float));
}

static void check_settings(const settings *s)
{
    const struct {
        const char *name;
        int32_t value, unit;
    } list[] = {{"width", s->width, VECTOR},
                {"hidden", s->hidden, VECTOR},
                {"head-size", s->head_size, VECTOR},
                {"tokens", s->rows, BLOCK}};
    for (size_t i = 0; i < sizeof(list) / sizeof(*list); ++i) {
        if (list[i].value % list[i].unit != 0) {
            fail(EXIT_USAGE, "--%s: %d: expected a multiple of %d", list[i].name, list[i].value, list[i].unit);
        }
    }
    if (s->rows < s->max_length) {
        fail(EXIT_USAGE, "--tokens: %d: expected at least --max-length, %d", s->rows, s->max_length);
    }
}

void network_open(network *n, device *d, const settings *s)
{
    clmgk_layer_desc desc = CLMGK_LAYER_DESC_INIT, resolved = CLMGK_LAYER_DESC_INIT;
    check_settings(s);
    *n = (network){.device = d,
                   .settings = *s,
                   .sequences = s->rows / s->min_length + 1,
                   .attention = CLMGK_ATTENTION_DESC_INIT,
                   .first_bytes = d->bytes};
    for (int32_t i = 0; i < s->layers; ++i) {
        n->layer[i].args = (clmgk_layer_args)CLMGK_LAYER_ARGS_INIT;
        n->layer[i].attention = (clmgk_attention_args)CLMGK_ATTENTION_ARGS_INIT;
    }
    const clmgk_attention_desc attention = describe_attention(n);
    describe_layer(&desc, &attention, s);
    TRY(clmgk_layer_validate(&desc, &resolved, &n->attention, &error));
    n->qkv_columns = clmgk_layer_array_count(&resolved, CLMGK_LAYER_ARRAY_BIAS_QKV);
    n->q_columns = clmgk_array_count(&n->attention, CLMGK_ARRAY_Q) / s->rows;
    n->k_columns = clmgk_array_count(&n->attention, CLMGK_ARRAY_K) / s->rows;
    TRY(clmgk_layer_create(d->clmgk, &desc, NULL, &n->attention_layer, &error));
    place_parameters(n, &resolved);
    plan_maximisation(n);
    build_kernels(n);
    plan_products(n);
    make_buffers(n);
    connect_layers(n);
    n->qkv = device_buffer(d, (size_t)(s->rows * n->qkv_columns) * sizeof(float));
    n->new_prior = n->maximisation ? device_buffer(d, n->layer[0].prior->count * sizeof(float)) : (clmgk_buffer){0};
    begin(n);
    n->first_bytes = d->bytes - n->first_bytes;
}

uint64_t network_bytes(const network *n)
{
    return n->first_bytes;
}

void network_close(network *n)
{
    const clmgk_buffer buffers[] = {n->values,
                                    n->gradients,
                                    n->mean,
                                    n->square,
                                    n->partial,
                                    n->tokens,
                                    n->positions,
                                    n->offsets,
                                    n->used_offsets,
                                    n->answers,
                                    n->x,
                                    n->y,
                                    n->pooled,
                                    n->last_statistics,
                                    n->results,
                                    n->dlogits,
                                    n->gradient,
                                    n->qkv,
                                    n->gradient_hidden,
                                    n->gradient_norm,
                                    n->workspace,
                                    n->new_prior,
                                    n->product_workspace,
                                    n->maximisation_workspace};
    CL(clFinish(n->device->queue));
    for (size_t i = 0; i < sizeof(buffers) / sizeof(*buffers); ++i) {
        device_release(buffers[i]);
    }
    for (int32_t i = 0; i < n->settings.layers; ++i) {
        const encoder_layer *const layer = &n->layer[i];
        const clmgk_buffer own[] = {layer->r, layer->normalised, layer->statistics,      layer->hidden,
                                    layer->a, layer->next,       layer->args.activations};
        for (size_t k = 0; k < sizeof(own) / sizeof(*own); ++k) {
            device_release(own[k]);
        }
    }
    for (int i = 0; i < KERNELS; ++i) {
        CL(clReleaseKernel(n->kernel[i]));
    }
    CL(clReleaseProgram(n->program));
    for (int i = 0; i < PRODUCTS; ++i) {
        clmgk_gemm_plan_release(n->product[i]);
    }
    clmgk_plan_release(n->maximisation);
    clmgk_layer_release(n->attention_layer);
    free(n->host_results);
}
