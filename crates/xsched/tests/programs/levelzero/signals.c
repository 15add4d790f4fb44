/*
 * Commands that wait for events which are signaled later: by the program itself, by a list that gets its commands later, and by
 * a regular list. After each wait follow KERNELS kernels of 0.2 ms, more than may be in flight.
 *
 *   signals ROUNDS KERNELS
 */
#include "ze.h"

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    long rounds = atol(argv[1]), kernels = atol(argv[2]);
    open_device();
    uint64_t *counter = new_memory(sizeof *counter);
    *counter = 0;
    ze_kernel_handle_t kernel = new_increment(200, counter);
    ze_command_list_handle_t first = new_immediate_list(ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
    ze_command_list_handle_t second = new_immediate_list(ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
    ze_command_queue_handle_t queue = new_queue(ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS);
    ze_event_handle_t start = new_event(), middle = new_event(), recorded = new_event(), end = new_event();
    ze_event_handle_t all[] = {start, middle, recorded, end};
    /* Waits for `middle`, and signals `recorded`. */
    ze_command_list_handle_t list = new_list();
    must(CALL(zeCommandListAppendWaitOnEvents)(list, 1, &middle), "wait");
    launch(list, kernel, NULL, 0, NULL);
    must(CALL(zeCommandListAppendSignalEvent)(list, recorded), "signal");
    must(CALL(zeCommandListClose)(list), "close");
    printf("ready\n");
    fflush(stdout);
    if (argc > 3) getchar();
    for (long round = 0; round < rounds; round++) {
        /* Everything below waits for `start`, which the program signals after its last launch. */
        launch(second, kernel, NULL, 1, &recorded);
        for (long n = 1; n < kernels; n++) launch(second, kernel, NULL, 0, NULL);
        launch(second, kernel, end, 0, NULL);
        execute(queue, list, NULL);
        launch(first, kernel, NULL, 1, &start);
        for (long n = 1; n < kernels; n++) launch(first, kernel, NULL, 0, NULL);
        launch(first, kernel, middle, 0, NULL);
        must(CALL(zeEventHostSignal)(start), "signal");
        must(CALL(zeEventHostSynchronize)(end, UINT64_MAX), "event");
        must(CALL(zeCommandQueueSynchronize)(queue, UINT64_MAX), "synchronize");
        for (int n = 0; n < 4; n++) must(CALL(zeEventHostReset)(all[n]), "reset");
        int is_correct = *counter == (uint64_t)((round + 1) * (2 * kernels + 3));
        printf("round %ld: %s\n", round, is_correct ? "correct" : "wrong");
        fflush(stdout);
    }
    return 0;
}
