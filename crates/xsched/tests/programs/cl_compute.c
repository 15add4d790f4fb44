/*
 * Vector addition, matrix product and reduction, ROUNDS times, with every number checked. The data are transferred by every
 * kind of copy; queues are in order and out of order, created by both functions.
 *
 *   cl_compute ROUNDS
 */
#include "cl.h"

enum { LENGTH = 1 << 16, SIDE = 96, GROUP = 64 };

static const char *SOURCE =
    "kernel void add(global const int *a, global const int *b, global int *c) {"
    "    size_t i = get_global_id(0); c[i] = a[i] + b[i];"
    "}"
    "kernel void product(global const int *a, global const int *b, global int *c, int side) {"
    "    int row = get_global_id(1), column = get_global_id(0), sum = 0;"
    "    for (int k = 0; k < side; k++) sum += a[row * side + k] * b[k * side + column];"
    "    c[row * side + column] = sum;"
    "}"
    "kernel void reduce(global const int *a, global int *sums, local int *part) {"
    "    size_t i = get_local_id(0); part[i] = a[get_global_id(0)];"
    "    for (size_t half_way = get_local_size(0) / 2; half_way > 0; half_way /= 2) {"
    "        barrier(CLK_LOCAL_MEM_FENCE);"
    "        if (i < half_way) part[i] += part[i + half_way];"
    "    }"
    "    if (i == 0) sums[get_group_id(0)] = part[0];"
    "}";

static int a[LENGTH], b[LENGTH], c[LENGTH];

static long check(const char *what, int is_correct) {
    if (!is_correct) {
        printf("%s: wrong\n", what);
        exit(71);
    }
    return 1;
}

static void CL_CALLBACK doubled(void *argument) {
    int *numbers = *(int **)argument;
    for (int n = 0; n < LENGTH; n++) numbers[n] *= 2;
}

static void add(cl_command_queue queue, cl_kernel kernel, cl_mem A, cl_mem B, cl_mem C) {
    cl_event written[2], filled, added;
    cl_int seven = 7, code;
    size_t length = LENGTH, bytes = sizeof a;
    must(CALL(clEnqueueWriteBuffer)(queue, A, CL_FALSE, 0, bytes, a, 0, NULL, &written[0]), "write");
    must(CALL(clEnqueueWriteBuffer)(queue, B, CL_FALSE, 0, bytes, b, 0, NULL, &written[1]), "write");
    must(CALL(clEnqueueFillBuffer)(queue, C, &seven, sizeof seven, 0, bytes, 0, NULL, &filled), "fill");
    cl_event before[] = {written[0], written[1], filled};
    set_argument(kernel, 0, sizeof A, &A);
    set_argument(kernel, 1, sizeof B, &B);
    set_argument(kernel, 2, sizeof C, &C);
    must(CALL(clEnqueueNDRangeKernel)(queue, kernel, 1, NULL, &length, NULL, 3, before, &added), "add");
    int *seen = CALL(clEnqueueMapBuffer)(queue, C, CL_TRUE, CL_MAP_READ, 0, bytes, 1, &added, NULL, &code);
    must(code, "map");
    for (int n = 0; n < LENGTH; n++) check("sum", seen[n] == a[n] + b[n]);
    cl_event unmapped;
    must(CALL(clEnqueueUnmapMemObject)(queue, C, seen, 0, NULL, &unmapped), "unmap");
    must(CALL(clWaitForEvents)(1, &unmapped), "wait");
    for (int n = 0; n < 3; n++) must(CALL(clReleaseEvent)(before[n]), "release");
    must(CALL(clReleaseEvent)(added), "release");
    must(CALL(clReleaseEvent)(unmapped), "release");
}

