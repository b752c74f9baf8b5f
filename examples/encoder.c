/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An encoder of two layers, MGK attention inside, trained from end to end: forward and backward passes on the device,
 * Adam on the host. Every token is to become the one before it, which it finds by its position.
 */
#include "layers.h"

enum { BATCH = 4, LENGTH = 12, WIDTH = 32, HEADS = 2, SIZE = 16, COMPONENTS = 2, LAYERS = 2, STEPS = 80 };
enum { COUNT = BATCH * LENGTH * WIDTH };

/* What is learned, all weights of a layer: values, gradients, Adam's averages of these and of their squares. */
typedef struct parameters {
    size_t count;
    float *values, *gradients, *mean, *square;
    clmgk_buffer values_there, gradients_there; /* on the device */
} parameters;

static parameters new_parameters(device d, size_t count, uint32_t seed)
{
    float *const all = calloc(4 * count, sizeof(float));
    EXPECT(all != NULL);
    fill_weights(all, count, WIDTH, seed);
    return (parameters){count,
                        all,
                        all + count,
                        all + 2 * count,
                        all + 3 * count,
                        new_buffer(d, count * sizeof(float), all),
                        new_buffer(d, count * sizeof(float), NULL)};
}

static void descend(cl_command_queue queue, parameters *p, int step)
{
    read_buffer(queue, p->gradients_there, p->count * sizeof(float), p->gradients);
    for (size_t i = 0; i < p->count; ++i) {
        const float g = p->gradients[i];
        p->mean[i] += 0.1F * (g - p->mean[i]);
        p->square[i] += 0.01F * (g * g - p->square[i]);
        const float mean = p->mean[i] / (1.0F - powf(0.9F, (float)step));
        const float square = p->square[i] / (1.0F - powf(0.99F, (float)step));
        p->values[i] -= 0.01F * mean / (sqrtf(square) + 1e-8F);
    }
    write_buffer(queue, p->values_there, 0, p->count * sizeof(float), p->values);
}

/* Mean of (out - y)^2, y the token before; its gradient. */
static double compare(const float *x, const float *out, float *grad_out)
{
    double loss = 0.0;
    for (size_t i = 0; i < COUNT; ++i) {
        const float y = i / WIDTH % LENGTH == 0 ? x[i] : x[i - WIDTH];
        loss += (double)(out[i] - y) * (out[i] - y) / COUNT;
        grad_out[i] = 2.0F * (out[i] - y) / COUNT;
    }
    return loss;
}

int main(void)
{
    static float x[COUNT], out[COUNT], grad_out[COUNT];
    fill(x, COUNT, 1);

    clmgk_attention_desc attention = CLMGK_ATTENTION_DESC_INIT;
    attention.variant = CLMGK_VARIANT_MGK;
    attention.components = COMPONENTS;
    attention.batch = BATCH, attention.length = LENGTH, attention.heads = HEADS, attention.head_size = SIZE;
    clmgk_layer_desc desc = describe_layer(&attention, WIDTH);
    desc.gradients = CLMGK_LAYER_GRADIENT_X | WEIGHT_GRADIENTS;

    clmgk_error error = {0};
    const device d = open_device();
    const cl_command_queue queue = open_queue(d);
    clmgk_layer *layer = NULL; /* one serves both: they differ in their arrays alone */
    clmgk_layer_info info = CLMGK_LAYER_INFO_INIT;
    TRY(clmgk_layer_create(d.clmgk, &desc, NULL, &layer, &error));
    TRY(clmgk_layer_get_info(layer, &info, &error));

    const size_t bytes = COUNT * sizeof(float), count = place_weights(&desc, NULL, NULL, NULL);
    const clmgk_buffer gradient = new_buffer(d, bytes, NULL); /* each layer puts its input's over its output's */
    const clmgk_buffer workspace = new_layer_workspace(d, layer);
    clmgk_buffer tokens[LAYERS + 1] = {new_buffer(d, bytes, x)};
    parameters p[LAYERS];
    clmgk_layer_args args[LAYERS];
    for (size_t i = 0; i < LAYERS; ++i) {
        tokens[i + 1] = new_buffer(d, bytes, NULL);
        p[i] = new_parameters(d, count, (uint32_t)i + 2);
        args[i] = (clmgk_layer_args){.struct_size = sizeof(*args), .x = tokens[i], .out = tokens[i + 1]};
        args[i].grad_out = args[i].grad_x = gradient;
        args[i].workspace = workspace;
        args[i].activations = new_buffer(d, info.activation_bytes, NULL);
        (void)place_weights(&desc, &args[i], p[i].values_there.memory, p[i].gradients_there.memory);
    }

    double first = 0.0, loss = 0.0;
    for (int step = 1; step <= STEPS; ++step) {
        for (size_t i = 0; i < LAYERS; ++i) {
            TRY(clmgk_enqueue_layer_forward(layer, queue, &args[i], 0, NULL, NULL, &error));
        }
        read_buffer(queue, tokens[LAYERS], bytes, out);
        loss = compare(x, out, grad_out);
        first = step == 1 ? loss : first;
        write_buffer(queue, gradient, 0, bytes, grad_out);
        for (size_t i = LAYERS; i-- > 0;) {
            TRY(clmgk_enqueue_layer_backward(layer, queue, &args[i], 0, NULL, NULL, &error));
        }
        for (size_t i = 0; i < LAYERS; ++i) {
            descend(queue, &p[i], step);
        }
    }
    printf("loss after %d steps: %.5f, at first %.5f; %zu weights in each of %d layers, %zu bytes of activations\n",
           STEPS, loss, first, count, LAYERS, (size_t)info.activation_bytes);
    EXPECT(loss < 0.05 * first);

    for (size_t i = 0; i < LAYERS; ++i) {
        free(p[i].values); /* and all behind them */
        release_each((const clmgk_buffer[]){p[i].values_there, p[i].gradients_there, args[i].activations, tokens[i]},
                     4);
    }
    release_each((const clmgk_buffer[]){tokens[LAYERS], gradient, workspace}, 3);
    clmgk_layer_release(layer);
    CL(clReleaseCommandQueue(queue));
    close_device(d);
    return 0;
}
