/*
 * Fills, copies and adds arrays ROUNDS times, on regular lists and on immediate lists, with every number checked. Waits by each function that waits.
 *
 *   compute ROUNDS
 */
#include "ze.h"

enum { LENGTH = 1 << 12, KERNEL_US = 50, WAYS = 6 };

static float *source, *ones, *sum;
static ze_kernel_handle_t add;
static ze_event_handle_t copied, filled, added;

/* sum = source + 1. The kernel waits for both copies, and signals `added`. */
static void append(ze_command_list_handle_t list) {
    const float one = 1;
    ze_event_handle_t before[] = {copied, filled};
    must(CALL(zeCommandListAppendMemoryCopy)(list, sum, source, LENGTH * sizeof *sum, copied, 0, NULL), "copy");
    must(CALL(zeCommandListAppendMemoryFill)(list, ones, &one, sizeof one, LENGTH * sizeof *ones, filled, 0, NULL), "fill");
    must(CALL(zeCommandListAppendBarrier)(list, NULL, 0, NULL), "barrier");
    launch(list, add, added, 2, before);
}

static void check(long round, const char *way) {
    for (int n = 0; n < LENGTH; n++) {
        if (sum[n] != source[n] + 1) {
            printf("round %ld %s: wrong\n", round, way);
            exit(71);
        }
        sum[n] = ones[n] = 0;
    }
    ze_event_handle_t all[] = {copied, filled, added};
    for (int n = 0; n < 3; n++) must(CALL(zeEventHostReset)(all[n]), "reset");
    printf("round %ld %s: correct\n", round, way);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    open_device();
    source = new_memory(LENGTH * sizeof *source);
    ones = new_memory(LENGTH * sizeof *ones);
    sum = new_memory(LENGTH * sizeof *sum);
    for (int n = 0; n < LENGTH; n++) source[n] = (float)n;
    add = new_kernel("add");
    set_argument(add, 0, KERNEL_US * 1000);
    set_argument(add, 1, (uint64_t)(uintptr_t)sum);
    set_argument(add, 2, (uint64_t)(uintptr_t)ones);
    set_argument(add, 3, LENGTH);
    copied = new_event();
    filled = new_event();
    added = new_event();

    ze_command_list_handle_t list = new_list();
    append(list);
    must(CALL(zeCommandListClose)(list), "close");
    ze_command_queue_handle_t queue = new_queue(ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
    ze_command_queue_handle_t synchronous = new_queue(ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS);
    ze_command_list_handle_t immediate = new_immediate_list(ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
    ze_command_list_handle_t at_once = new_immediate_list(ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS);
    ze_fence_handle_t fence = new_fence(queue);
    for (long round = 0; round < atol(argv[1]); round++) {
        execute(queue, list, NULL);
        must(CALL(zeCommandQueueSynchronize)(queue, UINT64_MAX), "synchronize");
        check(round, "queue");
        execute(queue, list, NULL);
        while (CALL(zeCommandQueueSynchronize)(queue, 0) == ZE_RESULT_NOT_READY) usleep(100);
        check(round, "queue without waiting");
        execute(queue, list, fence);
        must(CALL(zeFenceHostSynchronize)(fence, UINT64_MAX), "fence");
        must(CALL(zeFenceReset)(fence), "fence");
        check(round, "fence");
        execute(synchronous, list, NULL);
        check(round, "synchronous queue");
        append(immediate);
        must(CALL(zeEventHostSynchronize)(added, UINT64_MAX), "event");
        check(round, "immediate list");
        append(at_once);
        check(round, "synchronous immediate list");
    }
    printf("no list: 0x%x\n", (unsigned)CALL(zeCommandListAppendBarrier)(NULL, NULL, 0, NULL));
    must(CALL(zeFenceDestroy)(fence), "destroy");
    must(CALL(zeCommandQueueDestroy)(queue), "destroy");
    must(CALL(zeCommandQueueDestroy)(synchronous), "destroy");
    must(CALL(zeCommandListDestroy)(list), "destroy");
    must(CALL(zeCommandListDestroy)(immediate), "destroy");
    must(CALL(zeCommandListDestroy)(at_once), "destroy");
    return 0;
}