static void multiply(cl_command_queue queue, cl_kernel kernel, cl_mem A, cl_mem B, cl_mem C) {
    const size_t sides[] = {SIDE, SIDE}, zero[] = {0, 0, 0}, region[] = {SIDE * sizeof(int), SIDE, 1};
    size_t row = SIDE * sizeof(int);
    int side = SIDE;
    cl_event copied, multiplied;
    must(CALL(clEnqueueWriteBufferRect)(queue, A, CL_TRUE, zero, zero, region, row, 0, row, 0, a, 0, NULL, NULL), "write");
    /* The square of a matrix. */
    must(CALL(clEnqueueCopyBuffer)(queue, A, B, 0, 0, row * SIDE, 0, NULL, &copied), "copy");
    set_argument(kernel, 0, sizeof A, &A);
    set_argument(kernel, 1, sizeof B, &B);
    set_argument(kernel, 2, sizeof C, &C);
    set_argument(kernel, 3, sizeof side, &side);
    must(CALL(clEnqueueNDRangeKernel)(queue, kernel, 2, NULL, sides, NULL, 1, &copied, &multiplied), "product");
    must(CALL(clEnqueueReadBufferRect)(queue, C, CL_FALSE, zero, zero, region, row, 0, row, 0, c, 1, &multiplied, NULL), "read");
    must(CALL(clFinish)(queue), "finish");
    for (int n = 0; n < 2; n++) must(CALL(clReleaseEvent)(n ? copied : multiplied), "release");
    for (int y = 0; y < SIDE; y++) {
        for (int x = 0; x < SIDE; x++) {
            int sum = 0;
            for (int k = 0; k < SIDE; k++) sum += a[y * SIDE + k] * a[k * SIDE + x];
            check("product", c[y * SIDE + x] == sum);
        }
    }
}

static void reduce(cl_command_queue queue, cl_kernel kernel, cl_mem A, cl_mem C) {
    size_t length = LENGTH, group = GROUP;
    long sum = 0, expected = 0;
    cl_event reduced;
    must(CALL(clEnqueueWriteBuffer)(queue, A, CL_TRUE, 0, sizeof a, a, 0, NULL, NULL), "write");
    /* A native kernel: a host function as a command. */
    int *numbers = NULL;
    cl_event done;
    const void *place = &numbers;
    must(CALL(clEnqueueNativeKernel)(queue, doubled, &numbers, sizeof numbers, 1, &A, &place, 0, NULL, &done), "native");
    set_argument(kernel, 0, sizeof A, &A);
    set_argument(kernel, 1, sizeof C, &C);
    set_argument(kernel, 2, GROUP * sizeof(int), NULL);
    must(CALL(clEnqueueNDRangeKernel)(queue, kernel, 1, NULL, &length, &group, 1, &done, &reduced), "reduce");
    must(CALL(clEnqueueBarrierWithWaitList)(queue, 1, &reduced, NULL), "barrier");
    must(CALL(clEnqueueReadBuffer)(queue, C, CL_TRUE, 0, LENGTH / GROUP * sizeof(int), c, 0, NULL, NULL), "read");
    for (int n = 0; n < LENGTH / GROUP; n++) sum += c[n];
    for (int n = 0; n < LENGTH; n++) expected += 2 * a[n];
    check("reduction", sum == expected);
    must(CALL(clReleaseEvent)(done), "release");
    must(CALL(clReleaseEvent)(reduced), "release");
}

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 1;
    open_device(SOURCE);
    cl_kernel kernels[] = {kernel_named("add"), kernel_named("product"), kernel_named("reduce")};
    cl_command_queue queues[] = {queue_with(0), queue_with(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE),
                                 queue_with(CL_QUEUE_PROFILING_ENABLE)};
    cl_mem A = buffer_of(sizeof a), B = buffer_of(sizeof b), C = buffer_of(sizeof c);
    unsigned state = 1;
    for (long round = 0; round < rounds; round++) {
        for (int n = 0; n < LENGTH; n++) {
            state = state * 1664525 + 1013904223;
            a[n] = (int)(state >> 20) - 2048;
            b[n] = (int)(state >> 8 & 0xfff);
        }
        cl_command_queue queue = queues[round % 3];
        add(queue, kernels[0], A, B, C);
        multiply(queue, kernels[1], A, B, C);
        reduce(queue, kernels[2], A, C);
        printf("round %ld correct\n", round);
        fflush(stdout);
    }
    for (int n = 0; n < 3; n++) must(CALL(clReleaseCommandQueue)(queues[n]), "release");
    must(CALL(clReleaseContext)(context), "release");
    return 0;
}
